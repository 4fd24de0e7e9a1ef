"""One rank's part of an update, played from its task list.

A `Player` holds this rank's blocks of the variables, computes its units under a gradient tape each, and hands
messages to whatever moves them. It works eagerly and inside of a graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import tensorflow as tf
from keras import ops

from trainer.planning.placement.boxes import Box
from trainer.planning.placement.exchanges import Exchange, Move
from trainer.planning.placement.tasks import Compute, Content, Differentiate, Message, Receive, Send, Task
from trainer.planning.placement.units import Placement, Unit
from trainer.strategies.placed import computing, pieces
from trainer.strategies.placed.pieces import Part
from trainer.strategies.placed.reading import LOSS

Blocks = dict[str, dict[Box, Any]]


class Mover(Protocol):
    """What carries messages between ranks."""

    def send(self, message: Message, values: Any) -> None:
        """Hand over an array of the shape of the message's box; does not wait."""

    def receive(self, message: Message) -> Any:
        """Return the array of a message that is there."""


class Player:
    """See the top of this file.

    Args:
        placement: of the network.
        rank: of this process.
        layers: of the Keras model, by name.
        blocks: this rank's part of each variable, by path: `placement.holders`.
        mover: of messages.
    """

    def __init__(
        self, placement: Placement, rank: int, layers: Mapping[str, Any], blocks: Blocks, mover: Mover
    ) -> None:
        self.placement, self.rank, self.blocks = placement, rank, blocks
        self._layers, self._mover = layers, mover
        self._operations = {one.name: one for one in placement.network.operations}

    def play(
        self,
        tasks: tuple[Task, ...],
        inputs: Mapping[str, Callable[[Box], Any]],
        loss: Callable[[Box, list[Any]], Any],
        update: Callable[[str, Box, Any, Any], Any],
        seed: Any = (0, 0),
    ) -> Iterator[Message]:
        """Do the tasks of one update; yields each message that it must have before it can go on.

        Args:
            tasks: of this rank.
            inputs: from a box of a network's input to its values.
            loss: from the box of samples `(b,)` and the network's outputs for them to their part of the loss,
                a scalar; the parts of all ranks add up.
            update: from path, box, values and gradient of what this rank owns to the new values.
            seed: for dropout.
        """
        self._inputs, self._loss, self._update_values, self._seed = inputs, loss, update, seed
        self.losses: list[Any] = []
        self._outputs: dict[str, list[Part]] = defaultdict(list)
        self._records: dict[Unit, tuple[tf.GradientTape, Any, list[Any], list[Any]]] = {}
        self._arrived: dict[Message, Any] = {}
        # Gradients by tensor: of what this rank needs, and by variable: of what it holds.
        self._read: dict[str, list[Part]] = defaultdict(list)
        self._weight: dict[str, list[Part]] = defaultdict(list)
        self._fresh: dict[str, list[Part]] = {}
        for task in tasks:
            if isinstance(task, Compute):
                self._compute(task.unit)
            elif isinstance(task, Differentiate):
                self._differentiate(task.unit)
            elif isinstance(task, Send):
                self._mover.send(task.message, self._values_of(task.message))
            elif isinstance(task, Receive):
                yield task.message
                self._arrived[task.message] = self._mover.receive(task.message)
            else:
                self._update()
        self._store()

    def _flow(self, message: Message) -> Exchange:
        if message.content in ("output", "gradient"):
            return self.placement.flows[message.name]
        return (self.placement.reductions if message.content == "part" else self.placement.returns)[
            message.name
        ]

    def _values_of(self, message: Message) -> Any:
        move = self._flow(message).moves[message.number]
        if message.content == "gradient":
            return self._gradient_of_read(message.name, move)
        return self._of_source(message.content, message.name, move)

    def _of_source(self, content: Content, name: str, move: Move) -> Any:
        """What a move takes along, from the piece that this rank has."""
        if content == "output":
            return pieces.assembled(move.box, self._outputs[name], sums=self._operations[name].sums)
        if content == "part":
            return pieces.assembled(move.box, self._weight[name], sums=True)
        return pieces.assembled(move.box, self._fresh[name])

    def _arriving(self, content: Content, name: str, flow: Exchange) -> list[Part]:
        """Everything that moves to this rank, its own parts too, in the order of moves."""
        found = []
        for number, move in enumerate(flow.moves):
            if move.target.rank != self.rank:
                continue
            if move.crosses:
                message = Message(content, name, number, move.source.rank, self.rank, move.box.size)
                found.append((move.box, self._arrived[message]))
            else:
                found.append((move.box, self._of_source(content, name, move)))
        return found

    def _compute(self, unit: Unit) -> None:
        operation = self._operations[unit.operation]
        if operation.kind == "input":
            values = self._inputs[unit.operation](unit.box)
            values = ops.cast(values, self._layers[operation.layer].dtype)  # as Keras does
            self._outputs[unit.operation].append((unit.box, values))
            return
        reads: list[Any] = []
        for reading, box in zip(operation.readings, unit.reads, strict=True):
            if box is None:
                reads.append(None)
                continue
            flow = self.placement.flows[reading.tensor]
            parts = self._arriving("output", reading.tensor, flow)
            reads.append(pieces.assembled(box, parts, sums=self._operations[reading.tensor].sums))
        weights = [
            pieces.assembled(block, list(self.blocks[weight.path].items()))
            for weight, block in zip(operation.weights, unit.blocks, strict=True)
        ]
        watched = [x for x in (*reads, *weights) if x is not None]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(watched)
            if operation.name == LOSS:
                output = self._loss(unit.box, reads)
                self.losses.append(output)
            else:
                layer = self._layers[operation.layer]
                output = computing.compute(operation, layer, unit, reads, weights, self._seed)
        self._outputs[unit.operation].append((unit.box, output))
        self._records[unit] = (tape, output, reads, weights)

    def _differentiate(self, unit: Unit) -> None:
        operation = self._operations[unit.operation]
        tape, output, reads, weights = self._records.pop(unit)
        seed = None if operation.name == LOSS else self._gradient_of_output(unit)
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
                self._read[reading.tensor].append((box, next(gradients)))
        for weight, block in zip(operation.weights, unit.blocks, strict=True):
            gradient = next(gradients)
            if weight.trainable:
                self._weight[weight.path].append((block, gradient))

    def _gradient_of_read(self, tensor: str, move: Move) -> Any:
        """The gradient of what has moved to this rank: a sum over all that read it here."""
        return pieces.assembled(move.box, self._read[tensor], sums=True)

    def _gradient_of_output(self, unit: Unit) -> Any:
        """The sum of what comes back along all moves that took a part of the unit's output."""
        flow = self.placement.flows[unit.operation]
        back = []
        for number, move in enumerate(flow.moves):
            if move.source.rank != self.rank or move.box & unit.box is None:
                continue
            if move.crosses:
                message = Message(
                    "gradient", unit.operation, number, move.target.rank, self.rank, move.box.size
                )
                back.append((move.box, self._arrived[message]))
            else:
                back.append((move.box, self._gradient_of_read(unit.operation, move)))
        return pieces.assembled(unit.box, back, sums=True)

    def _update(self) -> None:
        for path, flow in self.placement.reductions.items():
            parts = self._arriving("part", path, flow)
            for box in flow.need.of(self.rank):
                values = pieces.assembled(box, list(self.blocks[path].items()))
                gradient = pieces.assembled(box, parts, sums=True)
                self._fresh.setdefault(path, []).append(
                    (box, self._update_values(path, box, values, gradient))
                )

    def _store(self) -> None:
        for path, flow in self.placement.returns.items():
            if self.rank not in flow.need.ranks:
                continue
            parts = self._arriving("value", path, flow)
            for box in self.blocks[path]:
                self.blocks[path][box] = pieces.assembled(box, parts)
