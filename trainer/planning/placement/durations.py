"""Seconds that a rank works on a task, by the profile. Pure.

A part of an operation takes the share of its seconds that the part has of the elements of the output, or,
where the operation adds up its input, of the input. An update takes time in proportion to the parameters
that the rank updates. Sending and receiving take what the profile has for handling messages, and waiting for
them comes on top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainer.planning.placement.operations import Operation
from trainer.planning.placement.tasks import (
    Compute,
    Differentiate,
    Receive,
    Recompute,
    Send,
    Task,
    UpdateOwned,
)
from trainer.planning.placement.units import Placement, Unit
from trainer.planning.profile import Profile


def share(operation: Operation, unit: Unit) -> float:
    """Return the part of an operation's work that a unit of it is, 0 to 1; see the top of this file."""
    if operation.sums and unit.reads[0] is not None:
        return unit.reads[0].size / math.prod(operation.readings[0].shape)
    return unit.box.size / math.prod(operation.shape)


class Durations:
    """Seconds of the tasks of a placement.

    Args:
        placement: its network's shapes hold the samples of a micro-batch, to which seconds are scaled.
        profile: of the same network, with as many ranks or more.
        updated: parameters that each rank updates.
    """

    def __init__(self, placement: Placement, profile: Profile, updated: Mapping[int, int]) -> None:
        self._operations = {one.name: one for one in placement.network.operations}
        self._samples = placement.network.operations[-1].shape[0]
        self._profile, self._updated = profile, updated

    def of(self, rank: int, task: Task) -> float:
        """Return the seconds that a rank computes, or handles a bundle of messages.

        Raises:
            InputError: the profile is of another network.
        """
        if isinstance(task, UpdateOwned):
            return self._profile.update_s(rank, self._updated[rank])
        if isinstance(task, Send | Receive):
            return self._profile.handling_s(rank, sum(one.bytes for one in task.messages))
        is_forward = isinstance(task, Compute | Recompute)
        of = self._profile.forward_s if is_forward else self._profile.backward_s
        name = task.unit.operation
        # A convolution's gradient of its inputs takes about as long as that of its weights.
        part = 0.5 if isinstance(task, Differentiate) and task.of != "all" else 1.0
        whole = of(name, rank, self._samples)
        return self._profile.each_s(rank) + part * whole * share(self._operations[name], task.unit)
