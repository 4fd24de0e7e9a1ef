"""Jobs without a scheduler: each has an attendant (`jobs.local.attendant`), a process of its own.

The base of the launchers for mpirun, Docker and Apptainer. One of them gives `name`, `preflight`, and a
`plan` whose files come from `attended_launch`. Everything else is read from the job's folder, so that it is
as true after the submitting process has died, and for any process of the same user.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jobs
from jobs import home
from jobs.local import attended_files, processes
from jobs.local.attended_files import Ledger, TaskEntry, Terms
from jobs.schedulers.base import ENDED, Launch, TaskState
from jobs.spec import GRACE_S, Arguments, JobSpec
from trainer import atomic
from trainer.errors import JobError, LauncherError

START_TIMEOUT_S = 60.0
OBEY_TIMEOUT_S = 30.0
_POLL_S = 0.05


def attended_launch(
    spec: JobSpec,
    token: str,
    commands: Sequence[Sequence[str]],
    *,
    environment: Mapping[str, str] | None = None,
    hosts: Mapping[str, int] | None = None,
    at_once: int | None = None,
    probe: Arguments = (),
    check_s: float = Terms.check_s,
    ask_first: bool = False,
) -> Launch:
    """Return a launch that an attendant carries out; its `command` is that of the first task.

    Args:
        spec: the job.
        token: of the submission.
        commands: what starts each task, in the order of `spec.tasks`. SIGUSR2 to such a process must make
            its task save, SIGTERM must end it. It is started anew, as it is, after a failure.
        environment: additions to the environment of the commands, besides the job's own.
        hosts: slots by host name, where the attendant hands hosts out: it writes those of each start to
            `attended_files.hostfile(folder, task)`, which the commands must read.
        at_once: tasks that may run side by side where the job does not say.
        probe: a command that exits 0 where the host that its word `PROBED` stands for answers.
        check_s: seconds between such questions while a task runs; 0: none are asked then.
        ask_first: whether hosts that do not answer are passed over at each start.
    """
    resources = spec.resources
    added = {**(environment or {}), **spec.environment}
    agreed = Terms(
        token=token,
        name=spec.name,
        commands=tuple(tuple(command) for command in commands),
        folder=spec.folder,
        environment=added,
        hosts=dict(hosts or {}),
        nodes=resources.nodes if spec.parallel else 1,
        least_nodes=(resources.least_nodes or resources.nodes) if spec.parallel else 1,
        slots=resources.ranks_per_node if spec.parallel else 1,
        at_once=spec.at_once or at_once,
        requeues=spec.requeues,
        shrink=spec.shrink,
        global_batch=spec.global_batch,
        grace_s=GRACE_S if spec.grace_s is None else spec.grace_s,
        minutes=resources.minutes,
        probe=tuple(probe),
        check_s=check_s,
        ask_first=ask_first,
        runs=spec.run_folders,
    )
    return Launch({attended_files.TERMS: agreed.to_json()}, agreed.commands[0], added)


class Attended:
    """Common base of launchers with attendants. `external` is the job's folder."""

    name = ""

    def start(self, launch: Launch, folder: Path, after: Sequence[str]) -> str:
        """Write the files into the (existing, private) folder and start the attendant.

        Args:
            launch: made by `attended_launch`.
            folder: of the job.
            after: `external` of attended jobs that must have completed first.

        Raises:
            LauncherError: the attendant could not be started, or there is one.
        """
        for name, text in launch.files.items():
            atomic.write_private(folder / name, text)
        atomic.write_private(folder / attended_files.AFTER, json.dumps(list(after)) + "\n")
        _spawn(folder)
        return str(folder)

    def find(self, token: str) -> str | None:
        """Return the job started with this token; its attendant holds the folder's lock from the start."""
        folder = home.job_path(token)
        if not (folder / attended_files.TERMS).is_file():
            return None
        if (folder / attended_files.STATE).is_file() or attended_files.is_attended(folder):
            return str(folder)
        return None

    def states(self, externals: Sequence[str]) -> dict[str, list[TaskState]]:
        """Return the state of every task of these jobs; a job whose attendant died is LOST, and its processes
        are ended.
        """
        states = {}
        for external in externals:
            folder = Path(external)
            try:
                agreed = Terms.of(folder)
                with attended_files.look(folder) as attended:
                    ledger = Ledger.read(folder)  # after the look: the last word is written before the end
                    entries = ledger.tasks if ledger else [TaskEntry(k) for k in range(len(agreed.commands))]
                    lost = [] if attended else [entry for entry in entries if entry.state not in ENDED]
                    if lost:
                        _leave_nothing(agreed)
            except JobError:  # of this job, nothing can be said; of the others, it can
                continue
            for entry in lost:
                _call_lost(entry, ledger, folder)
            states[external] = [_state(entry) for entry in entries]
        return states

    def cancel(self, external: str, task: int | None = None) -> None:
        """End a job, or one task of it; leave it unchanged if it has ended.

        Raises:
            JobError: there is no such job or task.
        """
        folder = Path(external)
        agreed = Terms.of(folder)
        numbers = _tasks(agreed, task)
        with attended_files.look(folder) as attended:
            if not attended:
                _leave_nothing(agreed)
                return
        for number in numbers:
            atomic.write_private(attended_files.request(folder, "cancel", number), "")

    def requeue(self, external: str, task: int | None = None) -> None:
        """Save and start it again; without `task`, all tasks that have not completed, else all.

        Raises:
            JobError: there is no such job or task.
            LauncherError: the attendant does not answer, or could not be started.
        """
        folder = Path(external)
        numbers = _tasks(Terms.of(folder), task)
        known = Ledger.read(folder)
        if task is None and known is not None:
            numbers = [k for k in numbers if known.tasks[k].state != "COMPLETED"] or numbers
        requests = [attended_files.request(folder, "requeue", number) for number in numbers]
        for request in requests:
            atomic.write_private(request, "")
        deadline = time.monotonic() + OBEY_TIMEOUT_S
        while any(request.exists() for request in requests):
            if not attended_files.is_attended(folder):
                _spawn(folder)
                return
            if time.monotonic() > deadline:
                raise LauncherError(f"{folder}: its attendant does not answer within {OBEY_TIMEOUT_S:g} s.")
            time.sleep(_POLL_S)

    def logs(self, folder: Path, external: str, task: int) -> Path:
        """Return the log of this task: both streams, all starts in order."""
        return attended_files.log(folder, task, is_array=Terms.of(folder).is_array)


def _spawn(folder: Path) -> None:
    for stale in folder.glob("cancel*.asked"):  # before the lock: who sees it taken may cancel what we start
        stale.unlink(missing_ok=True)
    lock = attended_files.lock(folder)
    with lock:
        # A job that submits jobs must not be their end when it ends what it has started.
        environment = {key: value for key, value in os.environ.items() if key != processes.MARK}
        descriptor = os.open(folder / attended_files.OWN_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "jobs.local.attendant",
                    str(folder),
                    "--detach",
                    "--lock",
                    str(lock.fileno()),
                ],
                # `-m` looks into the working folder first: it must be where this very package lies.
                cwd=Path(jobs.__file__).parents[1],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
                timeout=START_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LauncherError(f"{folder}: its attendant could not be started: {error}.") from error
        finally:
            os.close(descriptor)
    if done.returncode != 0:
        said = (folder / attended_files.OWN_LOG).read_text(errors="replace")[-500:].strip()
        raise LauncherError(f"{folder}: its attendant could not be started: {said}")


def _state(entry: TaskEntry) -> TaskState:
    return TaskState(
        task=entry.task,
        state=entry.state,
        exit_code=entry.exit_code,
        reason=entry.reason,
        hosts=entry.hosts,
        restarts=entry.restarts,
        started=entry.started,
        ended=entry.ended,
    )


def _call_lost(entry: TaskEntry, ledger: Ledger | None, folder: Path) -> None:
    entry.reason = "its attendant was killed before it began"
    if ledger is not None:
        who = f"its attendant (process {ledger.pid} on {ledger.host})"
        entry.reason = f"{who} was killed while the task was {entry.state}"
    with contextlib.suppress(OSError):
        said = (folder / attended_files.OWN_LOG).read_text(errors="replace").strip()
        if said:
            entry.reason += f", and said: {said.splitlines()[-1]}"
    entry.reason += "; `cingulum requeue` goes on from its last checkpoint"
    entry.state = "LOST"


def _leave_nothing(agreed: Terms) -> None:
    """End what a dead attendant left on this host; mpirun mostly ended with it, so there
    is mostly nothing.
    """
    processes.end_marked(*(f"{agreed.token}.{number}" for number in range(len(agreed.commands))))


def _tasks(agreed: Terms, task: int | None) -> list[int]:
    if task is None:
        return list(range(len(agreed.commands)))
    if not 0 <= task < len(agreed.commands):
        raise JobError(f"There is no task {task}; the job has {len(agreed.commands)}, numbered from 0.")
    return [task]
