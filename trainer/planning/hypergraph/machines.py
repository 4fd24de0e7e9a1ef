"""What a search goes by of a profile: seconds of groups, and links. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trainer.planning.hypergraph.groups import OperationGroup
from trainer.planning.hypergraph.search import Machine
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.profile import Profile

# Links are unequal where one takes so much longer for a byte than another.
_UNEQUAL = 1.5


def machine(network: OperationGraph, some: Sequence[OperationGroup], profile: Profile, ranks: int) -> Machine:
    """Return what a search goes by: seconds of each group on each rank, and the slowest link."""
    samples = network.operations[-1].shape[0]
    seconds = np.zeros((len(some), ranks))
    for number, group in enumerate(some):
        for one in map(profile.operation, group.names):
            both = np.array(one.forward_s[:ranks]), np.array(one.backward_s[:ranks])
            seconds[number] += both[0] * samples / profile.batch + both[1] * samples / profile.batch
    # Most profiles share a link between many pairs of ranks.
    links = {id(one): one for row in profile.links[:ranks] for one in row[:ranks] if one is not None}.values()
    return Machine(
        seconds,
        max((one.latency_s for one in links), default=0.0),
        min((one.bytes_per_second for one in links), default=math.inf),
    )


def distances(profile: Profile, ranks: int) -> list[list[float]] | None:
    """Return the seconds of a byte from each rank to each other one; None where links are about equal."""
    seconds = [
        [0.0 if s == t else 1 / profile.link(s, t).bytes_per_second for t in range(ranks)]
        for s in range(ranks)
    ]
    each = [one for row in seconds for one in row if one > 0]
    return seconds if each and max(each) > _UNEQUAL * min(each) else None
