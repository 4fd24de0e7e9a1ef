"""What a rank keeps of each tensor from the forward pass to the backward pass. Pure.

Gradients are computed from boxes of tensors. A box that lies in a larger one that is kept, such as a rank's
own part in that part with its neighbours' borders, is not kept: it is cut out again when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.planning.placement.boxes import Box
from trainer.planning.placement.operations import Operation
from trainer.planning.placement.units import Placement


class Kept:
    """The boxes that one rank keeps.

    Attributes:
        boxes: by tensor; none lies in another.
    """

    def __init__(self, placement: Placement, rank: int) -> None:
        self._placement, self._rank = placement, rank
        operations = {one.name: one for one in placement.network.operations}
        needed: dict[str, dict[Box, None]] = {}
        for unit in placement.units:
            if unit.rank != rank:
                continue
            operation = operations[unit.operation]
            if operation.keeps == "output":
                needed.setdefault(operation.name, {})[unit.box] = None
            elif operation.keeps == "inputs":
                for reading, box in zip(operation.readings, unit.reads, strict=False):  # inputs read nothing
                    if box is not None:
                        needed.setdefault(reading.tensor, {})[box] = None
        self.boxes: dict[str, tuple[Box, ...]] = {
            tensor: tuple(box for box in boxes if not any(_within(box, other) for other in boxes))
            for tensor, boxes in needed.items()
        }

    def around(self, tensor: str, box: Box) -> Box:
        """Return the kept box of which a needed one is a part, or which it is.

        Raises:
            KeyError: nobody needs this box.
        """
        for kept in self.boxes[tensor]:
            if kept & box == box:
                return kept
        raise KeyError(f"{tensor}{box}")

    def is_more_than_arrives(self, operations: Sequence[Operation]) -> bool:
        """Return whether a stage would keep less if it kept what arrives, and computed the rest again.

        The network's inputs are there anyway, and do not count.

        Args:
            operations: of the stage that the rank has a part in.
        """
        own, again = {one.name for one in operations}, computed_again(operations)
        needed = {one.name for one in operations if one.keeps == "output"}
        read: set[str] = set()
        for one in operations:
            tensors = {reading.tensor for reading in one.readings}
            needed |= tensors if one.keeps == "inputs" else set()
            read |= tensors if one.keeps == "inputs" or one.name in again else set()
        widths = {one.name: one.width for one in self._placement.network.operations if one.readings}
        kept = sum(box.size * widths[name] for name in needed & set(widths) for box in self.boxes[name])
        arrives = sum(
            move.box.size * widths[name]
            for name in read & set(widths)
            for move in self._placement.flows[name].moves
            if move.target.rank == self._rank and (move.crosses or name not in own)
        )
        return arrives < kept


def computed_again(operations: Sequence[Operation]) -> set[str]:
    """Return the names of the operations that a stage computes again, which has kept only what it reads.

    They are those whose outputs gradients are computed from, and what these read in turn.

    Args:
        operations: of the stage, in order.
    """
    names: set[str] = set()
    for one in reversed(operations):
        if one.keeps == "output":
            names.add(one.name)
        if one.keeps == "inputs" or one.name in names:
            names.update(reading.tensor for reading in one.readings)
    return names & {one.name for one in operations}


def _within(box: Box, other: Box) -> bool:
    return box != other and other & box == box
