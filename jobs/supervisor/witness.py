"""A step on another host than that of the batch script, which waits until Slurm ends it."""

import os
from pathlib import Path

from jobs.supervisor import processes
from jobs.supervisor.decisions import Start
from jobs.supervisor.shrinking import Shrinking
from jobs.supervisor.slurm_calls import Slurm


def wait(start: Start, slurm: Slurm, shrinking: Shrinking, log: Path) -> int:
    """Wait for TERM; where the script's host is down, let the job do without it. Writes to the job's log."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    while processes.next_signal() != "TERM":
        pass
    down = slurm.down_hosts()
    if down and start.host in down:
        shrinking.do_without(down)
    return 0
