"""Replicas of a divided network: alike, so that one is planned, and gradients are summed over all. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.errors import ConfigError
from trainer.planning.hypergraph import reference
from trainer.planning.hypergraph.candidates import Candidates
from trainer.planning.hypergraph.judging import MOST_LISTED
from trainer.planning.hypergraph.wanted import PartitionGoal
from trainer.planning.placement import boxes
from trainer.planning.placement.listing import buckets
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.units import Placement, regions
from trainer.planning.profile import Profile

Ints = NDArray[np.int64]
MOST_RANKS = MOST_LISTED
# Where samples allow, one that is chosen has no more: it is planned in seconds.
_FEW_RANKS = 16


def sizes(ranks: int, samples: int) -> list[int]:
    """Return how many ranks a replica may have, the fewest first; none where samples do not suffice.

    Args:
        ranks: that train.
        samples: of a micro-batch, of which each replica takes as many.
    """
    divisors = [
        size
        for size in range(1, min(ranks, MOST_RANKS) + 1)
        if ranks % size == 0 and samples % (ranks // size) == 0
    ]
    return [size for size in divisors if size <= _FEW_RANKS] or divisors[:1]


def best_size(
    network: Callable[[int], OperationGraph],
    ranks: int,
    samples: int,
    *,
    profile: Profile | None = None,
    micro_batches: int = 1,
) -> int:
    """Return how many ranks of a replica are predicted to take least, as far as cuts of one kind tell.

    Args:
        network: makes the network for a number of samples.
        ranks: that train.
        samples: of a micro-batch; `sizes` finds some for them.
        profile: of as many ranks as a replica may have; None: see `reference.profile`.
        micro_batches: of an update.
    """

    def seconds(size: int) -> float:
        one = network(samples * size // ranks)
        known = profile or reference.profile(one, max(2, size))
        took, held = Candidates(one, size, PartitionGoal("time"), known, micro_batches).sketch()
        others = ranks // size - 1
        return micro_batches * took + (between(2 * held * others / (others + 1), known) if others else 0.0)

    return min(sizes(ranks, samples), key=seconds)


def between(size: float, profile: Profile, rounds: int = 2) -> float:
    """Return the seconds in which a rank sends `size` bytes by the slowest link, in `rounds` rounds."""
    ranks = range(profile.ranks)
    links = [profile.link(source, target) for source in ranks for target in ranks if source != target]
    if not links:
        return 0.0
    return rounds * max(one.latency_s for one in links) + size / min(one.bytes_per_second for one in links)


def check_listed(ranks: int) -> None:
    """See that the ranks of a replica can train: each one lists the messages of all.

    Raises:
        ConfigError: they are too many for that.
    """
    if ranks > MOST_RANKS:
        raise ConfigError(
            f"train.strategy.replicas: a replica of a run has {MOST_RANKS} ranks at most, not {ranks}.",
            cure="Set train.strategy.replicas, so that each replica has fewer ranks; only `cingulum plan` "
            "divides a network over more.",
            key="train.strategy.replicas",
        )


@dataclass(frozen=True)
class Summed:
    """What gradients, new values of weights and statistics of batch norm cost each rank of all replicas.

    Arrays are `(ranks,)`; of statistics there is only what replicas send each other.

    Attributes:
        sent: bytes.
        received: bytes of gradients.
        messages: that are sent.
        owned: parameters that it updates.
        owned_bytes: of these.
        rounds: times that all ranks wait for each other.
    """

    sent: Ints
    received: Ints
    messages: Ints
    owned: Ints
    owned_bytes: Ints
    rounds: int


def summed(placement: Placement, ranks: int, replicas: int) -> Summed:
    """Return what sums over all replicas cost, message by message as `units.place` would have them.

    Args:
        placement: of one replica.
        ranks: of one replica.
        replicas: rank r of replica i is rank i * `ranks` + r.
    """
    count = ranks * replicas
    sent, received, messages, owned, owned_bytes = (np.zeros(count, np.int64) for _ in range(5))
    for paths in buckets(placement):
        # Whether a rank sends its part of a gradient to an owner, who sends the new value back.
        gives = np.zeros((count, count), np.bool_)
        for path in paths:
            width = placement.reductions[path].width
            for box, holders in regions(placement.holders[path]):
                all_of_them = np.add.outer(ranks * np.arange(replicas), holders).reshape(-1)
                own = _owned(box, len(all_of_them))
                sent[all_of_them] += width * (box.size - own + own * (len(own) - 1))
                received[all_of_them] += width * own * (len(own) - 1)
                owned[all_of_them] += own
                owned_bytes[all_of_them] += width * own
                gives[np.ix_(all_of_them, all_of_them[own > 0])] = True
        np.fill_diagonal(gives, val=False)
        messages += gives.sum(axis=0) + gives.sum(axis=1)
    statistics = list(_statistics(placement, ranks))
    for width, common in statistics:
        # Forwards to whoever needs a part, gradients back; to each of the other replicas alike.
        sent += (replicas - 1) * width * np.tile(common.sum(axis=0) + common.sum(axis=1), replicas)
        crosses = (common > 0).sum(axis=0) + (common > 0).sum(axis=1)
        messages += (replicas - 1) * np.tile(crosses, replicas)
    rounds = 2 + 2 * len(statistics) if replicas > 1 else 0
    return Summed(sent, received, messages, owned, owned_bytes, rounds)


def _statistics(placement: Placement, ranks: int) -> Iterator[tuple[int, Ints]]:
    """Of sums over samples: bytes of an element, and how many each rank has for each, `(ranks, ranks)`."""
    for operation in placement.network.operations:
        flow = placement.flows.get(operation.name)
        if flow is not None and operation.sums and operation.readings[0].axes[0] is None:
            common = np.zeros((ranks, ranks), np.int64)
            for have, need in itertools.product(flow.have.pieces, flow.need.pieces):
                if (part := have.box & need.box) is not None:
                    common[have.rank, need.rank] += part.size
            yield flow.width, common


def _owned(box: boxes.Box, holders: int) -> Ints:
    """Elements of a box that each of its holders owns; see `units.owners`."""
    if not box.shape:
        return np.array([1] + [0] * (holders - 1), np.int64)
    longest = max(box.shape)
    ranges = boxes.divided(longest, [1.0] * holders)
    return np.array([0 if one is None else one[1] - one[0] for one in ranges]) * (box.size // longest)
