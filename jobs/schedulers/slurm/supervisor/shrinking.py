"""Remove lost hosts from a job before its next start: only a waiting job can be changed."""

import os
import sys
from pathlib import Path
from typing import List, Optional, Sequence

from jobs.schedulers.slurm.supervisor.job_start import JobStart
from jobs.schedulers.slurm.supervisor.slurm_calls import SlurmCalls
from jobs.supervisor import launching
from jobs.supervisor.record import say

# Of other steps: srun refuses what does not fit its options.
_OF_OTHERS = (
    *("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK"),
    *("SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_NODE"),
)


class Shrinking:
    """Removes hosts from a job.

    Args:
        start: that has lost them.
        slurm: asked about this job.
        least: hosts that are enough; None: the job waits until all are back.
        nodes: hosts that it has now.
        ranks_per_node: on each of them.
        cores: of a rank.
        arguments: of this program, for its witness.
    """

    def __init__(
        self,
        start: JobStart,
        slurm: SlurmCalls,
        least: Optional[int],
        nodes: int,
        ranks_per_node: int,
        cores: int,
        arguments: Sequence[str],
    ) -> None:
        self._start = start
        self._slurm = slurm
        self._least = least
        self._nodes = nodes
        self._ranks = ranks_per_node
        self._cores = cores
        self._arguments = list(arguments)

    def do_without(self, lost: List[str]) -> None:
        """Change the job, unless a later start has begun."""
        if self._least is None or not lost:
            return
        names = ",".join(lost)
        left = self._nodes - len(lost)
        if left < self._least:
            say("waits for %s: %d hosts are left, and %d are needed" % (names, left, self._least))
            return
        facts = self._slurm.facts()
        if facts is None or not self._start.may_change_next(facts):
            say("waits for %s: this start is no longer the job's, or Slurm does not answer" % names)
            return
        ranks = left * self._ranks
        # All four, or no host fits any more.
        self._slurm.update(
            [
                "ExcNodeList=%s" % ",".join(filter(None, (facts.excluded, names))),
                "NumNodes=%d" % left,
                "NumTasks=%d" % ranks,
                "NumCPUs=%d" % (ranks * self._cores),
            ]
        )
        after = self._slurm.facts()
        if after is None or after.excluded == facts.excluded:
            say("waits for %s, as Slurm would not change the job" % names)
        else:
            say("continues with %d hosts, without %s" % (left, names))

    def start_witness(self) -> None:
        """Start a witness: when the host of this script is lost, nobody is left on it to change the job. So a
        step on another host waits for the TERM that Slurm sends there then. srun before Slurm 20.11 cannot
        start one.
        """
        if self._least is None or self._nodes < 2:
            return
        ours = [
            *(sys.executable, "-I", "-B", str(Path(__file__).resolve().parents[4])),
            *("--witness", self._start.host, "--hosts", self._slurm.hosts),
            *("--nodes", str(self._nodes), "--cores", str(self._cores)),
        ]
        step = ["srun", "--overlap", "--relative=1", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"]
        step += ["--cpus-per-task=1", "--mem=0", "--gres=none", "--mpi=none"]
        environment = {name: value for name, value in os.environ.items() if name not in _OF_OTHERS}
        environment["SLURM_EXPORT_ENV"] = "ALL"  # with --export=NONE it would find no scontrol
        launching.start_aside(step + ours + self._arguments, environment)

    def witness(self, log: Path) -> int:
        """As the step that `start_witness` starts: wait for TERM; where the script's host is down then, let
        the job do without it. Writes to the job's log."""
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        while launching.next_signal() != "TERM":
            pass
        down = self._slurm.ask_down_hosts().answer()
        if down and self._start.host in down:
            self.do_without(down)
        return 0
