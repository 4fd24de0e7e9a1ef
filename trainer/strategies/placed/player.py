"""One rank's part of an update, played from its task list.

A `Player` computes its units under a gradient tape each, from this rank's blocks of the variables, and hands
messages to whatever moves them. It works eagerly and while a graph is traced; one player is one update.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

import tensorflow as tf
from keras import ops

from trainer.planning.placement import boxes
from trainer.planning.placement.boxes import Box
from trainer.planning.placement.tasks import (
    Compute,
    Differentiate,
    Message,
    Receive,
    Send,
    Task,
)
from trainer.planning.placement.units import Placement, Unit
from trainer.strategies.placed import computing, normalising, pieces
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
        self._parts = Parts(placement, rank)
        self._records: dict[Unit, tuple[Any, Any, list[Any], list[Any]]] = {}
        self._statistics: dict[str, list[Part]] = defaultdict(list)

    def play(
        self,
        tasks: tuple[Task, ...],
        inputs: Mapping[str, Callable[[Box], Any]],
        loss: Callable[[Box, list[Any]], Any],
        update: Callable[[Owned], Owned] | None = None,
        seed: Any = (0, 0),
        forward_done: Callable[[list[Any]], None] | None = None,
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
            forward_done: called with the outputs of the last unit when all are computed.
        """
        last = max((n for n, task in enumerate(tasks) if isinstance(task, Compute)), default=-1)
        final = tasks[last] if last >= 0 else None
        self._inputs, self._loss, self._update_values, self._seed = inputs, loss, update, seed
        for moves, some in groupby(tasks, key=lambda task: isinstance(task, Send | Receive)):
            if moves:
                yield from self._move(list(some))
                continue
            for task in some:
                if isinstance(task, Compute):
                    self._compute(task.unit)
                    if task is final and forward_done is not None:
                        forward_done([values for _, values in self._parts.outputs[task.unit.operation]])
                elif isinstance(task, Differentiate):
                    self._differentiate(task.unit)
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
        reads: list[Any] = []
        for reading, box in zip(operation.readings, unit.reads, strict=True):
            if box is None:
                reads.append(None)
                continue
            flow = self.placement.flows[reading.tensor]
            parts = self._parts.arriving("output", reading.tensor, flow, box)
            sums = self._operations[reading.tensor].sums
            reads.append(pieces.assembled(box, parts, sums=sums, ordered=sums))
        weights = [
            pieces.assembled(block, list(self.blocks[weight.path].items()))
            for weight, block in zip(operation.weights, unit.blocks, strict=True)
        ]
        if self._update_values is None:
            self._parts.outputs[unit.operation].append((unit.box, self._computed(unit, reads, weights)))
            return
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([x for x in (*reads, *weights) if x is not None])
            output = self._computed(unit, reads, weights)
        self._parts.outputs[unit.operation].append((unit.box, output))
        self._records[unit] = (tape, output, reads, weights)
        if operation.kind == "batch_norm":
            self._move_statistics(unit, reads[1], weights)

    def _computed(self, unit: Unit, reads: list[Any], weights: list[Any]) -> Any:
        operation = self._operations[unit.operation]
        if operation.name == LOSS:
            output = self._loss(unit.box, reads)
            self.losses.append(output)
            return output
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

    def _differentiate(self, unit: Unit) -> None:
        operation = self._operations[unit.operation]
        tape, output, reads, weights = self._records.pop(unit)
        seed = None if operation.name == LOSS else self._parts.gradient_of_output(unit, output)
        there = [x for x in reads if x is not None]
        found = tape.gradient(
            output,
            [*there, *weights],
            output_gradients=seed,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        gradients = iter(found)
        for reading, box in zip(operation.readings, unit.reads, strict=True):
            if box is not None:
                self._parts.read[reading.tensor].append((box, next(gradients)))
        for weight, block in zip(operation.weights, unit.blocks, strict=True):
            gradient = next(gradients)
            if weight.trainable:
                self._parts.weight[weight.path].append((block, gradient))

    def held(self, path: str, box: Box) -> Any:
        """Return this rank's values of a box of a variable."""
        return pieces.assembled(box, list(self.blocks[path].items()))

    def _update(self) -> None:
        gradients: Owned = {}
        for path, flow in self.placement.reductions.items():
            if self.rank in flow.need.ranks:
                parts = self._parts.arriving("part", path, flow)
                for box in flow.need.of(self.rank):
                    gradients[path, box] = pieces.assembled(box, parts, sums=True)
        if self._update_values is None:
            raise ValueError("an update needs a rule")
        for (path, box), values in self._update_values(gradients).items():
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
