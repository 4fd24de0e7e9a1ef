"""The command line of an mpirun launch, as a pure function."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.errors import WorldError

# MPI's and our own settings reach ranks on other hosts only when mpirun is told to send them.
_FORWARDED = ("CINGULUM_", "HOROVOD_", "TF_", "NCCL_", "OMP_", "PYTHONPATH", "LD_LIBRARY_PATH")


def command(
    ranks: int,
    argv: Sequence[str],
    *,
    hosts: Mapping[str, int] | None = None,
    cores: int | None = None,
    root: bool | None = None,
) -> tuple[list[str], dict[str, str]]:
    """What to run, and what to add to the environment, to start `argv` on so many ranks.

    Args:
        ranks: the world size.
        argv: the program and its arguments, the same on every rank.
        hosts: ranks that fit on each host, by name; default: this host.
        cores: cores of this host; default: those this process may use.
        root: whether we are root, which Open MPI wants confirmed; default: found out.

    Returns:
        The argument list, and the environment's additions.

    Raises:
        WorldError: there is no mpirun, or the hosts do not have room for so many ranks.
    """
    if ranks < 1:
        raise WorldError(f"{ranks} ranks cannot be launched.", cure="Give 1 or more.")
    line = [find(), "-np", str(ranks)]
    if hosts is not None:
        room = sum(hosts.values())
        if room < ranks:
            raise WorldError(f"{ranks} ranks do not fit on hosts with room for {room}.")
        line += ["--host", ",".join(f"{name}:{slots}" for name, slots in hosts.items())]
        for key in sorted(os.environ):
            if key.startswith(_FORWARDED):
                line += ["-x", key]
    else:
        cores = len(os.sched_getaffinity(0)) if cores is None else cores
        if ranks > cores:
            line += ["--oversubscribe"]
    # Ranks that share cores must be free to move; a rank with its own cores keeps them by number of
    # threads, not by binding: Horovod's thread would be bound to the same core as the computation.
    line += ["--bind-to", "none"]
    is_root = os.geteuid() == 0 if root is None else root
    environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if is_root else {}
    return [*line, *argv], environment


def find() -> str:
    """Path of the mpirun of this Python environment, else of the site.

    Raises:
        WorldError: there is none.
    """
    beside = Path(sys.executable).parent / "mpirun"
    if beside.exists():
        return str(beside)
    found = shutil.which("mpirun")
    if found is None:
        raise WorldError("mpirun was not found.", cure="Run `make setup`, or load your site's MPI.")
    return found
