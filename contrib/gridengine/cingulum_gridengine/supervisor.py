"""Look after one start of a job under Grid Engine, on the host of its script; exit code 99: start it again.

Copied into the job's folder beside jobs/supervisor: the standard library alone, no syntax newer than 3.6.
"""

import argparse
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Dict, List, Sequence

from jobs.supervisor import blame, decisions, launching, mpirun_command
from jobs.supervisor.progress import TaskProgress
from jobs.supervisor.record import Record, left_by_ranks, now, read_words, say, told, write

AGAIN, ERROR_STATE = 99, 100
# qdel and qmod -rj send USR2, and KILL a minute later. "ALRM" is ours: the time limit is near.
_HELD = (signal.SIGUSR2, signal.SIGTERM, signal.SIGCHLD)
_WORDS = {"ALRM": "time", "USR2": "again", "TERM": "again"}
# What ranks on other hosts need of the environment, besides what the site and the job set.
_FORWARDED = ("CINGULUM_", "HOROVOD_", "TF_", "NCCL_", "OMP_", "PYTHON", "LD_LIBRARY_PATH")


def main(argv: Sequence[str]) -> int:
    """Run the ranks; return the exit code for Grid Engine."""
    parser = argparse.ArgumentParser(prog="supervisor", description=__doc__)
    parser.add_argument("--label", required=True, help="what Grid Engine calls the job: 4711")
    parser.add_argument("--folder", required=True, type=Path, help="of the job")
    parser.add_argument("--task", type=int, help="of an array, from 0")
    parser.add_argument("--requeues", type=int, required=True, help="starts after failures")
    parser.add_argument("--ranks", type=int, default=0, help="that mpirun starts; 0: one process")
    parser.add_argument("--mpirun", help="of the site")
    parser.add_argument("--forward", action="append", default=[], help="a variable that ranks need")
    parser.add_argument("--outlives", action="store_true", help="ranks continue when one dies")
    parser.add_argument("--contained", type=int, default=0, help="words of COMMAND that start a container")
    parser.add_argument("--asked", default="", help="signal received before")
    parser.add_argument("--run", help="folder that the task trains in")
    parser.add_argument(
        "--save-after", type=float, default=float("inf"), help="seconds, before the time limit"
    )
    parser.add_argument("--refused", action="store_true", help="only record that this start is impossible")
    cut = list(argv).index("--") if "--" in argv else len(argv)
    given, command = parser.parse_args(list(argv[:cut])), list(argv[cut + 1 :])
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    starts = given.folder / ("starts" if given.task is None else "starts-%d" % given.task)
    number = int((read_words(starts) or ["0"])[0]) + 1
    write(starts, "%d\n" % number)
    start = Start(given, Record(given.folder, given.task, number), number)
    if given.refused:
        return start.end("FAILED", decisions.UNUSABLE)
    return start.run(command)


class Start:
    """One start of a task; `given` are the arguments of `main`."""

    def __init__(self, given: argparse.Namespace, record: Record, number: int) -> None:
        self._given, self._record, self._number = given, record, number
        if given.task is not None:  # Grid Engine names files by its own numbers, from 1
            record.log = given.folder / ("out-%d.log" % (given.task + 1))
        self._progress = TaskProgress(record.standing, given.run, given.save_after < float("inf"))
        self._host = socket.gethostname().partition(".")[0]

    def run(self, command: List[str]) -> int:
        """Take over what earlier starts left, start the ranks, and decide by their end."""
        failed = [self._record.take_up(path, "") for path in self._record.earlier()]
        if any(failed) and decisions.is_spent(self._record.count_failures(), self._given.requeues):
            return self._give_up(1)
        after = os.environ.get("CINGULUM_AFTER", "").split()
        missing = [job for job in after if not _completed(self._given.folder.parent / job)]
        if missing:
            say("not started: job %s has not completed" % ", ".join(missing))
            return self.end("CANCELLED", 1)
        self._record.forget_ending()
        say("start %d on %s" % (self._number, " ".join(_hosts()) or self._host))
        self._record.begin(self._host, now())
        self._progress.begin()
        begins = self._record.log.stat().st_size if self._record.log.exists() else 0
        own = "%s.%d" % (self._given.folder.name, self._record.task)
        environment = dict(os.environ, CINGULUM_FAILURES=str(self._record.of_ranks), CINGULUM_TASK=own)
        environment["CINGULUM_RESTARTS"] = str(self._number - 1)
        try:
            # In a session of its own: Grid Engine signals all of its own, mpirun and its daemons, too.
            process = launching.start(["setsid", *self._line(command, environment)], environment)
        except mpirun_command.Refused as error:
            say(str(error))
            return self.end("FAILED", decisions.UNUSABLE)
        except OSError as error:
            say("%s: %s" % (command[0], error.strerror))
            return self.end("FAILED", decisions.UNUSABLE)
        asked, begun = self._given.asked, time.monotonic()
        while process.poll() is None:
            name = launching.next_signal(1.0, among=_HELD)
            if not asked and time.monotonic() - begun > self._given.save_after:
                name = "ALRM"
            if name in _WORDS:
                asked = name
                say("asked to save (%s)" % name)
                launching.tell_to_save(process)
        text = told(self._record.log, begins)
        code = blame.exit_code(text, launching.exit_code(process.returncode))
        return self._decide(code, text, decisions.judge(code, _WORDS.get(asked)))

    def _line(self, command: List[str], environment: Dict[str, str]) -> List[str]:
        if not self._given.ranks:
            mpirun_command.need(command[0])
            return command
        words = mpirun_command.line(
            self._given.mpirun,
            self._given.ranks,
            command,
            environment,
            outlives=self._given.outlives,
            contained=self._given.contained,
        )
        hosts = _hosts()
        if hosts:
            file = self._record.of_ranks / "hosts"
            write(file, "".join("%s slots=%s\n" % one for one in hosts.items()))
            # Grid Engine's own way to start daemons needs an mpirun that was built for it; ssh needs none.
            words += [
                "--hostfile",
                str(file),
                "--wdir",
                str(Path.cwd()),
                "--mca",
                "plm_rsh_disable_qrsh",
                "1",
            ]
            names = {name for name in environment if name.startswith(_FORWARDED)}
            names |= {"PATH", *self._given.forward} & set(environment)
            words += [word for name in sorted(names) for word in ("-x", name)]
        return words + command

    def _decide(self, code: int, text: str, verdict: decisions.StartVerdict) -> int:
        self._record.release()
        if verdict.kind == "done":
            return self.end("COMPLETED", 0)
        if verdict.kind in ("unusable", "fenced"):
            return self.end("FAILED", code)
        if verdict.kind == "again":
            warning = self._progress.saved() if code == decisions.SAVED else ""
            if not (warning and self._progress.is_stuck()):
                say("%s; to be started again" % (warning or verdict.why))
                return AGAIN
            say("%s. Not started again." % warning)
            self._progress.forget()
            return self.end("FAILED", code)
        whom = blame.read(text, code, hosts=list(_hosts()), left=left_by_ranks(self._record.of_ranks))
        self._record.note_failure(code, whom.where, verdict.why or whom.why)
        if decisions.is_spent(self._record.count_failures(), self._given.requeues):
            return self._give_up(code)
        say("to be started again")
        return AGAIN

    def _give_up(self, code: int) -> int:
        say("failed %d times: not started again" % self._record.count_failures())
        return self.end("FAILED", code)

    def end(self, state: str, code: int) -> int:
        """Record how the task ended; return the exit code, which means nothing else to Grid Engine."""
        self._record.note_ending(state, code, list(_hosts()) or [self._host], self._number - 1)
        return 1 if code in (AGAIN, ERROR_STATE) else code


def _hosts() -> Dict[str, str]:
    """Return slots by host, of the file that Grid Engine wrote for a parallel job."""
    path = os.environ.get("PE_HOSTFILE")
    lines = Path(path).read_text(encoding="utf-8").splitlines() if path else []
    return {line.split()[0]: line.split()[1] for line in lines if len(line.split()) > 1}


def _completed(folder: Path) -> bool:
    """Whether all tasks of a job noted in its folder that they completed: hold_jid waits for any end."""
    notes = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("state*.json")]
    wanted = len(json.loads((folder / "spec.json").read_text(encoding="utf-8"))["tasks"])
    return [task["state"] for note in notes for task in note["tasks"]] == ["COMPLETED"] * wanted
