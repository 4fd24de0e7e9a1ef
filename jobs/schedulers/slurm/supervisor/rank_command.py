"""Build the command that starts the ranks of a job under Slurm, by mpirun or srun.

A command that would start no ranks, or each rank in a world of its own, is refused.
"""

import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from jobs.supervisor import mpirun_command
from jobs.supervisor.blame import LauncherWording
from jobs.supervisor.mpirun_command import Refused

# src/srun, src/api/step_launch.c of Slurm.
SRUN = LauncherWording(
    lost=re.compile(r"^srun: error: Node failure on (?P<host>[^\s,]+)", re.M),
    ended=re.compile(r"^srun: error: (?P<host>[^\s:]+): tasks? (?P<rank>[0-9,-]+): (?P<why>.+)", re.M),
)


class RankLauncher(NamedTuple):
    """How ranks are started.

    Attributes:
        name: `mpirun` or `srun`; "": the job is one process, which nothing starts.
        ranks_per_node: on each host.
        mpirun: as the site's profile names it; None: the one beside the program, else the one on PATH.
        mpi: plugin of srun.
        srun_options: further ones.
        outlives: whether ranks go on when another one dies: asynchronous training.
        contained: words of the command that start a container, before those that run in it.
    """

    name: str
    ranks_per_node: int
    mpirun: Optional[str] = None
    mpi: str = ""
    srun_options: Sequence[str] = ()
    outlives: bool = False
    contained: int = 0


class RankCommand(NamedTuple):
    """A command and all of its environment."""

    line: List[str]
    environment: Dict[str, str]


def prepare(
    launcher: RankLauncher, nodes: int, command: Sequence[str], inherited: Mapping[str, str]
) -> RankCommand:
    """Return the command for this task on `nodes` hosts: after the loss of one there may be fewer.

    Args:
        launcher: that is to be used.
        nodes: hosts of this start.
        command: of a rank.
        inherited: the environment so far.

    Raises:
        Refused: it cannot be started.
    """
    environment = dict(inherited)
    line = list(command)
    if launcher.name:
        # A job submitted with --export=NONE still hands its environment to the ranks.
        environment["SLURM_EXPORT_ENV"] = "ALL"
        ranks = nodes * launcher.ranks_per_node
        start = _srun if launcher.name == "srun" else _mpirun
        line = [*start(launcher, ranks, command, environment), *command]
    mpirun_command.need("apptainer" if launcher.contained else command[0])
    return RankCommand(line, environment)


def _srun(
    launcher: RankLauncher, ranks: int, command: Sequence[str], environment: Dict[str, str]
) -> List[str]:
    # Slurm 22.05 and 23.02 ask for one core per task unless told by this; the others read the other one.
    environment["SRUN_CPUS_PER_TASK"] = environment.get("SLURM_CPUS_PER_TASK", "1")
    if not re.search(
        r"(?<!\w)%s(?!\w)" % re.escape(launcher.mpi), mpirun_command.output_of(["srun", "--mpi=list"])
    ):
        raise Refused(
            "this srun cannot start MPI with --mpi=%s; use 'launcher: mpirun' in the site's profile."
            % launcher.mpi
        )
    # The first rank that fails ends the step, all its ranks with it; asynchronous training goes on.
    end = ["--kill-on-bad-exit=1"]
    if launcher.outlives:
        end = ["--kill-on-bad-exit=0", "--wait=0", "--no-kill"]
    return ["srun", "--mpi=" + launcher.mpi, *launcher.srun_options, "--ntasks=%d" % ranks, *end]


def _mpirun(
    launcher: RankLauncher, ranks: int, command: Sequence[str], environment: Dict[str, str]
) -> List[str]:
    # mpirun starts one daemon on each host by srun; with this it would get the cores of a single rank.
    environment.pop("SRUN_CPUS_PER_TASK", None)
    return mpirun_command.line(
        launcher.mpirun,
        ranks,
        command,
        environment,
        outlives=launcher.outlives,
        contained=launcher.contained,
    )
