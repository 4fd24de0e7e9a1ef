"""Slurm's commands for a supervisor. Each ends in time; without an answer it returns None or False."""

import re
import subprocess
from typing import List, Optional, Sequence

from jobs.supervisor.decisions import Facts

ASK_S = 30.0
CHANGE_S = 60.0
_NOTHING = ("", "(null)", "None", "N/A")


def facts_of(text: str) -> Optional[Facts]:
    """Parse `scontrol show job -o` of one job; None: the text is of another form.

    Fields are taken at their first place: all of them stand before those that hold what users chose, such as
    paths, but for the job's name, which has no blanks (jobs/rendering.py).
    """

    def field(name: str) -> str:
        found = re.search(r"(?:^| )%s=(\S*)" % name, text)
        return found.group(1) if found and found.group(1) not in _NOTHING else ""

    if not field("JobState") or not field("Restarts").isdigit():
        return None
    preempted_at = field("PreemptTime")
    return Facts(
        state=field("JobState"),
        restarts=int(field("Restarts")),
        batch_host=field("BatchHost"),
        reason=field("Reason"),
        preempted=preempted_at.startswith("2") and not preempted_at < field("StartTime"),
        excluded=field("ExcNodeList"),
    )


class Slurm:
    """Slurm's commands for one job.

    Args:
        label: what Slurm calls it: 4711, or 4711_3 for a task of an array.
        hosts: those of this start, in Slurm's short form.
    """

    def __init__(self, label: str, hosts: str) -> None:
        self.label = label
        self.hosts = hosts

    def facts(self) -> Optional[Facts]:
        """Return Slurm's record of the job."""
        said = _ask(["scontrol", "show", "job", "-o", self.label], ASK_S)
        return facts_of(said) if said is not None else None

    def requeue(self) -> bool:
        """Put the job back into the queue; return whether Slurm did."""
        return _ask(["scontrol", "requeue", self.label], CHANGE_S) is not None

    def update(self, changes: Sequence[str]) -> None:
        """Change the waiting job. The exit code says little: check afterwards."""
        _ask(["scontrol", "update", "JobId=" + self.label, *list(changes)], CHANGE_S)

    def down_hosts(self) -> Optional[List[str]]:
        """Return hosts of this start that are down, or no longer answer Slurm; None: unknown."""
        said = _ask(["sinfo", "-h", "-a", "-N", "-n", self.hosts, "-o", "%N %T"], ASK_S)
        if said is None:
            return None
        lines = [line.split() for line in said.splitlines()]
        return sorted(
            {line[0] for line in lines if len(line) == 2 and re.match(r"down|fail|.*[*]$", line[1])}
        )

    def host_names(self) -> List[str]:
        """Return the hosts of this start, one by one."""
        return (_ask(["scontrol", "show", "hostnames", self.hosts], ASK_S) or "").split()


def _ask(line: Sequence[str], limit_s: float) -> Optional[str]:
    """Return a command's output; None: it fails, does not exist, or takes too long.

    It inherits that TERM is blocked (`processes.hold_signals`): Slurm sends that to every process of a job.
    """
    try:
        done = subprocess.run(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
