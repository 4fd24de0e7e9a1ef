"""Build the command by which Open MPI's mpirun starts the ranks of a job.

A command that would start no ranks, or each rank in a world of its own, is refused.
"""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from jobs.supervisor import launching

# A host that no longer answers is missed after 40 s, not after 8 minutes.
KEEPALIVE = {"oob_tcp_keepalive_time": "10", "oob_tcp_keepalive_intvl": "10", "oob_tcp_keepalive_probes": "3"}
# What the mpirun of another MPI says of its version: seen of Intel MPI 2021.18 and MPICH 5.0.
OTHER_MPIS = {
    "Intel(R) MPI": "Intel MPI",
    "HYDRA": "MPICH, or of an MPI made from it, such as Cray MPICH or MVAPICH",
}
_NO_TERM = "--block-signal=TERM"
# An image may have to be unpacked first.
_ASK_S = 120.0


class Refused(Exception):
    """The ranks cannot be started in this way: bad input, which stays bad."""


def whose(said: str) -> Optional[str]:
    """Return the MPI to which an mpirun with this version text belongs; None: it may be Open MPI's."""
    return next((name for mark, name in OTHER_MPIS.items() if mark in said), None)


def line(
    mpirun: Optional[str],
    ranks: int,
    command: Sequence[str],
    environment: Dict[str, str],
    *,
    outlives: bool,
    contained: int,
) -> List[str]:
    """Return the words before a command that start ranks of it on the hosts of an allocation.

    Args:
        mpirun: as the site's profile names it; None: the one beside the program, else the one on PATH.
        ranks: how many.
        command: of a rank.
        environment: of mpirun; what it needs is added.
        outlives: whether ranks go on when another one dies.
        contained: words of the command that start a container, before those that run in it.

    Raises:
        Refused: it cannot be started so.
    """
    mpirun = mpirun or _beside(command, "mpirun") or "mpirun"
    _check(mpirun, command[:contained])
    if os.getuid() == 0:  # only in containers and on testbeds
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    # A scheduler may send SIGTERM to every process when it takes the hosts away. The ranks save; mpirun and
    # its daemons would kill them within a second, so they do not get it (coreutils 8.31 or newer).
    without_term = ["env"]
    if launching.ends_well(["env", _NO_TERM, "true"]):
        without_term.append(_NO_TERM)
    # Open MPI 5 has other names for what Open MPI 4 is told here, and passes over those.
    environment["PRTE_MCA_prte_launch_agent"] = " ".join([*without_term, "prted"])
    program = [mpirun]
    if outlives:
        environment["PRTE_MCA_state_base_recoverable"] = "1"
        program += ["--mca", "orte_enable_recovery", "1"]
        python = _beside(command, "python")
        if python and launching.ends_well([python, "-c", "import jobs.local.surviving"]):
            # Which gives mpirun the same, and ends it when the run says so.
            program = [python, "-m", "jobs.local.surviving", mpirun]
    words = [*without_term, *program, "-np", str(ranks)]
    words += ["--mca", "orte_launch_agent", " ".join([*without_term, "orted"])]
    for name, value in KEEPALIVE.items():
        words += ["--mca", name, value]
    # Not bound to cores: Horovod's thread would share the one of its rank.
    return [*words, "--bind-to", "none"]


def _beside(command: Sequence[str], name: str) -> Optional[str]:
    """Return a program in the folder of the command, which belongs to the MPI that it was built with."""
    path = Path(command[0]).with_name(name)
    return str(path) if path.is_absolute() and os.access(str(path), os.X_OK) else None


def _check(mpirun: str, container: Sequence[str]) -> None:
    need(mpirun)
    here = socket.gethostname()
    output = output_of([mpirun, "--version"])
    if whose(output):  # each of its ranks would train alone
        raise Refused(
            "%s on %s belongs to MPICH, Cray MPICH or Intel MPI. Horovod is built with Open MPI here: "
            "load a module with it, or name its mpirun in the site's profile." % (mpirun, here)
        )
    if container:
        outside, inside = _series(output), _series(output_of([*container, "mpirun", "--version"]))
        if outside and inside and outside != inside:  # ranks in the image would not find each other
            raise Refused(
                "Open MPI is %s on %s (%s) and %s in the image. Build the image with the host's version "
                "(--build-arg OPENMPI=...), or load another module." % (outside, here, mpirun, inside)
            )


def need(program: str) -> None:
    """Refuse a program that is not here.

    Raises:
        Refused: it is not.
    """
    if shutil.which(program) is None:
        raise Refused("%s: there is no such program on %s." % (program, socket.gethostname()))


def _series(said: str) -> str:
    found = re.search(r"Open MPI\) (\d+\.\d+)", said)
    return found.group(1) if found else ""


def output_of(line: Sequence[str]) -> str:
    """Return a command's output, whether it fails or not; "": it takes too long, or does not exist."""
    try:
        done = subprocess.run(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ASK_S,
            check=False,
            preexec_fn=launching.free_signals,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
