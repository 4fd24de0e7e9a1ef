"""Seconds and bytes of reductions and parameter servers over the links of a cluster, round by round. Pure.

Rounds are those of `planning.communication`. All flows of a round share their links so that they end
together: it lasts as long as its busiest link, and the longest latency. Rounds alike are computed once.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from trainer.config.strategy import Algorithm
from trainer.planning import communication
from trainer.planning.communication import Flow
from trainer.planning.simulation.fabric import ClusterFabric, Fabric, Resource

Way = Algorithm | Literal["by-host"]
# Flows of an exchange; more take minutes.
MOST_FLOWS = 2_000_000


@dataclass(frozen=True)
class Exchanged:
    """What an exchange costs; each size adds to the seconds in proportion.

    Attributes:
        latency_s: of all rounds.
        transfer_s: in which bytes pass, all rounds together.
        sent: bytes that the process with most sends.
        all_sent: bytes that all processes send together.
        limit: the link that lasts longest, in words; empty where nothing is sent.
    """

    latency_s: float
    transfer_s: float
    sent: float
    all_sent: float
    limit: str = ""

    @property
    def seconds(self) -> float:
        """From the first byte to the last."""
        return self.latency_s + self.transfer_s

    def of(self, size: float, messages: int = 1) -> Exchanged:
        """Return the cost of `size` times the bytes, in `messages` exchanges one after the other."""
        return Exchanged(
            messages * self.latency_s,
            size * self.transfer_s,
            size * self.sent,
            size * self.all_sent,
            self.limit,
        )


@dataclass(frozen=True)
class WholeUpdate:
    """An update on a cluster by ranks that each hold the whole network, as a strategy says it.

    Attributes:
        way: how the work is divided, in words.
        workers: ranks that compute.
        micro_batch: samples that each takes of each micro-batch.
        exchanged: what its messages cost.
        parts: bytes, or shares, of what leaves in one message, in the order of the backward pass.
        sum_s: seconds in which the workers add up a number.
        servers: that apply an equal share of the update each; 0: every worker applies all of it.
        memory_bytes: that a rank needs; None: as much as the network and its update.
    """

    way: str
    workers: int
    micro_batch: int
    exchanged: Exchanged
    parts: Sequence[float]
    sum_s: float
    servers: int = 0
    memory_bytes: int | None = None


def cost(rounds: Iterable[tuple[tuple[Flow, ...], int]], fabric: Fabric) -> Exchanged:
    """Return what rounds cost.

    Args:
        rounds: each with how often it comes in a row, as `communication.repeated` says it.
        fabric: knows the way between each two processes.
    """
    latency = transfer = everything = 0.0
    sent: dict[int, float] = collections.defaultdict(float)
    longest: tuple[float, str] = (0.0, "")
    for flows, times in rounds:
        loads: dict[Resource, float] = collections.defaultdict(float)
        slowest = 0.0
        for flow in flows:
            if flow.source == flow.target:
                continue
            path = fabric.path(flow.source, flow.target)
            slowest = max(slowest, path.latency_s)
            sent[flow.source] += times * flow.size
            everything += times * flow.size
            for resource in path.resources:
                loads[resource] += flow.size
        if not loads:
            continue
        busiest = max(loads, key=lambda one: loads[one] / fabric.capacity(one))
        lasts = loads[busiest] / fabric.capacity(busiest)
        latency += times * slowest
        transfer += times * lasts
        longest = max(longest, (times * lasts, _named(busiest)))
    return Exchanged(latency, transfer, max(sent.values(), default=0.0), everything, longest[1])


def all_reduce(way: Way, fabric: ClusterFabric) -> Exchanged:
    """Return what an all-reduce of 1 byte over all ranks of a cluster costs.

    Args:
        way: an algorithm of `train.strategy.algorithm`; `by-host`: a ring within each host, a ring of each
            device's sums over the hosts, and back, as NCCL and Horovod's hierarchical all-reduce do it.
        fabric: of the ranks.
    """
    ranks = fabric.ranks
    if ranks == 1:
        return Exchanged(0.0, 0.0, 0.0, 0.0)
    if way == "by-host":
        return cost(_by_host(fabric), fabric)
    if way in ("ring", "segmented-ring"):
        return ring(fabric, ranks)
    return cost(communication.repeated(communication.reduction(way, 1.0, ranks)), fabric)


def ring(fabric: Fabric, ranks: int) -> Exchanged:
    """Return what an all-reduce of 1 byte costs that goes round a ring of these ranks."""
    if ranks == 1:
        return Exchanged(0.0, 0.0, 0.0, 0.0)
    # Not as a tuple of 2(n-1) rounds: at 100,000 ranks that alone is long.
    flows = tuple(Flow(rank, (rank + 1) % ranks, 1 / ranks) for rank in range(ranks))
    return cost([(flows, 2 * (ranks - 1))], fabric)


class Direct:
    """What groups of ranks that hold the same parameters send each other to add up their gradients.

    Each rank of a group shares its parameters with the same rank of the other groups; each of them owns an
    equal part of these, to which the others send theirs, and which it sends back (decision 52).

    Args:
        size: ranks of a group.
        groups: one after the other.
        fabric: of all ranks.
    """

    def __init__(self, size: int, groups: int, fabric: Fabric) -> None:
        self._size, self._groups, self._fabric = size, groups, fabric
        # Of each rank of a group: the longest latency, and messages over each resource.
        self._latency_s = [0.0] * size
        self._messages: list[Counter[Resource]] = [Counter() for _ in range(size)]
        for rank in range(size):
            for one, other in itertools.permutations(range(groups), 2):
                path = fabric.path(one * size + rank, other * size + rank)
                self._latency_s[rank] = max(self._latency_s[rank], path.latency_s)
                self._messages[rank].update(path.resources)

    def of(self, owned: Sequence[float]) -> Exchanged:
        """Return what it costs to add up gradients at their owners, and to hand out new weights, two rounds.

        Args:
            owned: bytes that each rank of a group holds.
        """
        loads: dict[Resource, float] = collections.defaultdict(float)
        for messages, held in zip(self._messages, owned, strict=True):
            for resource, count in messages.items():
                loads[resource] += count * held / self._groups
        seconds = {one: size / self._fabric.capacity(one) for one, size in loads.items() if size}
        busiest = max(seconds, key=seconds.__getitem__, default="")
        others = self._groups - 1
        return Exchanged(
            2 * max((s for s, held in zip(self._latency_s, owned, strict=True) if held), default=0.0),
            2 * seconds.get(busiest, 0.0),
            2 * others / self._groups * max(owned),
            2 * others * math.fsum(owned),
            _named(busiest),
        )


def _by_host(fabric: ClusterFabric) -> list[tuple[tuple[Flow, ...], int]]:
    members: dict[int, list[int]] = collections.defaultdict(list)
    across: dict[int, list[int]] = collections.defaultdict(list)
    for rank in range(fabric.ranks):
        members[fabric.host(rank)].append(rank)
    fewest = min(map(len, members.values()))
    # With hosts of unequal numbers of ranks, the first ones of each carry all.
    for ranks in members.values():
        for place, rank in enumerate(ranks[:fewest]):
            across[place].append(rank)
    inside = tuple(
        itertools.chain.from_iterable(_ring(r, 1 / len(r)) for r in members.values() if len(r) > 1)
    )
    between = tuple(
        itertools.chain.from_iterable(_ring(r, 1 / fewest / len(r)) for r in across.values() if len(r) > 1)
    )
    most = max(map(len, members.values()))
    rounds = [(inside, most - 1), (between, 2 * (len(members) - 1)), (inside, most - 1)]
    return [(flows, times) for flows, times in rounds if flows and times]


def _ring(ranks: Sequence[int], size: float) -> Iterator[Flow]:
    return (Flow(one, ranks[(at + 1) % len(ranks)], size) for at, one in enumerate(ranks))


def _named(resource: Resource) -> str:
    return str(resource[0] if isinstance(resource, tuple) else resource)
