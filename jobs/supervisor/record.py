"""The files of a task in its job's folder. Those of one start carry its number; no other start touches them,
but a later one that takes over what an earlier one has left.
"""

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

TOLD_BYTES = 200000
# Of a start: when Slurm began it, and what it knows of its end.
_BEGAN, _SETTLED = "began", "settled"


def now() -> str:
    """Return the time for people, with its zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def say(what: str) -> None:
    """Write a line of ours to the job's log."""
    sys.stderr.write("%s cingulum: %s\n" % (now(), what))
    sys.stderr.flush()


def told(log: Path, begins: int) -> str:
    """Return the output of a start from byte `begins`, the middle left out where it is long: causes stand
    first or last. "": somebody has removed the file.
    """
    try:
        with log.open("rb") as file:
            file.seek(begins)
            first = file.read(TOLD_BYTES)
            if log.stat().st_size - file.tell() > TOLD_BYTES:
                file.seek(-TOLD_BYTES, os.SEEK_END)
            return (first + file.read()).decode(errors="replace")
    except OSError:
        return ""


def left_by_ranks(folder: Path) -> List[Dict[str, Any]]:
    """Return what ranks of a failed start have left (trainer/ranks/failure_file.py), the earliest first."""
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and isinstance(record.get("message"), str):
            records.append(record)
    return sorted(records, key=_when)


class Record:
    """Files of one start of a task.

    Args:
        folder: of the job.
        task: number of the task; None: it is the only one.
        start: of this start, from 1.
    """

    def __init__(self, folder: Path, task: Optional[int], start: int) -> None:
        mark = "" if task is None else "-%d" % task
        self._number = start
        self._attempts = "attempt%s.start-" % mark
        self.folder = folder
        self.task = 0 if task is None else task
        self.log = folder / ("out%s.log" % mark)
        self.failures = folder / ("failures" + mark)
        self.ending = folder / ("state%s.json" % mark)
        self.attempt = folder / ("%s%d" % (self._attempts, start))
        self.standing = folder / ("standing" + mark)
        self.of_ranks = self._of_start(start)

    def _of_start(self, start: int) -> Path:
        """Return the folder of a start alone, which stays."""
        return self.failures.with_name(self.failures.name + ".d") / ("start-%d" % start)

    def begin(self, host: str, began: str) -> None:
        """Record that this start runs, for the next one, should its end go unseen.

        Args:
            host: of the batch script.
            began: when Slurm began it; "": unknown.

        Raises:
            OSError: the folder cannot be written to.
        """
        self.of_ranks.mkdir(parents=True, exist_ok=True)
        write(self.of_ranks / _BEGAN, began + "\n")
        self.leave(host, "the host of the batch script was lost during the start before")

    @property
    def is_open(self) -> bool:
        """Whether the next start would take up the note of this one."""
        return self.attempt.exists()

    def settle(self, why: str, *, is_failure: bool, code: Optional[int] = None, where: str = "") -> None:
        """Record what is known of the end of this start, before anybody is asked about it: the next start
        takes it up where this one does not live to act on it.
        """
        fields = ("failure" if is_failure else "", _shown(code), _line(where), _line(why))
        write(self.of_ranks / _SETTLED, "\t".join(fields) + "\n")

    def retract(self) -> None:
        """Withdraw what `settle` recorded: Slurm gave this start up before, which the next one counts."""
        _remove(self.of_ranks / _SETTLED)

    def leave(self, where: str, why: str) -> None:
        """Leave a note about this start for the next one, while its end is not recorded yet."""
        write(self.attempt, "%s\n%s\n" % (_line(where), _line(why)))

    def mark_noted(self) -> None:
        """Mark the failure as recorded; the next start, which Slurm begins by itself, limits the number of
        them.
        """
        write(self.attempt, "")

    def release(self) -> None:
        """Remove the note for the next start, and what was known before it could be removed."""
        _remove(self.attempt)
        self.retract()

    def earlier(self) -> List[Path]:
        """Return what earlier starts have left, the oldest first."""
        numbers = []
        for path in self.folder.glob(self._attempts + "*"):
            number = path.name[len(self._attempts) :]
            if number.isdigit() and int(number) < self._number:
                numbers.append((int(number), path))
        return [path for _, path in sorted(numbers)]

    def take_up(self, path: Path, preempted_at: str) -> bool:
        """Record the failure of an earlier start, unless that start has done so itself.

        Args:
            path: of its note.
            preempted_at: when the job was preempted last; "": never, or unknown.

        Returns:
            Whether it failed.
        """
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return False
        start = int(path.name[len(self._attempts) :])
        settled = _fields(self._of_start(start) / _SETTLED)
        began = "".join(read_words(self._of_start(start) / _BEGAN))
        _remove(path)
        if not lines:
            return True
        if len(settled) == 4 and not settled[0]:
            say("start %d is no failure: %s" % (start, settled[3]))
            return False
        if len(settled) == 4:
            self._append(settled[1], settled[2], settled[3])
            return True
        if began and preempted_at >= began:
            say("start %d is no failure: it was preempted" % start)
            return False
        self.note_failure(None, lines[0], "".join(lines[1:2]))
        return True

    def note_failure(self, code: Optional[int], where: str, why: str) -> None:
        """Append a line to `failures`: time, exit code (`-`: unseen), host or rank, why."""
        self._append(_shown(code), where, why)

    def _append(self, shown: str, where: str, why: str) -> None:
        try:
            with self.failures.open("a", encoding="utf-8") as file:
                file.write("\t".join((now(), shown, _line(where), _line(why))) + "\n")
        except OSError as error:  # a full disk: it is in the log at least
            say("failures cannot be written: %s" % error)
        say("failed (exit code %s): %s%s" % (shown, where + ": " if where else "", why))

    def count_failures(self) -> int:
        """Count the failed starts since somebody last removed the file."""
        try:
            return len(self.failures.read_bytes().splitlines())
        except OSError:
            return 0

    def forget_ending(self) -> None:
        """Remove the record of an earlier end: the task continues."""
        _remove(self.ending)

    def note_ending(self, state: str, code: int, hosts: Sequence[str], restarts: int) -> None:
        """Record how the task ended, for a Slurm without accounting: it forgets a job some minutes later."""
        task = {
            "task": self.task,
            "state": state,
            "exit_code": code,
            "hosts": list(hosts),
            "restarts": restarts,
            "ended": int(time.time()),
        }
        write(self.ending, json.dumps({"tasks": [task]}) + "\n")


def _when(record: Dict[str, Any]) -> float:
    time_s = record.get("time")
    return time_s if isinstance(time_s, (int, float)) else float("inf")


def _shown(code: Optional[int]) -> str:
    return "-" if code is None else str(code)


def _fields(path: Path) -> List[str]:
    """Return the fields of a line of ours; none where the file is missing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\t")
    except OSError:
        return []


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def read_words(path: Path) -> List[str]:
    """Return the words of a small file of ours; none where it is missing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return []


def write(path: Path, text: str) -> None:
    """Write a file whole, or not at all; report what a full disk does not take."""
    part = path.with_name(".%s.%d" % (path.name, os.getpid()))
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        _remove(part)
        say("%s cannot be written: %s" % (path.name, error))


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass
