"""One rank's part of an update, played from its task list.

A `Player` computes its units from this rank's blocks of the variables, for one micro-batch or several, and
hands messages to whatever moves them. For its gradients, a unit is computed again from what is kept: while a
graph is traced, which does only what the gradients need. It works eagerly and while a graph is traced; one
player is one update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any

import tensorflow as tf
from keras import ops

from trainer.planning.placement.boxes import Box
from trainer.planning.placement.operations import Operation
from trainer.planning.placement.tasks import (
    Compute,
    Differentiate,
    Message,
    Receive,
    Recompute,
    Send,
    Task,
)
from trainer.planning.placement.units import Placement, Unit
from trainer.strategies.placed import computing, gradients, normalising, pieces
from trainer.strategies.placed.gradients import UnitRecord
from trainer.strategies.placed.mover import Mover, Wanted
from trainer.strategies.placed.parts import Parts
from trainer.strategies.placed.reading import LOSS

Blocks = dict[str, dict[Box, Any]]
# Of what this rank owns, by path and box.
Owned = dict[tuple[str, Box], Any]
# Numbers that are kept from a forward pass for its backward pass rather than assembled again.
_FEW = 4096
# See `Player.play`.
Loss = Callable[[Box, list[Any], int], Any]
ChunkDone = Callable[[str, int, list[Any]], list[Any]]


class Player:
    """See the top of this file.

    Args:
        placement: of the network.
        rank: of this process.
        layers: of the Keras model, by name.
        blocks: this rank's part of each variable, by path: `placement.holders`; replaced by the new ones.
        mover: of messages.
    """

    def __init__(
        self, placement: Placement, rank: int, layers: Mapping[str, Any], blocks: Blocks, mover: Mover
    ) -> None:
        self.placement, self.rank, self.blocks = placement, rank, blocks
        self._layers, self._mover = layers, mover
        self._operations = {one.name: one for one in placement.network.operations}
        self._update_values: Callable[[Owned], Owned] | None = None
        self.losses: list[Any] = []
        # Gradients of the losses by themselves, once they are known to be there; empty: 1.
        self._began: list[Any] = []
        self._shared = Parts(placement, rank)
        self._parts_of: dict[int, Parts] = {0: self._shared}
        # Of micro-batches that were computed again; what this pass waited for.
        self._again: dict[int, Parts] = {}
        self._gate: Any = None
        self._records: dict[tuple[Unit, int], UnitRecord] = {}
        self._statistics = normalising.MovingStatistics(layers)
        # What was computed last, and what the next pass waits for.
        self._newest: list[Any] = []
        self._stamps: list[Any] = []

    def play(
        self,
        tasks: tuple[Task, ...],
        inputs: Mapping[str, Callable[[Box, int], Any]],
        loss: Loss,
        update: Callable[[Owned], Owned] | None = None,
        drawing: Callable[[int], computing.Drawing] | None = None,
        forward_done: Callable[[list[Any]], Any] | None = None,
        objective: Loss | None = None,
        chunk_done: ChunkDone | None = None,
    ) -> Iterator[tuple[Message, ...]]:
        """Do the tasks; yields the messages that must be there before it can go on.

        Args:
            tasks: of this rank.
            inputs: from a box of a network's input, and the number of the micro-batch, to its values.
            loss: from the box of samples `(b,)`, the network's outputs for them, and the number of the
                micro-batch to their part of the loss, a scalar; the parts of all add up.
            update: from the gradients of all that this rank owns to the new values; None where nothing is
                differentiated.
            drawing: from the number of the micro-batch to what its layers draw; None: they draw nothing.
            forward_done: called with the outputs of the last operation when all are computed; may return the
                gradients of these by themselves, for which the backward pass of this rank then waits, where
                there is one micro-batch.
            objective: what is differentiated, where `loss` does more than to compute it.
            chunk_done: called after each pass over one of several micro-batches: 'forward' or 'backward', its
                number, and tensors that are there when it is done; returns what the next pass waits for.
        """
        last = max((n for n, task in enumerate(tasks) if isinstance(task, Compute)), default=-1)
        final = tasks[last] if last >= 0 else None
        self._is_pipelined = any(isinstance(task, Compute) and task.micro for task in tasks)
        self._inputs, self._loss, self._update_values, self._drawing = inputs, loss, update, drawing
        self._objective = objective or loss
        ends = _ends(tasks) if self._is_pipelined and chunk_done is not None else {}
        before: Task | None = None
        for moves, some in groupby(enumerate(tasks), key=lambda one: isinstance(one[1], Send | Receive)):
            if moves:
                yield from self._move([task for _, task in some])
                continue
            for number, task in some:
                if isinstance(task, Compute):
                    self._compute(task.unit, task.micro)
                    if task is final and forward_done is not None:
                        outputs = self._parts(task.micro).outputs[task.unit.operation]
                        done = forward_done([out for _, out in outputs])
                        if task.unit.operation == LOSS and not task.micro:
                            self._began = done or []
                elif isinstance(task, Recompute):
                    if not isinstance(before, Recompute):
                        self._begin_again(task.micro)
                    self._compute_again(task.unit, task.micro)
                elif isinstance(task, Differentiate):
                    self._differentiate(task)
                else:
                    self._update()
                before = task
                if number in ends and chunk_done is not None:
                    self._stamps = chunk_done(*ends[number], self._newest)
                    self._mover.after(self._stamps)
        self._store()

    def hand_out(self, tasks: Sequence[Task], values: Owned) -> Iterator[tuple[Message, ...]]:
        """Give all holders new values of what this rank owns; yields as `play` does.

        Args:
            tasks: the last ones of this rank's, that send and receive values.
            values: of what this rank owns.
        """
        self._update_values = lambda _: values
        for (path, box), one in values.items():
            self._shared.fresh[path].append((box, one))
        yield from self._move(tasks)
        self._store()

    def _move(self, tasks: Sequence[Task]) -> Iterator[tuple[Message, ...]]:
        """Send and receive what lies between two tasks that compute; nothing sent depends on what arrives."""
        for task in tasks:
            if isinstance(task, Send):
                leaving = [self._parts(one.micro).leaving(one) for one in task.messages]
                self._mover.send(task.messages, leaving)
        awaited = [task.messages for task in tasks if isinstance(task, Receive)]
        if not awaited:
            self._mover.flush()
            return
        yield tuple(one for messages in awaited for one in messages)
        expected: list[Wanted] = []
        for messages in awaited:
            shapes = [self._shared.flow(one).moves[one.number].box.shape for one in messages]
            expected.append((messages, shapes, self._dtype_of(messages[0])))
        for messages, found in zip(awaited, self._mover.receive(expected), strict=True):
            for one, values in zip(messages, found, strict=True):
                self._parts(one.micro).arrived[one] = values

    def _parts(self, micro: int) -> Parts:
        """What there is of a micro-batch."""
        if micro not in self._parts_of:
            self._parts_of[micro] = Parts(self.placement, self.rank, micro, self._shared)
        return self._parts_of[micro]

    def _kept(self, micro: int) -> Parts:
        """What there is of a micro-batch when it is differentiated."""
        return self._again.get(micro) or self._parts(micro)

    def _dtype_of(self, one: Message) -> Any:
        if one.content in ("output", "gradient"):
            return self._dtype_of_output(one.name)
        return next(iter(self.blocks[one.name].values())).dtype

    def _dtype_of_output(self, name: str) -> Any:
        operation = self._operations[name]
        return computing.dtype_of(operation, self._layers.get(operation.layer))

    def _compute(self, unit: Unit, micro: int) -> None:
        operation, parts = self._operations[unit.operation], self._parts(micro)
        if operation.kind == "input":
            values = self._input(unit, micro)
            values = ops.cast(values, self._layers[operation.layer].dtype)  # as Keras does
            parts.outputs[unit.operation].append((unit.box, values))
            return
        reads, weights = self._read(operation, unit, parts), self._weights(unit)
        output = self._computed(unit, micro, reads, weights, self._loss)
        parts.outputs[unit.operation].append((unit.box, output))
        self._newest = [output]
        if operation.name == LOSS:
            self.losses.append(output)
        if operation.kind == "batch_norm" and self._update_values is not None:
            self._statistics.move(operation, unit, micro, reads[1], weights)

    def _begin_again(self, micro: int) -> None:
        """Begin the second pass over a micro-batch, once what comes before it in the list is done.

        Otherwise TensorFlow would do it at once, or take the results of the first pass, and keep them.
        """
        self._again[micro] = self._parts(micro).again()
        (self._gate,) = self._mover.meanwhile(lambda: [tf.zeros(())])

    def _compute_again(self, unit: Unit, micro: int) -> None:
        """Compute a unit's output for gradients alone: statistics and messages are those of before."""
        operation, parts = self._operations[unit.operation], self._again[micro]
        with tf.control_dependencies([self._gate]):
            reads, weights = self._read(operation, unit, parts), self._weights(unit)
            parts.computed(unit, self._computed(unit, micro, reads, weights, self._objective))

    @staticmethod
    def _read(operation: Operation, unit: Unit, parts: Parts) -> list[Any]:
        return [
            None if box is None else parts.to_compute(reading.tensor, box)
            for reading, box in zip(operation.readings, unit.reads, strict=True)
        ]

    def _input(self, unit: Unit, micro: int) -> Any:
        """A box of the network's input; of a later micro-batch once all that comes before it is done."""
        read = self._inputs[unit.operation]
        if not micro:
            return read(unit.box, micro)
        return self._mover.meanwhile(lambda: [tf.identity(read(unit.box, micro))])[0]

    def _weights(self, unit: Unit) -> list[Any]:
        weights = self._operations[unit.operation].weights
        return [self.held(weight.path, block) for weight, block in zip(weights, unit.blocks, strict=True)]

    def _computed(self, unit: Unit, micro: int, reads: list[Any], weights: list[Any], loss: Loss) -> Any:
        operation = self._operations[unit.operation]
        if operation.name == LOSS:
            return loss(unit.box, reads, micro)
        layer = self._layers[operation.layer]
        drawing = self._drawing and self._drawing(micro)
        return computing.compute(operation, layer, unit, reads, weights, drawing)

    def _differentiate(self, task: Differentiate) -> None:
        unit, operation = task.unit, self._operations[task.unit.operation]
        parts, now = self._parts(task.micro), (unit, task.micro)
        if operation.keeps == "output":
            upstream = self._upstream(unit, task.micro)
            with tf.control_dependencies([upstream]):
                output = self._kept(task.micro).to_differentiate(unit.operation, unit.box)
                gradient = gradients.from_output(output, upstream)
            (reading,) = operation.readings
            gradient = tf.cast(gradient, self._dtype_of_output(reading.tensor))
            parts.read[reading.tensor].append((unit.box, gradient))
            return
        record = self._records[now] = self._records.get(now) or self._recorded(*now)
        read = [
            (reading.tensor, box, x)
            for reading, box, x in zip(operation.readings, unit.reads, record.reads, strict=True)
            if box is not None and task.of != "weights"
        ]
        used = [
            (weight.path, block, x)
            for weight, block, x in zip(operation.weights, unit.blocks, record.weights, strict=True)
            if weight.trainable and task.of != "inputs"
        ]

        def wanted() -> list[Any]:
            return record.gradients([x for *_, x in (*read, *used)])

        derivatives = self._mover.meanwhile(wanted) if task.of == "weights" else wanted()
        if self._is_pipelined:
            # Otherwise TensorFlow would begin the next micro-batch, and keep more than was planned.
            self._mover.after(derivatives)
        self._newest = derivatives or self._newest
        for (name, box, _), gradient in zip(read, derivatives[: len(read)], strict=True):
            parts.read[name].append((box, gradient))
        for (name, box, _), gradient in zip(used, derivatives[len(read) :], strict=True):
            parts.add_gradient(name, box, gradient)
        if task.of != "inputs":
            del self._records[now]

    def _upstream(self, unit: Unit, micro: int) -> Any:
        """The gradient of a unit's output; None where it is 1, and need not be waited for."""
        if unit.operation == LOSS:
            units = [one for one in self.placement.of(LOSS) if one.rank == self.rank]
            return self._began[units.index(unit)] if self._began and not micro else None
        return self._parts(micro).gradient_of_output(unit, self._dtype_of_output(unit.operation))

    def _recorded(self, unit: Unit, micro: int) -> UnitRecord:
        """Compute a unit again, now under a tape, from what is kept: only what its gradients need is done."""
        operation, upstream = self._operations[unit.operation], self._upstream(unit, micro)
        after = [*self.losses, *self._stamps] if upstream is None else [upstream]

        def waiting(box: Box) -> AbstractContextManager[None]:
            return tf.control_dependencies(after if box.size > _FEW else [])

        # Not earlier: TensorFlow would do it as soon as the inputs are there, and keep what comes of it.
        reads: list[Any] = []
        weights: list[Any] = []
        for reading, box in zip(operation.readings, unit.reads, strict=True):
            if box is None:
                reads.append(None)
                continue
            with waiting(box):
                reads.append(self._read_again(operation, reading.tensor, box, micro))
        for weight, block in zip(operation.weights, unit.blocks, strict=True):
            with waiting(block):
                weights.append(self.held(weight.path, block))
        with (
            tf.control_dependencies(after),
            tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape,
        ):
            tape.watch([x for x in (*reads, *weights) if x is not None])
            output = self._computed(unit, micro, reads, weights, self._objective)
        return UnitRecord(tape, output, reads, weights, upstream)

    def _read_again(self, operation: Operation, tensor: str, box: Box, micro: int) -> Any:
        if operation.keeps == "inputs":
            return self._kept(micro).to_differentiate(tensor, box)
        return tf.zeros(box.shape, self._dtype_of_output(tensor))

    def held(self, path: str, box: Box) -> Any:
        """Return this rank's values of a box of a variable."""
        return pieces.assembled(box, list(self.blocks[path].items()))

    def _update(self) -> None:
        summed: Owned = {}
        for path, flow in self.placement.reductions.items():
            if self.rank in flow.need.ranks:
                parts = self._shared.arriving("part", path, flow)
                for box in flow.need.of(self.rank):
                    summed[path, box] = pieces.assembled(box, parts, sums=True)
        if self._update_values is None:
            raise ValueError("an update needs a rule")
        for (path, box), values in self._update_values(summed).items():
            self._shared.fresh[path].append((box, values))

    def _store(self) -> None:
        for path, flow in self.placement.returns.items():
            if self._update_values is not None and self.rank in flow.need.ranks:
                parts = self._shared.arriving("value", path, flow)
                for box in self.blocks[path]:
                    self.blocks[path][box] = pieces.assembled(box, parts)
        for path, parts in self._statistics.moved().items():
            for box in self.blocks[path]:
                self.blocks[path][box] = pieces.assembled(box, parts)


def _ends(tasks: Sequence[Task]) -> dict[int, tuple[str, int]]:
    """For the last task of each pass over a micro-batch, by its number: which pass, of which micro-batch."""
    passes = [
        (number, ("forward" if isinstance(task, Compute) else "backward", task.micro))
        for number, task in enumerate(tasks)
        if isinstance(task, Compute | Recompute | Differentiate)
    ]
    following = [one for _, one in passes[1:]] + [None]
    return {number: one for (number, one), after in zip(passes, following, strict=True) if one != after}
