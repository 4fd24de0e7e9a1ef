"""Kills commands that act on jobs at their lines: `python killed_commands.py FOLDER KILLS [ACTION ...]`.

A fresh process runs the command about a new job, and kills itself (SIGKILL) before one of the lines that it
runs in the files of these actions, or while it waits for a program of Slurm's: KILLS of these lines, or all
for 0. Then the same command is called again, as users would, and Slurm, the store and the job's history are
looked at. Prints as JSON how often each action was killed, and what was wrong.
"""

from __future__ import annotations

import contextlib
import getpass
import grp
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from killed_at_lines import Lines, until_ended
from stand_in_slurm import StandInSlurm

from cingulum.cli import app
from cingulum.cli.job_actions import cancel, defer, give, hold, release, requeue, share
from jobs.home import job_folder, new_token
from jobs.job import Job
from jobs.local import attended_files
from jobs.requests import actions, known
from jobs.schedulers.slurm import commands as slurm_commands
from jobs.schedulers.slurm import launcher
from jobs.schedulers.slurm.launcher import Slurm
from jobs.spec import JobSpec
from jobs.store import sharing, statements, store, sync, tables
from jobs.store.store import Store

COMMANDS = (cancel, defer, hold, give, release, requeue, share)
MODULES = (known, actions, sync, sharing, statements)
LEADING = (*COMMANDS, actions.cancel, actions.requeue, actions.hold, actions.release, actions.nice)
# Between the start of Slurm's program and its answer.
CALLING = (subprocess.run, subprocess.Popen.communicate)
LINES = Lines(
    files=frozenset(
        [
            *(str(module.__file__) for module in (*MODULES, store, launcher, slurm_commands)),
            *(command.__code__.co_filename for command in COMMANDS),
        ]
    ),
    codes=frozenset(function.__code__ for function in (*CALLING, tables.writing.__wrapped__)),  # type: ignore[attr-defined]
    leading=frozenset(function.__code__ for function in LEADING),
)
WHO = f"{getpass.getuser()} (command line)"
GROUP = grp.getgrgid(os.getgid()).gr_name


@dataclass(frozen=True)
class Action:
    """What is asked for.

    Attributes:
        words: of the command line, before the job's id and after it.
        before: states of the tasks.
        after: states of the tasks, how often they were started again, their reason, what they lost of
            their priority.
        noted: in the job's history.
        once: what Slurm may be told once at most, with `{}` for the job's id.
        shared: groups that may look at the job in the end.
        reason: why the tasks wait at first.
        is_shared: whether the job is shared at first.
    """

    words: tuple[tuple[str, ...], tuple[str, ...]]
    before: tuple[str, ...]
    after: tuple[tuple[str, int, str, int], ...]
    noted: str
    once: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    reason: str = "Priority"
    is_shared: bool = False


_FIRST = ("Priority", 0)
_AGAIN = ("PENDING", 1, "BeginTime", 0)
_SAVE, _REQUEUE = "scancel --batch --signal=USR2 {}", "scontrol requeue {}"
ACTIONS = {
    "cancel": Action(
        (("cancel",), ()), ("PENDING",), (("CANCELLED", 0, *_FIRST),), "cancel", ("scancel {}",)
    ),
    "cancel an array": Action(
        (("cancel",), ()),
        ("PENDING", "RUNNING", "COMPLETED"),
        (*(("CANCELLED", 0, *_FIRST),) * 2, ("COMPLETED", 0, *_FIRST)),
        "cancel",
        ("scancel {}",),
    ),
    "requeue what runs": Action((("requeue",), ()), ("RUNNING",), (_AGAIN,), "requeue", (_SAVE,)),
    "requeue what failed": Action((("requeue",), ()), ("FAILED",), (_AGAIN,), "requeue", (_REQUEUE,)),
    "requeue an array": Action(
        (("requeue",), ()),
        ("FAILED", "RUNNING", "COMPLETED", "FAILED"),
        (_AGAIN, _AGAIN, ("COMPLETED", 0, *_FIRST), _AGAIN),
        "requeue",
        tuple(line.format(f"{{}}_{task}") for line, task in ((_REQUEUE, 0), (_SAVE, 1), (_REQUEUE, 3))),
    ),
    "hold": Action((("hold",), ()), ("PENDING",), (("PENDING", 0, "JobHeldUser", 0),), "hold"),
    "release": Action(
        (("release",), ()), ("PENDING",), (("PENDING", 0, *_FIRST),), "release", reason="JobHeldUser"
    ),
    "defer": Action((("defer",), ()), ("PENDING",), (("PENDING", 0, "Priority", 1000),), "nice 1000"),
    "share": Action(
        (("share",), (GROUP,)),
        ("PENDING",),
        (("PENDING", 0, *_FIRST),),
        f"share with {GROUP}",
        shared=(GROUP,),
    ),
    "stop sharing": Action(
        (("share",), (GROUP, "--stop")),
        ("PENDING",),
        (("PENDING", 0, *_FIRST),),
        f"stop sharing with {GROUP}",
        is_shared=True,
    ),
}


@dataclass
class World:
    """A stand-in for Slurm, the user's store, and the job that is acted on.

    Attributes:
        slurm: the stand-in.
        jobs: jobs that there were so far.
    """

    slurm: StandInSlurm
    store: Store = field(default_factory=Store)
    jobs: int = 0

    def new_job(self, action: Action) -> Job:
        """Add a job that is as it is before the action, to the store and to Slurm, which has no other."""
        self.jobs += 1
        tasks = tuple(("true", str(task)) for task in range(len(action.before)))
        token, external = new_token(), str(self.jobs)
        spec = JobSpec("killed", "train", tasks, "/", requeues=1)
        job = self.store.add(
            token,
            spec,
            launcher="slurm",
            site="here",
            folder=job_folder(token),
            shared=(GROUP,) if action.is_shared else (),
        )
        self.slurm.has(external, action.before, action.reason)
        sync.refresh(self.store, {"slurm": Slurm()}, [self.store.adopt(job, external)])
        job = self.store.get(external)
        for task in range(len(tasks)):
            _failures(job, task).write_text("2026-01-01T00:00:00+0000\t3\tn1\tthe network of n1 failed\n")
        return job

    def wrong(self, action: Action, job: Job) -> list[str]:
        """What is not as it must be when the action has been asked for until it was done."""
        now, told = self.store.get(job.label), self.slurm.told()
        states = [(task.state, task.restarts) for task in now.tasks]
        noted = [(one.action, one.who) for one in self.store.actions(job.label)]
        changes = [(one.task, one.state, one.restarts) for one in self.store.changes(job.label)]
        left = [task for task in range(len(states)) if _failures(job, task).exists()]
        again = [task for task, (state, *_) in enumerate(action.after) if action.after[task] == _AGAIN]
        forgotten = [task for task in again if action.before[task] == "FAILED"]
        limits = {line.format(job.label): 1 for line in action.once}
        checks = {
            f"Slurm has {self.slurm.tasks()}": self.slurm.tasks() == list(action.after),
            f"the store has {states}": states == [one[:2] for one in action.after],
            f"the history has {noted}": set(noted) == {(action.noted, WHO)} and len(noted) <= 2,
            f"the history has {changes}": len(changes) == len(set(changes))
            and not any(state == "LOST" for _, state, _ in changes),
            f"Slurm was told {told}": all(told.count(line) <= limits.get(line, 2) for line in told)
            and (not limits or set(told) == set(limits)),
            f"shared with {self.store.shared_with(job)}": tuple(self.store.shared_with(job)) == action.shared,
            f"failures of {left} are counted": left == sorted({*range(len(states))} - {*forgotten}),
        }
        if action.words[0] == ("share",):
            checks["shared twice"] = len(noted) == 1
        return [what for what, is_right in checks.items() if not is_right]


def run(action: Action, job: Job) -> tuple[int, str]:
    """Call the command; return its exit code, and what it says of errors."""
    first, last = action.words
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = app.run([*first, job.label, *last])
    return code, said.getvalue()


def again(world: World, action: Action, job: Job) -> list[str]:
    """Ask again, and return what is wrong then."""
    found = []
    if world.slurm.told() and not world.store.actions(job.label):
        found.append("Slurm was told of what the history does not have")
    code, said = run(action, job)
    # What is in the queue already is not put there again.
    if code != 0 and "is in the queue already" not in said:
        found.append(f"exit code {code}: {said}")
    return found + world.wrong(action, job)


def _failures(job: Job, task: int) -> Path:
    return attended_files.failures(Path(job.folder), task, is_array=job.spec.is_array)


def main(folder: Path, kills: int, names: list[str]) -> None:
    os.environ["CINGULUM_HOME"] = str(folder / "home")
    world = World(StandInSlurm(folder / "slurm"))
    os.environ["PATH"] = f"{world.slurm.bin}:{os.environ['PATH']}"
    killed, wrong = {}, []
    for name in names or ACTIONS:
        action, job = ACTIONS[name], world.new_job(ACTIONS[name])
        lines = len(LINES.met(lambda a=action, j=job: run(a, j)))
        points = range(1, lines + 1, max(1, lines // kills) if kills else 1)
        killed[name] = len(points)
        for point in points:
            job = world.new_job(action)
            where, survived, group = LINES.killed_at(point, lambda a=action, j=job: run(a, j))
            until_ended(group, where)
            found = [*again(world, action, job), *(["it was not killed"] if survived else [])]
            wrong += [f"{name}, killed at {where}: {what}" for what in found]
    sys.stdout.write(json.dumps({"killed": killed, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
