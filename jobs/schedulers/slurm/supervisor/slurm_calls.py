"""Slurm's commands for a supervisor. Each ends in time; without an answer it returns None or False.

A question runs beside what the supervisor does: a controller may take longer than Slurm leaves to a start.
"""

import os
import re
import subprocess
import time
from typing import Any, Callable, List, Optional, Sequence

from jobs.schedulers.slurm.supervisor.job_start import JobRecord

ASK_S = 30.0
CHANGE_S = 60.0
_LOOK_S = 0.02
_PART = 65536
_NOTHING = ("", "(null)", "None", "N/A")


def facts_of(text: str) -> Optional[JobRecord]:
    """Parse `scontrol show job -o` of one job; None: the text is of another form.

    Fields are taken at their first place: all of them stand before those that hold what users chose, such as
    paths, but for the job's name, which has no blanks (jobs/schedulers/slurm/script.py).
    """

    def field(name: str) -> str:
        return _field(text, name)

    if not field("JobState") or not field("Restarts").isdigit():
        return None
    preempted_at = _time(field("PreemptTime"))
    return JobRecord(
        state=field("JobState"),
        restarts=int(field("Restarts")),
        batch_host=field("BatchHost"),
        reason=field("Reason"),
        preempted=bool(preempted_at) and not preempted_at < field("StartTime"),
        excluded=field("ExcNodeList"),
        preempted_at=preempted_at,
    )


def _field(text: str, name: str) -> str:
    found = re.search(r"(?:^| )%s=(\S*)" % name, text)
    return found.group(1) if found and found.group(1) not in _NOTHING else ""


def _time(text: str) -> str:
    return text if text.startswith("2") else ""  # Unknown, None


def down_of(text: str) -> List[str]:
    """Parse hosts that are down, or no longer answer Slurm, of `sinfo -N -o "%N %T"`."""
    lines = [line.split() for line in text.splitlines()]
    return sorted({line[0] for line in lines if len(line) == 2 and re.match(r"down|fail|.*[*]$", line[1])})


class Question:
    """A command under way, and what its output is parsed to: None where it fails, or does not end in time.

    It inherits that TERM is blocked (`processes.hold_signals`): Slurm sends that to every process of a job.

    Args:
        line: the command.
        limit_s: seconds that it may take.
        parse: makes the answer of its output.
    """

    def __init__(self, line: Sequence[str], limit_s: float, parse: Callable[[str], Any]) -> None:
        self._parse = parse
        self._until = time.monotonic() + limit_s
        self._output = b""
        self._process = None  # type: Optional[subprocess.Popen[bytes]]
        try:
            # A pipe, since the host's disk may be full. Its end is not waited for: what the command leaves
            # running may hold it open.
            self._process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            os.set_blocking(_pipe(self._process), False)
        except OSError:
            pass

    @property
    def is_over(self) -> bool:
        """Whether there is an answer, or there will be none; ends a command that takes too long."""
        if self._process is None:
            return True
        has_ended = self._process.poll() is not None
        self._read(self._process)
        if not has_ended and time.monotonic() < self._until:
            return False
        if not has_ended:
            self._process.kill()
            self._process.wait()
        return True

    def _read(self, process: "subprocess.Popen[bytes]") -> None:
        """Read what is there: a command that has more to say than a pipe holds would wait."""
        while True:
            try:
                part = os.read(_pipe(process), _PART)
            except BlockingIOError:
                return
            if not part:
                return
            self._output += part

    def answer(self) -> Any:
        """Return the answer; waits for it."""
        while not self.is_over:
            time.sleep(_LOOK_S)
        if self._process is None or self._process.returncode != 0:
            return None
        return self._parse(self._output.decode(errors="replace"))


def _pipe(process: "subprocess.Popen[bytes]") -> int:
    if process.stdout is None:
        raise OSError("no pipe")
    return process.stdout.fileno()


class SlurmCalls:
    """Slurm's commands for one job.

    Args:
        label: what Slurm calls it: 4711, or 4711_3 for a task of an array.
        hosts: those of this start, in Slurm's short form.

    Attributes:
        began: when Slurm began the start that it told of last, by its own clock; "": unknown.
    """

    def __init__(self, label: str, hosts: str) -> None:
        self.label = label
        self.hosts = hosts
        self.began = ""

    def ask_facts(self) -> Question:
        """Ask for Slurm's record of the job, `JobRecord`."""
        return Question(["scontrol", "show", "job", "-o", self.label], ASK_S, self._facts)

    def ask_down_hosts(self) -> Question:
        """Ask for the hosts of this start that are down, or no longer answer Slurm, a list of names."""
        return Question(["sinfo", "-h", "-a", "-N", "-n", self.hosts, "-o", "%N %T"], ASK_S, down_of)

    def ask_host_names(self) -> Question:
        """Ask for the hosts of this start, one by one."""
        return Question(["scontrol", "show", "hostnames", self.hosts], ASK_S, str.split)

    def facts(self) -> Optional[JobRecord]:
        """Return Slurm's record of the job; waits for it."""
        facts = self.ask_facts().answer()  # type: Optional[JobRecord]
        return facts

    def _facts(self, text: str) -> Optional[JobRecord]:
        self.began = _time(_field(text, "StartTime"))
        return facts_of(text)

    def requeue(self) -> bool:
        """Put the job back into the queue; return whether Slurm did."""
        return Question(["scontrol", "requeue", self.label], CHANGE_S, str).answer() is not None

    def update(self, changes: Sequence[str]) -> None:
        """Change the waiting job. The exit code says little: check afterwards."""
        Question(["scontrol", "update", "JobId=" + self.label, *list(changes)], CHANGE_S, str).answer()
