"""Supervise one job without a scheduler: `python -m jobs.local.attendant FOLDER`, a process of its own.

It runs every task's command, on hosts that it hands out; starts a task again when it saved (exit code 75)
or failed, a bounded number of times, on the hosts that are left where that is wanted; and writes all of it
to `state.json`. SIGUSR2: every task saves and is started again. SIGTERM: every task saves, and that is all.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from jobs.local import attended_files
from jobs.local.attended_files import Ledger, Terms
from jobs.local.attended_task import AttendedTask
from jobs.local.host_watch import TooFewAnswer, choose
from jobs.schedulers.base import ENDED
from jobs.supervisor.blame import Blame
from trainer.errors import CingulumError
from trainer.transient import TransientErrors

POLL_S = 0.1


class Attendant:
    """Supervises the job in a folder until every task has ended.

    Args:
        folder: of the job.
        agreed: its terms.
        after: folders of jobs that must complete first.
        umask: of the commands.
    """

    def __init__(
        self, folder: Path, agreed: Terms, after: Sequence[Path] = (), *, umask: int = 0o077
    ) -> None:
        self.folder = folder
        self.terms = agreed
        self.after = list(after)
        self.ending = False
        self.saving = False
        before = Ledger.read(folder)
        entries = {entry.task: entry for entry in before.tasks} if before else {}
        numbers = range(len(agreed.commands))
        self._written: str | None = None
        self._beaten = 0.0
        self._errors = TransientErrors(
            f"{folder}: its tasks could not be looked after", kinds=(OSError, CingulumError)
        )
        self.tasks: list[AttendedTask] = []
        for number in numbers:
            task = AttendedTask(folder, agreed, number, entries.get(number), umask, self._write)
            self.tasks.append(task)
        self.ledger = Ledger.new(agreed.token, [task.entry for task in self.tasks])

    def run(self) -> None:
        """Supervise until every task has ended."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_end)
        signal.signal(signal.SIGUSR2, self._on_save)
        while True:
            self._obey()
            for task in self.tasks:
                with self._errors.survived():
                    task.look()
            self._write()  # hosts that are asked before a start may take long to answer
            if not self.ending:
                self._begin_some()
            self._write()
            is_told = self._state() == self._written or not self.folder.exists()  # removed: nobody will ask
            if is_told and all(task.entry.state in ENDED for task in self.tasks):
                return
            time.sleep(POLL_S)

    def _state(self) -> str:
        return json.dumps([vars(task.entry) for task in self.tasks])

    def _write(self) -> None:
        """Write the state where it has changed, and now and then that this attendant lives."""
        state = self._state()
        # A disk that is full or does not answer is no reason to leave the tasks alone.
        with self._errors.survived():
            if state != self._written:
                self._written = None
                self.ledger.write(self.folder)
                self._written, self._beaten = state, time.monotonic()
            elif time.monotonic() - self._beaten > attended_files.BEAT_S:
                attended_files.beat(self.folder)
                self._beaten = time.monotonic()

    def _on_end(self, number: int, frame: FrameType | None) -> None:
        self.ending = True

    def _on_save(self, number: int, frame: FrameType | None) -> None:
        self.saving = True

    def _obey(self) -> None:
        """Act on signals and request files."""
        if self.saving:
            self.saving = False
            for task in self.tasks:
                task.save("again")
        if self.ending:
            for task in self.tasks:
                task.save("end")
        for whom, tasks in [(None, self.tasks), *((task.number, [task]) for task in self.tasks)]:
            for what, obey in (("cancel", AttendedTask.cancel), ("requeue", AttendedTask.requeue)):
                if _taken_away(attended_files.request(self.folder, what, whom)):
                    for task in tasks:
                        obey(task)

    def _begin_some(self) -> None:
        """Start what may begin; another job's files that cannot be read now are read again."""
        with self._errors.survived():
            try:
                if self._may_begin():
                    self._start_some()
            except (OSError, CingulumError) as error:
                for task in self.tasks:
                    if task.is_due:
                        task.entry.reason = str(error)
                raise

    def _may_begin(self) -> bool:
        """Return whether all jobs that this one waits for have completed; when one never
        will, end all tasks.
        """
        for folder in list(self.after):
            attended = attended_files.is_attended(folder)
            other = Ledger.read(folder)  # after the look: an attendant writes its last word before it goes
            if other is not None and all(entry.state == "COMPLETED" for entry in other.tasks):
                self.after.remove(folder)
                continue
            if not attended:
                for task in self.tasks:
                    task.give_up(
                        "CANCELLED", f"DependencyNeverSatisfied: the job in {folder} did not complete"
                    )
            return False
        return True

    def _start_some(self) -> None:
        running = [task for task in self.tasks if task.is_running]
        for task in self.tasks:
            if not task.is_due:
                continue
            if self.terms.at_once is not None and len(running) >= self.terms.at_once:
                task.entry.reason = "JobArrayTaskLimit"
                continue
            hosts = self._hosts_for(task, running)
            if hosts is not None and task.start(hosts):
                running.append(task)

    def _hosts_for(self, task: AttendedTask, running: Sequence[AttendedTask]) -> list[str] | None:
        """Hosts for a start; None: it must wait for some, or has just failed for want of them."""
        if not self.terms.hosts:
            return []
        taken: dict[str, int] = {}
        for other in running:
            for host in other.entry.hosts:
                taken[host] = taken.get(host, 0) + self.terms.slots
        try:
            while hosts := choose(self.terms, taken, task.entry.lost_hosts, task.silent):
                # `choose` has asked those that were lost before.
                known = [host for host in hosts if host not in task.entry.lost_hosts]
                silent = task.silent(known) if self.terms.ask_first else []
                if not silent:
                    break
                task.lose(silent)
        except TooFewAnswer as error:
            task.failed(None, Blame(f"does not answer; {error}", host=",".join(error.silent), lost=True))
            return None
        if hosts is None:
            task.entry.reason = "Resources"
        return hosts


def _taken_away(asked: Path) -> bool:
    try:
        asked.unlink()
    except OSError:  # nobody asks; or the disk does not answer, and will be asked again
        return False
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Supervise the job in FOLDER; the exit code concerns the supervision only, not the job."""
    parser = argparse.ArgumentParser(prog="python -m jobs.local.attendant", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lock", type=int, help="descriptor of the lock that the parent process holds")
    parser.add_argument("--detach", action="store_true", help="detach from the parent process")
    arguments = parser.parse_args(argv)
    folder = arguments.folder.absolute()
    try:
        # Kept to the end of this process; its own children do not inherit it.
        lock = (
            attended_files.lock(folder)
            if arguments.lock is None
            else os.fdopen(arguments.lock, "r+b", buffering=0)
        )
        os.set_inheritable(lock.fileno(), False)
        if arguments.detach and os.fork():
            os._exit(0)
        umask = os.umask(0o077)
        after = [Path(name) for name in json.loads((folder / attended_files.AFTER).read_text())]
        Attendant(folder, Terms.of(folder), after, umask=umask).run()
    except (CingulumError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
