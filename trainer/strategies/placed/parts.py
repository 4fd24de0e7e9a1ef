"""What one rank has of every tensor of a micro-batch during an update: computed here, or arrived."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tensorflow as tf

from trainer.planning.placement.boxes import Box
from trainer.planning.placement.exchanges import Move, Redistribution
from trainer.planning.placement.keeping import Kept
from trainer.planning.placement.tasks import Content, Message, message
from trainer.planning.placement.units import Placement, Unit
from trainer.strategies.placed import pieces
from trainer.strategies.placed.pieces import Part


class Parts:
    """Parts of a rank's tensors, and what messages take of them.

    Args:
        placement: of the network.
        rank: that has them.
        micro: number of the micro-batch.
        shared: what there is once in an update is this one's, too: gradients and values of variables.

    Attributes:
        outputs: of units, by operation.
        joined: boxes that units read, by tensor and box.
        arrived: what messages brought.
        read: gradients of what units have read, by tensor.
        weight: gradients of blocks, by variable; those of all micro-batches so far.
        fresh: new values of what this rank owns, by variable.
    """

    def __init__(self, placement: Placement, rank: int, micro: int = 0, shared: Parts | None = None) -> None:
        self._placement, self._rank, self._micro = placement, rank, micro
        self._sums = {one.name for one in placement.network.operations if one.sums}
        self._kept = Kept(placement, rank)
        self.outputs: dict[str, list[Part]] = defaultdict(list)
        self.joined: dict[tuple[str, Box], Any] = {}
        self.arrived: dict[Message, Any] = {}
        self.read: dict[str, list[Part]] = defaultdict(list)
        self.weight: dict[str, list[Part]] = shared.weight if shared else defaultdict(list)
        self.fresh: dict[str, list[Part]] = shared.fresh if shared else defaultdict(list)

    def again(self) -> Parts:
        """Return parts of a second pass: what it does not compute itself, and gradients, are this one's."""
        found = Parts(self._placement, self._rank, self._micro, self)
        found.arrived, found.read = self.arrived, self.read
        found.outputs.update(self.outputs)
        return found

    def computed(self, unit: Unit, values: Any) -> None:
        """Take a unit's output, in the place of that of an earlier pass."""
        others = [part for part in self.outputs[unit.operation] if part[0] != unit.box]
        self.outputs[unit.operation] = [*others, (unit.box, values)]

    def flow(self, message: Message) -> Redistribution:
        """Return the moves that a message is one of."""
        if message.content in ("output", "gradient"):
            return self._placement.flows[message.name]
        if message.content == "part":
            return self._placement.reductions[message.name]
        return self._placement.returns[message.name]

    def leaving(self, message: Message) -> Any:
        """Return what a message takes along."""
        move = self.flow(message).moves[message.number]
        if message.content == "gradient":
            return self._gradient_of_read(message.name, move)
        return self._of_source(message.content, message.name, move)

    def _of_source(self, content: Content, name: str, move: Move) -> Any:
        """What a move takes along, from the piece that this rank has."""
        if content == "output":
            return pieces.assembled(move.box, self.outputs[name], sums=name in self._sums)
        if content == "part":
            return pieces.assembled(move.box, self.weight[name], sums=True)
        return pieces.assembled(move.box, self.fresh[name])

    def arriving(
        self, content: Content, name: str, flow: Redistribution, region: Box | None = None
    ) -> list[Part]:
        """Return everything that moves to this rank, its own parts too, in the order of moves.

        With `region`, only what has a part in that box.
        """
        parts = []
        for number, move in enumerate(flow.moves):
            if move.target.rank != self._rank or (region is not None and move.box & region is None):
                continue
            if move.crosses:
                one = message(content, name, flow, number, micro=self._micro)
                parts.append((move.box, self.arrived[one]))
            else:
                parts.append((move.box, self._of_source(content, name, move)))
        return parts

    def to_compute(self, tensor: str, box: Box) -> Any:
        """Return a box that a unit reads, put together of what is here and what has arrived."""
        if (tensor, box) not in self.joined:
            sums = tensor in self._sums
            parts = self.arriving("output", tensor, self._placement.flows[tensor], box)
            self.joined[tensor, box] = pieces.assembled(box, parts, sums=sums, ordered=sums)
        return self.joined[tensor, box]

    def to_differentiate(self, tensor: str, box: Box) -> Any:
        """Return a box that was read, or computed here, from what is kept of the tensor."""
        around = self._kept.around(tensor, box)
        own = (values for held, values in self.outputs[tensor] if held == around)
        values = self.joined.get((tensor, around))
        if values is None:
            values = next(own, None)
        if values is None:  # let go since it was read
            values = self.to_compute(tensor, around)
        return pieces.taken(box, around, values)

    def add_gradient(self, path: str, box: Box, values: Any) -> None:
        """Add a block's gradient of this micro-batch to that of the ones before."""
        blocks = self.weight[path]
        number = next((i for i, (held, _) in enumerate(blocks) if held == box), None)
        if self._micro == 0 or number is None:
            blocks.append((box, values))
        else:
            blocks[number] = box, blocks[number][1] + values

    def _gradient_of_read(self, tensor: str, move: Move) -> Any:
        """The gradient of what has moved to this rank: a sum over all that read it here."""
        return pieces.assembled(move.box, self.read[tensor], sums=True)

    def gradient_of_output(self, unit: Unit, dtype: Any) -> Any:
        """Return the sum of what comes back along all moves that took a part of the unit's output."""
        flow = self._placement.flows.get(unit.operation)
        back = []
        for number, move in enumerate(flow.moves if flow else ()):
            if flow is None or move.source.rank != self._rank or move.box & unit.box is None:
                continue
            if move.crosses:
                one = message("gradient", unit.operation, flow, number, back=True, micro=self._micro)
                back.append((move.box, self.arrived[one]))
            else:
                back.append((move.box, self._gradient_of_read(unit.operation, move)))
        if not back:  # nobody reads it
            return tf.zeros(unit.box.shape, dtype)
        return pieces.assembled(unit.box, back, sums=True)
