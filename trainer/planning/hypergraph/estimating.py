"""What a placement over many ranks costs, from its layouts alone: messages of so many are not listed. Pure.

Bytes are those that the task lists would have, exactly (`traffic`). Seconds are added up as if nothing
overlapped: of each operation those of its slowest rank, of each tensor and variable those in which its
busiest rank sends or receives, and of each round a message's. That is what a search minimises.
"""

from __future__ import annotations

import numpy as np

from trainer.planning.hypergraph.groups import Group
from trainer.planning.hypergraph.judging import NEGLIGIBLE, Judged
from trainer.planning.hypergraph.machines import machine
from trainer.planning.hypergraph.traffic import Traffic
from trainer.planning.placement.operations import Network
from trainer.planning.placement.ways import Layouts, placed_shape
from trainer.planning.profile import Profile


class Estimates:
    """Estimates of the placements of a network.

    Args:
        network: whose shapes hold the samples of a micro-batch.
        profile: of the network, for so many ranks or more.
        ranks: that train.
        micro_batches: of an update.
    """

    def __init__(self, network: Network, profile: Profile, ranks: int, micro_batches: int) -> None:
        # Each operation by itself: rules may divide those of a group in different ways.
        self._operations = tuple(
            Group((one.name,), placed_shape(one), one.flops) for one in network.operations if one.readings
        )
        self._ranks, self._times = ranks, micro_batches
        self._traffic = Traffic(network, self._operations, micro_batches)
        self._machine = machine(network, self._operations, profile, ranks)

    def judged(self, label: str, layouts: Layouts) -> Judged:
        """Return what layouts of all operations cost."""
        divided = [layouts[one.names[0]] for one in self._operations]
        seconds = self._machine.seconds
        done = np.zeros_like(seconds)
        for number, held in enumerate(divided):
            size = float(np.prod(held.shape))
            for piece in held.pieces:
                done[number, piece.rank] += piece.box.size / size * seconds[number, piece.rank]
        crossing = [self._traffic.crossing(term, divided) for term in self._traffic.terms]
        links = sum(
            one.rounds * self._machine.latency_s + one.busiest / self._machine.bytes_per_second
            for one in crossing
        )
        # If all ranks were done at once, in proportion to their speeds.
        ideal = 1 / (1 / np.maximum(seconds, 1e-300)).sum(axis=1)
        counted = ideal > NEGLIGIBLE * ideal.sum()
        return Judged(
            label,
            layouts,
            self._traffic.total(divided),
            self._times * float(done.max(axis=1).sum()) + links,
            float(done.sum(axis=0).max() / ideal.sum()) - 1 if ideal.sum() > 0 else 0.0,
            float((done.max(axis=1)[counted] / ideal[counted]).max(initial=1.0)) - 1,
        )
