"""The command line that starts the processes of a cell where they belong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from jobs.local import mpirun
from jobs.schedulers import registry
from jobs.testbed import Testbed
from jobs.testbed.layout import LINK
from trainer.bench.scaling.cells import Cell
from trainer.errors import WorldError

_ON_LINK = {"OMPI_MCA_btl_tcp_if_include": LINK, "OMPI_MCA_oob_tcp_if_include": LINK}


def command(
    cell: Cell,
    argv: Sequence[str],
    *,
    testbed: Testbed | None = None,
    hosts: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the command line that starts `argv` as every process of a cell, and its environment.

    Args:
        cell: says how many there are, and on which hosts; rank r of mpirun is process r of `cell.places()`.
        argv: the program and its arguments.
        testbed: that emulates the hosts.
        hosts: names of real hosts, such as an allocation's; not with a testbed.
        environment: set for all processes.

    Raises:
        WorldError: there is no mpirun, or the cell needs more hosts than there are.
    """
    settings = [f"{name}={value}" for name, value in (environment or {}).items()]
    # By `env`, not by our own environment: mpirun hands that down to the processes of this host only.
    words = ["env", *settings, *argv] if settings else list(argv)
    if not cell.hosts:
        line, additions = mpirun.command(cell.processes, words)
        # In an allocation mpirun would spread them over all of its nodes.
        allocation = registry.allocation()
        return line, {**additions, **(allocation.hidden if allocation else {})}
    names = testbed.hosts if testbed is not None else tuple(hosts or ())
    if cell.machines > len(names):
        raise WorldError(f"The cell needs {cell.machines} hosts, and there are {len(names)}.")
    slots = Counter(cell.places())
    placed = {names[place]: slots[place] for place in range(cell.machines)}
    if testbed is not None:
        return on_testbed(testbed, placed, words), {}
    line, additions = mpirun.command(cell.processes, words, hosts=placed)
    # An allocation may have fewer slots on a host than the cell has ranks for it.
    return line, {**additions, "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def on_testbed(testbed: Testbed, hosts: Mapping[str, int], argv: Sequence[str]) -> list[str]:
    """Return the command line that starts on each emulated host its number of ranks, over its link only."""
    line, additions = mpirun.command(sum(hosts.values()), argv, hosts=dict(hosts))
    return testbed.argv(next(iter(hosts)), line, environment={**additions, **_ON_LINK})
