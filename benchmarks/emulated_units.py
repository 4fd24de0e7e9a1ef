"""A placed network on an emulated accelerator: its units compute nothing, but take as long as one would.

Convolutions and dense layers take the time of their FLOPs; the gradients of their inputs and of their weights
take the same time each. All other operations take none. Results are zeros of the right shapes. What ranks
send each other, and how it is cut and joined, is real, and so are loss and optimizer.
"""

from __future__ import annotations

import ctypes
import dataclasses
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.planning.placement import costs
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.tasks import Compute, Differentiate, Recompute, Task
from trainer.planning.placement.units import Placement, Unit
from trainer.strategies.learner import Setup
from trainer.strategies.placed import computing
from trainer.strategies.placed.gradients import UnitRecord
from trainer.strategies.placed.learner import PlacedModel
from trainer.strategies.placed.plan import PlacedPlan
from trainer.strategies.placed.player import Loss, Player
from trainer.strategies.placed.reading import LOSS
from trainer.strategies.placed.wire import Wire

KINDS = ("convolution", "transposed", "dense")
_PR_SET_TIMERSLACK = 29
_AWAKE_S = 5e-4


class Accelerator:
    """A device that does one thing at a time.

    Args:
        flops_per_second: its speed.

    Attributes:
        busy_s: how long it has been busy, as measured.
    """

    def __init__(self, flops_per_second: float) -> None:
        self._speed, self._free, self.busy_s = flops_per_second, threading.Lock(), 0.0
        self._system = ctypes.CDLL(None)

    def work(self, flops: float, after: Sequence[Any]) -> list[Any]:
        """Return operations that wait as long as these FLOPs take, once the tensors `after` are there."""
        if not flops:
            return list(after)

        def wait() -> np.int32:
            with self._free:
                began = time.perf_counter()
                # Linux lets a thread sleep for up to 50 us longer than it asks for, and a core of a virtual
                # machine wakes late from a long sleep: the last bit is waited for awake.
                self._system.prctl(_PR_SET_TIMERSLACK, 1)
                time.sleep(max(0.0, flops / self._speed - _AWAKE_S))
                while time.perf_counter() - began < flops / self._speed:
                    pass
                self.busy_s += time.perf_counter() - began
            return np.int32(0)

        with tf.control_dependencies(after):
            return [tf.numpy_function(wait, [], tf.int32)]


def work_of(network: OperationGraph, unit: Unit) -> float:
    """Return the FLOPs of a unit's forward pass that take time."""
    operation = network[unit.operation]
    return operation.flops * costs.share(operation, unit) if operation.kind in KINDS else 0.0


def backward_work_of(network: OperationGraph, unit: Unit, *, inputs: bool, weights: bool) -> float:
    """Return the FLOPs of a unit's gradients that take time: each of the two as many as the forward pass.

    Nobody asks for the gradient of the network's own input.
    """
    reads = any(network[one.tensor].readings for one in network[unit.operation].readings)
    return ((inputs and reads) + weights) * work_of(network, unit)


def flops_of(placement: Placement, tasks: Sequence[Task]) -> float:
    """Return the FLOPs of a rank's update, both passes, that take time."""
    network, found = placement.network, 0.0
    for task in tasks:
        if isinstance(task, Compute | Recompute):
            found += work_of(network, task.unit)
        elif isinstance(task, Differentiate):
            inputs, weights = task.of != "weights", task.of != "inputs"
            found += backward_work_of(network, task.unit, inputs=inputs, weights=weights)
    return found


def calls_of(placement: Placement, tasks: Sequence[Task]) -> tuple[int, int]:
    """Return how often a rank waits in an update, and how many units and gradients it computes."""
    computed = [task for task in tasks if isinstance(task, Compute | Recompute | Differentiate)]
    return sum(flops_of(placement, [task]) > 0 for task in computed), len(computed)


class EmulatedModel(PlacedModel):
    """A placed network whose units an accelerator takes its time for.

    Args:
        plan: see `PlacedModel`.
        setup: see `PlacedModel`.
        accelerator: of this rank.
    """

    def __init__(self, plan: PlacedPlan, setup: Setup, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        super().__init__(plan, setup)

    def _player(self, placement: Placement, wire: Wire) -> Player:
        wire.begin()
        return _EmulatedPlayer(
            self._accelerator, placement, self.world.rank, self._layers, self.holdings.blocks(), wire
        )


class _EmulatedPlayer(Player):
    def __init__(self, accelerator: Accelerator, placement: Placement, *rest: Any) -> None:
        super().__init__(placement, *rest)
        self._accelerator = accelerator
        self._operations = {
            name: dataclasses.replace(one, keeps="nothing") for name, one in self._operations.items()
        }

    def _computed(self, unit: Unit, micro: int, reads: list[Any], weights: list[Any], loss: Loss) -> Any:
        operation = self._operations[unit.operation]
        if operation.name == LOSS:
            return super()._computed(unit, micro, reads, weights, loss)
        done = self._accelerator.work(
            work_of(self.placement.network, unit), [x for x in reads if x is not None]
        )
        return _zeros(unit.box.shape, computing.dtype_of(operation, self._layers[operation.layer]), done)

    def _recorded(self, unit: Unit, micro: int) -> UnitRecord:
        if unit.operation == LOSS:
            return super()._recorded(unit, micro)
        operation = self._operations[unit.operation]
        reads = [
            None if box is None else self._read_again(operation, reading.tensor, box, micro)
            for reading, box in zip(operation.readings, unit.reads, strict=True)
        ]
        return _Waiting(None, None, reads, self._weights(unit), self._upstream(unit, micro), self, unit)


@dataclass
class _Waiting(UnitRecord):
    """A unit whose gradients take time, and are zeros."""

    player: _EmulatedPlayer
    unit: Unit

    def gradients(self, sources: list[Any]) -> list[Any]:
        wanted = {id(x) for x in sources}
        flops = backward_work_of(
            self.player.placement.network,
            self.unit,
            inputs=any(id(x) in wanted for x in self.reads),
            weights=any(id(x) in wanted for x in self.weights),
        )
        done = self.player._accelerator.work(flops, [self.seed])
        return [_zeros(x.shape, x.dtype, done) for x in sources]


def _zeros(shape: Sequence[int], dtype: Any, after: Sequence[Any]) -> Any:
    """Zeros that are there after some tensors; a constant of the graph, which costs no time to fill."""
    with tf.control_dependencies(after):
        return tf.constant(0, dtype, tuple(shape))
