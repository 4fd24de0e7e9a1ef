"""A cell of a study whose strategy is a peer, measured."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.peers import starting
from benchmarks.peers.job import PeerJob
from jobs.testbed import Testbed
from trainer.bench import hardware
from trainer.bench.scaling.cells import Cell, Counters, MeasuredCell
from trainer.errors import CingulumError, ConfigError

PREFIX = "peer:"


def job_of(cell: Cell) -> PeerJob:
    """Return the job of a cell's peer.

    Raises:
        InputError: an option that this peer has not, or servers that it cannot have.
    """
    return PeerJob(
        cell.strategy.removeprefix(PREFIX),
        model=cell.model,
        size=cell.size,
        width=cell.width,
        batch=cell.rank_batch,
        steps=cell.steps,
        ranks=cell.ranks,
        servers=cell.servers,
        options=cell.options,
    )


def hosts_of(cell: Cell, testbed: Testbed) -> list[str]:
    """Return the host of each process: ranks, servers, and their coordinator beside the first server."""
    names = [testbed.hosts[place] for place in cell.places()]
    if not cell.servers:
        return names
    # Colocated servers are processes of their own here, on the hosts of the first ranks.
    servers = names[cell.ranks :] or [names[server % cell.ranks] for server in range(cell.servers)]
    return [*names[: cell.ranks], *servers, servers[0]]


def measure(
    cell: Cell,
    testbed: Testbed | None,
    progress: Callable[[str], None],
    *,
    count: Callable[[], Counters] = dict,
) -> MeasuredCell:
    """Time the steps of a cell whose strategy is `peer:...`.

    Args:
        cell: what to measure; no training.
        testbed: its emulated hosts, their links already shaped; None for a cell on this host. A cell on
            real hosts gives a row with an error.
        progress: told what was measured.
        count: reads the interfaces' counters; called right before the timed steps and right after them.

    Returns:
        The row; with `error` where the peer is not installed, cannot do this, or failed.

    Raises:
        ConfigError: the cell is not a peer's.
    """
    if not cell.strategy.startswith(PREFIX) or cell.train:
        raise ConfigError(f"Not a peer's cell: {cell.describe()}.")
    if cell.hosts and testbed is None:
        return MeasuredCell(cell, error="peers are measured on this host or on a testbed, not on other hosts")
    counted: list[Counters] = []
    try:
        job = job_of(cell)
        if reason := starting.missing(job.peer):
            return MeasuredCell(cell, machine=hardware.here(), error=reason)
        found = starting.run(
            job,
            testbed=testbed,
            hosts=hosts_of(cell, testbed) if testbed else None,
            before=lambda: counted.append(count()),
            after=lambda: counted.append(count()),
        )
    except CingulumError as error:
        return MeasuredCell(cell, machine=hardware.here(), error=str(error))
    before, after = counted
    row = MeasuredCell.of_steps(cell, [rank["seconds"] for rank in found], before, after)
    progress(f"{cell.describe()}: measured {row.step_s['median']:.3f} s a step")
    return row
