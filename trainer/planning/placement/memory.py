"""Estimated memory of each rank in an update: what its tasks allocate, and how long it lives. Pure.

Counted: blocks of variables, what a rank owns beside them, the optimizer's slots; outputs from their
computing to their differentiation; received boxes, and what is put together of several boxes to be read;
gradients of activations until they are used, of weights until the update. Not counted: what an operation
needs while it computes (a convolution's rearranged input, temporaries of a normalisation), buffers of
messages on their way, batches that are read ahead, TensorFlow itself. A compiler may free some of it earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from trainer.planning.placement.boxes import Box
from trainer.planning.placement.tasks import Compute, Differentiate, Receive, Send, Task, TaskLists
from trainer.planning.placement.units import Placement, Unit


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank.

    Attributes:
        variables: blocks that it computes with, and those that it owns where they are others.
        slots: the optimizer's state.
        working: activations, received boxes and gradients, where the sum of all is largest.
    """

    variables: int
    slots: int
    working: int

    @property
    def total(self) -> int:
        """Bytes of all."""
        return self.variables + self.slots + self.working


def memory(
    placement: Placement, lists: TaskLists, ranks: int, *, slots: int, whole_update: bool = False
) -> tuple[Memory, ...]:
    """Estimate the memory of each rank; see the top of this file.

    Args:
        placement: of a network.
        lists: the tasks of every rank.
        ranks: that train.
        slots: numbers that the optimizer keeps for each parameter, such as 2 of Adam.
        whole_update: every rank updates all that it holds, as under `data`, and not only what it owns.
    """
    widths = {w.path: w.width for one in placement.network.operations for w in one.weights}

    def one(rank: int) -> Memory:
        held = {(path, box) for path, of in placement.holders.items() for box in of.of(rank)}
        trained = {key for key in held if key[0] in placement.reductions}
        own = {(path, box) for path, flow in placement.reductions.items() for box in flow.need.of(rank)}
        kept = trained if whole_update else own
        return Memory(
            sum(box.size * widths[path] for path, box in held | kept),
            slots * sum(box.size * widths[path] for path, box in kept),
            _working(placement, lists.get(rank, ()), rank),
        )

    return tuple(one(rank) for rank in range(ranks))


def _working(placement: Placement, tasks: tuple[Task, ...], rank: int) -> int:
    live = _Live(placement, tasks, rank)
    for task in tasks:
        live.do(task)
    return live.most


class _Live:
    """What is there after each task of a rank.

    Attributes:
        most: bytes, where they are most.
    """

    def __init__(self, placement: Placement, tasks: tuple[Task, ...], rank: int) -> None:
        self._placement, self._rank = placement, rank
        self._operations = {one.name: one for one in placement.network.operations}
        # Bytes by what is freed together, and by what was allocated.
        self._there: dict[Hashable, dict[Hashable, int]] = {}
        self._now = self.most = 0
        computed = [task.unit for task in tasks if isinstance(task, Compute)]
        self._own: dict[str, list[Unit]] = {}
        for unit in computed:
            self._own.setdefault(unit.operation, []).append(unit)
        reads = [read for unit in computed for read in self._reads(unit)]
        # How many tasks still need something: readers to compute and to differentiate, and units.
        self._to_compute = Counter(tensor for tensor, _ in reads)
        self._to_differentiate = Counter(self._to_compute)
        self._copies = Counter(read for read in reads if self._is_copied(*read))
        self._kept_as_received = {tensor for tensor, box in reads if not self._is_copied(tensor, box)}
        self._units = Counter(unit.operation for unit in computed)

    def do(self, task: Task) -> None:
        """Allocate and free what a task does."""
        if isinstance(task, Receive):
            for one in task.messages:
                self._take((one.content, one.name), one.number, one.bytes)
        elif isinstance(task, Compute):
            self._compute(task.unit)
        elif isinstance(task, Differentiate):
            self._differentiate(task.unit, task.of)
        elif isinstance(task, Send):
            for one in task.messages:
                if one.content == "gradient" and one.name not in self._own:
                    self._drop(("read gradients", one.name))
        else:  # an update
            self._drop("gradients of weights")
            for path in self._placement.reductions:
                self._drop(("part", path))

    def _compute(self, unit: Unit) -> None:
        for read in self._reads(unit):
            if read in self._copies:
                self._take(("read", read), None, self._bytes(*read))
        self._take(("computed", unit), None, self._bytes(unit.operation, unit.box))
        for tensor, _ in self._reads(unit):
            self._to_compute[tensor] -= 1
            if not self._to_compute[tensor] and tensor not in self._kept_as_received:
                self._drop(("output", tensor))

    def _differentiate(self, unit: Unit, of: str) -> None:
        operation = self._operations[unit.operation]
        for number, (tensor, box) in enumerate(self._reads(unit)):
            if of != "weights" and self._operations[tensor].readings:  # the network's inputs get no gradient
                self._take(("read gradients", tensor), (unit, number), self._bytes(tensor, box))
        if of == "inputs":
            return
        for weight, block in zip(operation.weights, unit.blocks, strict=True):
            if weight.trainable:
                self._take("gradients of weights", (unit, weight.path), block.size * weight.width)
        self._drop(("computed", unit))
        self._units[unit.operation] -= 1
        if not self._units[unit.operation]:
            self._drop(("read gradients", unit.operation))
            self._drop(("gradient", unit.operation))
        for read in self._reads(unit):
            self._was_read(*read)

    def _was_read(self, tensor: str, box: Box) -> None:
        """Free what no other unit needs to be differentiated."""
        if (tensor, box) in self._copies:
            self._copies[tensor, box] -= 1
            if not self._copies[tensor, box]:
                self._drop(("read", (tensor, box)))
        self._to_differentiate[tensor] -= 1
        if not self._to_differentiate[tensor]:
            self._drop(("output", tensor))
            if not self._operations[tensor].readings:
                for own in self._own.get(tensor, ()):
                    self._drop(("computed", own))

    def _reads(self, unit: Unit) -> Iterator[tuple[str, Box]]:
        readings = self._operations[unit.operation].readings
        for reading, box in zip(readings, unit.reads, strict=False):  # inputs read nothing
            if box is not None:
                yield reading.tensor, box

    def _is_copied(self, tensor: str, wanted: Box) -> bool:
        """Whether what is read is put together, or cut out, and not an output or a received box itself."""
        moves = [
            one
            for one in self._placement.flows[tensor].moves
            if one.target.rank == self._rank and one.box & wanted is not None
        ]
        if len(moves) != 1 or moves[0].box != wanted:
            return True
        return not moves[0].crosses and all(own.box != wanted for own in self._own.get(tensor, ()))

    def _bytes(self, tensor: str, box: Box) -> int:
        return box.size * self._operations[tensor].width

    def _take(self, group: Hashable, key: Hashable, size: int) -> None:
        held = self._there.setdefault(group, {})
        if key not in held:
            held[key] = size
            self._now += size
            self.most = max(self.most, self._now)

    def _drop(self, group: Hashable) -> None:
        self._now -= sum(self._there.pop(group, {}).values())
