"""One rank's part of an update, played from its task list.

A `Player` computes its units from this rank's blocks of the variables, and hands messages to whatever moves
them. For its gradients, a unit is computed again from what is kept: while a graph is traced, which does only
what the gradients need. It works eagerly and while a graph is traced; one player is one update.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import tensorflow as tf
from keras import ops

from trainer.planning.placement import boxes
from trainer.planning.placement.boxes import Box
from trainer.planning.placement.operations import Operation
from trainer.planning.placement.tasks import (
    Compute,
    Differentiate,
    Message,
    Receive,
    Send,
    Task,
)
from trainer.planning.placement.units import Placement, Unit
from trainer.strategies.placed import computing, gradients, normalising, pieces
from trainer.strategies.placed.parts import Parts
from trainer.strategies.placed.pieces import Part
from trainer.strategies.placed.reading import LOSS

Blocks = dict[str, dict[Box, Any]]
# Of what this rank owns, by path and box.
Owned = dict[tuple[str, Box], Any]
# Messages that were sent as one, their shapes, and their type.
Wanted = tuple[tuple[Message, ...], list[tuple[int, ...]], Any]


class Mover(Protocol):
    """What carries messages between ranks."""

    def send(self, messages: Sequence[Message], values: Sequence[Any]) -> None:
        """Hand over arrays of the shapes of the messages' boxes, which travel as one; does not wait."""

    def receive(self, wanted: Sequence[Wanted]) -> list[list[Any]]:
        """Return the arrays of each bundle of messages."""

    def flush(self) -> None:
        """Let everything leave that was handed over, before something else is computed."""

    def meanwhile(self, compute: Callable[[], list[Any]]) -> list[Any]:
        """Compute tensors after what was flushed has left, and before anything else is received."""


@dataclass
class Record:
    """A unit that is being differentiated.

    Attributes:
        tape: that saw it computed again.
        output: of it.
        reads: boxes of its inputs; None where one is not needed.
        weights: blocks.
        seed: the gradient of its output; None: 1.
    """

    tape: Any
    output: Any
    reads: list[Any]
    weights: list[Any]
    seed: Any

    def gradients(self, sources: list[Any]) -> list[Any]:
        """Return the gradients of some of `reads` and `weights`."""
        return list(
            self.tape.gradient(
                self.output,
                sources,
                output_gradients=self.seed,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
        )


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
        self._parts = Parts(placement, rank)
        self._records: dict[Unit, Record] = {}
        self._statistics: dict[str, list[Part]] = defaultdict(list)

    def play(
        self,
        tasks: tuple[Task, ...],
        inputs: Mapping[str, Callable[[Box], Any]],
        loss: Callable[[Box, list[Any]], Any],
        update: Callable[[Owned], Owned] | None = None,
        seed: Any = (0, 0),
        forward_done: Callable[[list[Any]], Any] | None = None,
        objective: Callable[[Box, list[Any]], Any] | None = None,
    ) -> Iterator[tuple[Message, ...]]:
        """Do the tasks; yields the messages that must be there before it can go on.

        Args:
            tasks: of this rank.
            inputs: from a box of a network's input to its values.
            loss: from the box of samples `(b,)` and the network's outputs for them to their part of the loss,
                a scalar; the parts of all ranks add up.
            update: from the gradients of all that this rank owns to the new values; None where nothing is
                differentiated.
            seed: int32 `(2,)`, for dropout.
            forward_done: called with the outputs of the last operation when all are computed; may return the
                gradients of these by themselves, for which the backward pass of this rank then waits.
            objective: what is differentiated, where `loss` does more than to compute it.
        """
        last = max((n for n, task in enumerate(tasks) if isinstance(task, Compute)), default=-1)
        final = tasks[last] if last >= 0 else None
        self._inputs, self._loss, self._update_values, self._seed = inputs, loss, update, seed
        self._objective = objective or loss
        for moves, some in groupby(tasks, key=lambda task: isinstance(task, Send | Receive)):
            if moves:
                yield from self._move(list(some))
                continue
            for task in some:
                if isinstance(task, Compute):
                    self._compute(task.unit)
                    if task is final and forward_done is not None:
                        done = forward_done([out for _, out in self._parts.outputs[task.unit.operation]])
                        self._began = (done or []) if task.unit.operation == LOSS else []
                elif isinstance(task, Differentiate):
                    self._differentiate(task)
                else:
                    self._update()
        self._store()

    def hand_out(self, tasks: Sequence[Task], values: Owned) -> Iterator[tuple[Message, ...]]:
        """Give all holders new values of what this rank owns; yields as `play` does.

        Args:
            tasks: the last ones of this rank's, that send and receive values.
            values: of what this rank owns.
        """
        self._update_values = lambda _: values
        for (path, box), one in values.items():
            self._parts.fresh[path].append((box, one))
        yield from self._move(tasks)
        self._store()

    def _move(self, tasks: Sequence[Task]) -> Iterator[tuple[Message, ...]]:
        """Send and receive what lies between two tasks that compute; nothing sent depends on what arrives."""
        for task in tasks:
            if isinstance(task, Send):
                self._mover.send(task.messages, [self._parts.leaving(one) for one in task.messages])
        awaited = [task.messages for task in tasks if isinstance(task, Receive)]
        if not awaited:
            self._mover.flush()
            return
        yield tuple(one for messages in awaited for one in messages)
        wanted: list[Wanted] = []
        for messages in awaited:
            shapes = [self._parts.flow(one).moves[one.number].box.shape for one in messages]
            wanted.append((messages, shapes, self._dtype_of(messages[0])))
        for messages, found in zip(awaited, self._mover.receive(wanted), strict=True):
            self._parts.arrived.update(zip(messages, found, strict=True))

    def _dtype_of(self, one: Message) -> Any:
        if one.content in ("output", "gradient"):
            operation = self._operations[one.name]
            return computing.dtype_of(operation, self._layers.get(operation.layer))
        return next(iter(self.blocks[one.name].values())).dtype

    def _compute(self, unit: Unit) -> None:
        operation = self._operations[unit.operation]
        if operation.kind == "input":
            values = self._inputs[unit.operation](unit.box)
            values = ops.cast(values, self._layers[operation.layer].dtype)  # as Keras does
            self._parts.outputs[unit.operation].append((unit.box, values))
            return
        reads = [
            None if box is None else self._parts.to_compute(reading.tensor, box)
            for reading, box in zip(operation.readings, unit.reads, strict=True)
        ]
        weights = self._weights(unit)
        output = self._computed(unit, reads, weights, self._loss)
        self._parts.outputs[unit.operation].append((unit.box, output))
        if operation.name == LOSS:
            self.losses.append(output)
        if operation.kind == "batch_norm" and self._update_values is not None:
            self._move_statistics(unit, reads[1], weights)

    def _weights(self, unit: Unit) -> list[Any]:
        weights = self._operations[unit.operation].weights
        return [self.held(weight.path, block) for weight, block in zip(weights, unit.blocks, strict=True)]

    def _computed(
        self, unit: Unit, reads: list[Any], weights: list[Any], loss: Callable[[Box, list[Any]], Any]
    ) -> Any:
        operation = self._operations[unit.operation]
        if operation.name == LOSS:
            return loss(unit.box, reads)
        layer = self._layers[operation.layer]
        return computing.compute(operation, layer, unit, reads, weights, self._seed)

    def _move_statistics(self, unit: Unit, moments: Any, weights: list[Any]) -> None:
        """Keep the new moving statistics of the unit's channels, which several of its units may share."""
        operation = self._operations[unit.operation]
        fresh = normalising.moved_statistics(operation, self._layers[operation.layer], moments, weights)
        for weight, block in zip(operation.weights, unit.blocks, strict=True):
            if weight.path in fresh:
                known = self._statistics[weight.path]
                for part in boxes.subtract(block, [box for box, _ in known]):
                    known.append((part, pieces.taken(part, block, fresh[weight.path])))

    def _differentiate(self, task: Differentiate) -> None:
        unit, operation = task.unit, self._operations[task.unit.operation]
        if operation.keeps == "output":
            upstream = self._upstream(unit)
            with tf.control_dependencies([upstream]):
                output = self._parts.to_differentiate(unit.operation, unit.box)
                gradient = gradients.from_output(output, upstream)
            self._parts.read[operation.readings[0].tensor].append((unit.box, gradient))
            return
        record = self._records[unit] = self._records.get(unit) or self._recorded(unit)
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

        found = iter(self._mover.meanwhile(wanted) if task.of == "weights" else wanted())
        for name, box, _ in read:
            self._parts.read[name].append((box, next(found)))
        for name, box, _ in used:
            self._parts.weight[name].append((box, next(found)))
        if task.of != "inputs":
            del self._records[unit]

    def _upstream(self, unit: Unit) -> Any:
        """The gradient of a unit's output; None where it is 1, and need not be waited for."""
        if unit.operation == LOSS:
            units = [one for one in self.placement.of(LOSS) if one.rank == self.rank]
            return self._began[units.index(unit)] if self._began else None
        operation = self._operations[unit.operation]
        kind = computing.dtype_of(operation, self._layers[operation.layer])
        return self._parts.gradient_of_output(unit, kind)

    def _recorded(self, unit: Unit) -> Record:
        """Compute a unit again, now under a tape, from what is kept: only what its gradients need is done."""
        operation, upstream = self._operations[unit.operation], self._upstream(unit)
        after = self.losses if upstream is None else [upstream]
        # Not earlier: TensorFlow would do it as soon as the inputs are there, and keep what comes of it.
        with (
            tf.control_dependencies(after),
            tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape,
        ):
            reads = [
                None if box is None else self._read_again(operation, reading.tensor, box)
                for reading, box in zip(operation.readings, unit.reads, strict=True)
            ]
            weights = self._weights(unit)
            tape.watch([x for x in (*reads, *weights) if x is not None])
            output = self._computed(unit, reads, weights, self._objective)
        return Record(tape, output, reads, weights, upstream)

    def _read_again(self, operation: Operation, tensor: str, box: Box) -> Any:
        if operation.keeps == "inputs":
            return self._parts.to_differentiate(tensor, box)
        read = self._operations[tensor]
        return tf.zeros(box.shape, computing.dtype_of(read, self._layers[read.layer]))

    def held(self, path: str, box: Box) -> Any:
        """Return this rank's values of a box of a variable."""
        return pieces.assembled(box, list(self.blocks[path].items()))

    def _update(self) -> None:
        summed: Owned = {}
        for path, flow in self.placement.reductions.items():
            if self.rank in flow.need.ranks:
                parts = self._parts.arriving("part", path, flow)
                for box in flow.need.of(self.rank):
                    summed[path, box] = pieces.assembled(box, parts, sums=True)
        if self._update_values is None:
            raise ValueError("an update needs a rule")
        for (path, box), values in self._update_values(summed).items():
            self._parts.fresh[path].append((box, values))

    def _store(self) -> None:
        for path, flow in self.placement.returns.items():
            if self._update_values is not None and self.rank in flow.need.ranks:
                parts = self._parts.arriving("value", path, flow)
                for box in self.blocks[path]:
                    self.blocks[path][box] = pieces.assembled(box, parts)
        for path, parts in self._statistics.items():
            for box in self.blocks[path]:
                self.blocks[path][box] = pieces.assembled(box, parts)
