"""Task lists of all ranks, made before anything runs. Pure.

Sending never waits; receiving waits until the message is there. Every rank goes through the same chunks in
the same order, and through the operations of each in the same order, so that a message that is waited for has
been sent by a rank that waits for none that comes later. `checking.check` proves it of each list.

A chunk is one pass of a stage over one micro-batch. Without stages there are two: all operations forwards,
then backwards.

With `Pipeline.recompute`, a backward pass begins with computing again what its gradients are computed from:
before that, a rank keeps what other ranks have sent, and the batch (GPipe, arXiv 1811.06965). Nothing is
computed again where that saves no memory: where a rank does nothing between the two passes, or keeps less of
a stage than it receives.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainer.planning.placement.exchanges import Redistribution
from trainer.planning.placement.keeping import Kept, computed_again
from trainer.planning.placement.operations import Operation
from trainer.planning.placement.tasks import (
    Compute,
    Content,
    Differentiate,
    Message,
    Receive,
    Recompute,
    Send,
    Task,
    TaskLists,
    UpdateOwned,
    message,
)
from trainer.planning.placement.units import Placement, Unit
from trainer.planning.stages.schedule import Chunk

_HEAVY = ("convolution", "transposed", "dense")
# Operations, each with its units on a rank.
_Own = list[tuple[Operation, list[Unit]]]
# Names, each with the moves of that tensor or variable.
_Flows = list[tuple[str, Redistribution]]
# Gradients of so many bytes leave together.
BUCKET_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Pipeline:
    """In which order stages work on micro-batches.

    Attributes:
        stages: names of the operations of each stage, in the order of the network; together all but inputs.
        chunks: passes of stages over micro-batches, in an order in which each comes after what it needs.
        recompute: outputs are computed again for the backward pass instead of being kept.
    """

    stages: tuple[tuple[str, ...], ...]
    chunks: tuple[Chunk, ...]
    recompute: bool = False

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one update."""
        return 1 + max(chunk.micro for chunk in self.chunks)


def task_lists(placement: Placement, pipeline: Pipeline | None = None) -> TaskLists:
    """The tasks of every rank in one update.

    Args:
        placement: of a micro-batch.
        pipeline: over its operations; None: one micro-batch, without stages.
    """
    both = pipeline or _unstaged(placement, Chunk("forward", 0, 0), Chunk("backward", 0, 0))
    return {rank: tuple(_RankTasks(placement, both, rank).update()) for rank in placement.ranks}


def forward_lists(placement: Placement) -> TaskLists:
    """The tasks of every rank that only computes outputs."""
    one = _unstaged(placement, Chunk("forward", 0, 0))
    return {rank: tuple(_RankTasks(placement, one, rank).passes()) for rank in placement.ranks}


def _unstaged(placement: Placement, *chunks: Chunk) -> Pipeline:
    return Pipeline((tuple(one.name for one in placement.network.operations if one.readings),), chunks)


def buckets(placement: Placement) -> list[tuple[str, ...]]:
    """Return the trainable variables whose gradients leave together, in the order in which they are complete.

    Those of one bucket have numbers of the same width.
    """
    weights = {w.path: w for one in placement.network.operations for w in one.weights if w.trainable}
    buckets: list[tuple[str, ...]] = []
    for width in sorted({weight.width for weight in weights.values()}):
        bucket: list[str] = []
        for path in reversed([path for path, weight in weights.items() if weight.width == width]):
            bucket.append(path)
            if sum(weights[one].bytes for one in bucket) >= BUCKET_BYTES:
                buckets.append(tuple(bucket))
                bucket = []
        if bucket:
            buckets.append(tuple(bucket))
    return buckets


class _RankTasks:
    """The tasks of one rank."""

    def __init__(self, placement: Placement, pipeline: Pipeline, rank: int) -> None:
        self._placement, self._pipeline, self._rank = placement, pipeline, rank
        self._size = max(placement.ranks) + 1
        operations = placement.network.operations
        self._own = [(one, [u for u in placement.of(one.name) if u.rank == rank]) for one in operations]
        self._with_gradient = {one.name for one in operations if one.readings}
        self._buckets = buckets(placement)
        self._first_users = self._of_first_users()
        self._last_users = self._of_last_users()
        # Done when this rank would wait for others: gradients of weights, and what is sent of them.
        self._meanwhile: list[Task] = []

    def update(self) -> Iterator[Task]:
        """All passes, and the update."""
        reductions, returns = self._placement.reductions, self._placement.returns
        yield from self.passes()
        yield from self._flushed()
        for paths in self._buckets:
            yield from self._receive([(path, reductions[path]) for path in paths], "part")
        yield UpdateOwned()
        for paths in self._buckets:
            yield from self._send([(path, returns[path]) for path in paths], "value")
        for paths in self._buckets:
            yield from self._receive([(path, returns[path]) for path in paths], "value")

    def passes(self) -> Iterator[Task]:
        """All chunks."""
        stages = [set(names) for names in self._pipeline.stages]
        own = [[one for one in self._own if one[0].name in names] for names in stages]
        inputs = self._inputs(own)
        last = self._pipeline.micro_batches - 1
        again = self._again(own)
        for chunk in self._pipeline.chunks:
            passing, micro, stage = chunk
            if passing == "forward":
                yield from self._flushed()
                yield from self._forward([*inputs[stage], *own[stage]], micro)
            else:
                units = again.get(chunk, [])
                yield from self._backward(own[stage], micro, is_last=micro == last, again=units)

    def _again(self, own: list[_Own]) -> dict[Chunk, list[Unit]]:
        """Units that are computed again before backward passes that do not follow their forward passes."""
        if not self._pipeline.recompute:
            return {}
        kept = Kept(self._placement, self._rank)
        needed: list[list[Unit]] = []
        for stage in own:
            operations = [operation for operation, units in stage if units]
            names = computed_again(operations) if kept.is_more_than_arrives(operations) else set()
            needed.append([unit for operation, units in stage if operation.name in names for unit in units])
        mine = [one for one in self._pipeline.chunks if any(units for _, units in own[one.stage])]
        return {
            chunk: needed[chunk.stage]
            for before, chunk in itertools.pairwise(mine)
            if chunk.passing == "backward" and before != chunk._replace(passing="forward")
        }

    def _inputs(self, own: list[_Own]) -> list[_Own]:
        """Return the inputs of the network, each where a stage of this rank reads it first."""
        left = {
            operation.name: (operation, units) for operation, units in self._own if not operation.readings
        }
        inputs: list[_Own] = []
        for stage in own:
            read = {reading.tensor for one, units in stage if units for reading in one.readings}
            inputs.append([left.pop(name) for name in list(left) if name in read])
        return inputs

    def _flushed(self) -> Iterator[Task]:
        yield from self._meanwhile
        self._meanwhile = []

    def _forward(self, own: _Own, micro: int) -> Iterator[Task]:
        flows = self._placement.flows
        for operation, units in own:
            for tensor in self._first_users.get(operation.name, ()):
                yield from self._receive([(tensor, flows[tensor])], "output", micro=micro)
            for unit in units:
                yield Compute(unit, micro)
            if operation.name in flows:
                yield from self._send([(operation.name, flows[operation.name])], "output", micro=micro)

    def _backward(self, own: _Own, micro: int, *, is_last: bool, again: Sequence[Unit]) -> Iterator[Task]:
        flows, reductions = self._placement.flows, self._placement.reductions
        for operation, units in reversed(own):
            if operation.name in flows:
                back = [(operation.name, flows[operation.name])]
                if arriving := tuple(self._receive(back, "gradient", back=True, micro=micro)):
                    yield from self._flushed()
                    yield from arriving
            if units and again:  # once the first gradient is there
                yield from self._flushed()
                yield from (Recompute(unit, micro) for unit in again)
                again = ()
            can_wait = len(self._placement.ranks) > 1 and self._can_wait(operation)
            for unit in units:
                yield Differentiate(unit, "inputs" if can_wait else "all", micro)
                self._meanwhile += [Differentiate(unit, "weights", micro)] if can_wait else []
            for tensor in self._first_users.get(operation.name, ()):
                if tensor in self._with_gradient:
                    yield from self._send([(tensor, flows[tensor])], "gradient", back=True, micro=micro)
            for paths in self._last_users.get(operation.name, ()) if is_last else ():
                self._meanwhile += self._send([(path, reductions[path]) for path in paths], "part")

    def _can_wait(self, operation: Operation) -> bool:
        """Whether gradients of its weights take long, and those of its inputs do not depend on them."""
        reads = any(reading.tensor in self._with_gradient for reading in operation.readings)
        return reads and operation.kind in _HEAVY and any(weight.trainable for weight in operation.weights)

    def _of_first_users(self) -> dict[str, list[str]]:
        """Return for each operation the tensors of other ranks that it is the first to use on this rank.

        Before it, they must be there; after it, backwards, all of their gradients are.
        """
        tensors: dict[str, list[str]] = {}
        seen: set[str] = set()
        for operation, units in self._own:
            for number, reading in enumerate(operation.readings):
                wanted = [box for unit in units if (box := unit.reads[number]) is not None]
                if reading.tensor in seen or not wanted:
                    continue
                flow = self._placement.flows[reading.tensor]
                arriving = (flow.moves[one].box for one in flow.arriving.get(self._rank, ()))
                if any(one & box is not None for one in arriving for box in wanted):
                    seen.add(reading.tensor)
                    tensors.setdefault(operation.name, []).append(reading.tensor)
        return tensors

    def _of_last_users(self) -> dict[str, list[tuple[str, ...]]]:
        """Return for each operation buckets whose gradients are complete once it is differentiated here."""
        users: dict[str, int] = {}
        for number, (operation, units) in enumerate(self._own):
            for weight in operation.weights if units else ():
                if weight.trainable:
                    users.setdefault(weight.path, number)
        by_operation: dict[str, list[tuple[str, ...]]] = {}
        for paths in self._buckets:
            numbers = [users[path] for path in paths if path in users]
            if numbers:
                by_operation.setdefault(self._own[min(numbers)][0].name, []).append(paths)
        return by_operation

    def _send(self, flows: _Flows, content: Content, *, back: bool = False, micro: int = 0) -> Iterator[Task]:
        by_target: dict[int, list[Message]] = {}
        for name, flow in flows:
            for number in (flow.arriving if back else flow.leaving).get(self._rank, ()):
                one = message(content, name, flow, number, back=back, micro=micro)
                by_target.setdefault(one.target, []).append(one)
        # Each rank begins with the next one: if all began with the first, its link would fill, others idle.
        order = sorted(by_target, key=lambda target: (target - self._rank) % self._size)
        yield from (Send(tuple(by_target[target])) for target in order)

    def _receive(
        self, flows: _Flows, content: Content, *, back: bool = False, micro: int = 0
    ) -> Iterator[Task]:
        by_source: dict[int, list[Message]] = {}
        for name, flow in flows:
            for number in (flow.leaving if back else flow.arriving).get(self._rank, ()):
                one = message(content, name, flow, number, back=back, micro=micro)
                by_source.setdefault(one.source, []).append(one)
        order = sorted(by_source, key=lambda source: (self._rank - source) % self._size)
        yield from (Receive(tuple(by_source[source])) for source in order)
