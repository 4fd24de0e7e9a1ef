"""Exchanges: what must move so that a tensor goes from one layout to another. Pure.

An exchange is a linear map A from the pieces that ranks have to the pieces that they need. Its adjoint A*
moves the same boxes the other way round and adds up where they overlap: <Ax, y> = <x, A*y>.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from trainer.errors import ConfigError
from trainer.planning.placement.boxes import Box, subtract
from trainer.planning.placement.layouts import Piece, TensorLayout


@dataclass(frozen=True, order=True)
class Move:
    """A box of a tensor that goes from a piece that a rank has to a piece that a rank needs.

    Attributes:
        source: the piece that has it.
        target: the piece that needs it; on the same rank nothing crosses a link.
        box: inside both.
    """

    source: Piece
    target: Piece
    box: Box

    @property
    def crosses(self) -> bool:
        """Whether the box goes from one rank to another."""
        return self.source.rank != self.target.rank


@dataclass(frozen=True)
class Redistribution:
    """How a tensor gets from the layout `have` to the layout `need`.

    Attributes:
        have: who holds what before.
        need: who holds what afterwards; need not cover the tensor.
        moves: sorted; the boxes that go to one needed piece cover it. Where they overlap they are added up.
        width: bytes of an element.
    """

    have: TensorLayout
    need: TensorLayout
    moves: tuple[Move, ...]
    width: int = 4

    @property
    def messages(self) -> tuple[Move, ...]:
        """The moves between two ranks."""
        return tuple(move for move in self.moves if move.crosses)

    @functools.cached_property
    def leaving(self) -> dict[int, tuple[int, ...]]:
        """Of each rank, numbers of the moves that cross from it."""
        return self._crossing(lambda move: move.source.rank)

    @functools.cached_property
    def arriving(self) -> dict[int, tuple[int, ...]]:
        """Of each rank, numbers of the moves that cross to it."""
        return self._crossing(lambda move: move.target.rank)

    def _crossing(self, rank: Callable[[Move], int]) -> dict[int, tuple[int, ...]]:
        found: dict[int, list[int]] = defaultdict(list)
        for number, move in enumerate(self.moves):
            if move.crosses:
                found[rank(move)].append(number)
        return {one: tuple(numbers) for one, numbers in found.items()}

    def elements_sent(self) -> dict[tuple[int, int], int]:
        """Elements from rank to rank; the adjoint sends as many the other way round."""
        found: dict[tuple[int, int], int] = defaultdict(int)
        for move in self.messages:
            found[move.source.rank, move.target.rank] += move.box.size
        return dict(found)


def exchange(
    have: TensorLayout, need: TensorLayout, name: str = "tensor", *, sums: bool = False, width: int = 4
) -> Redistribution:
    """Plan the moves.

    What a rank has itself it does not receive; of several holders, the one that has sent the fewest elements
    in this exchange sends, the lowest rank first. With `sums`, the pieces are parts of a sum (statistics of
    batch norm, gradients of weights that several ranks use): each of them goes to everyone that needs it.

    Args:
        have: must hold all that is needed.
        need: pieces of one rank do not overlap.
        name: of the tensor, for messages.
        sums: whether overlapping pieces are to be added up.
        width: bytes of an element.

    Raises:
        ConfigError: no rank holds a box that is needed, or the shapes differ.
    """
    if have.shape != need.shape:
        raise ConfigError(f"{name}: the layouts are of shapes {list(have.shape)} and {list(need.shape)}.")
    found = _planned(have, need, sums, width)
    if isinstance(found, _Missing):
        raise ConfigError(f"{name}: {found.target} is needed, and no rank holds {found.box}.")
    return found


class _Missing(NamedTuple):
    """A piece that is needed, and a box of it that no rank holds."""

    target: Piece
    box: Box


# Layers that are alike are divided alike, and so are many of the placements that a planner compares.
@functools.lru_cache(maxsize=2**12)
def _planned(have: TensorLayout, need: TensorLayout, sums: bool, width: int) -> Redistribution | _Missing:
    sent: dict[int, int] = defaultdict(int)
    moves: list[Move] = []
    for target in need.pieces:
        found, missing = _all_parts(have, target) if sums else _one_of_each(have, target, sent)
        if missing is not None:
            return _Missing(target, missing)
        moves += found
    return Redistribution(have, need, tuple(sorted(moves)), width)


def _all_parts(have: TensorLayout, target: Piece) -> tuple[list[Move], Box | None]:
    moves = [
        Move(piece, target, part) for piece in have.pieces if (part := piece.box & target.box) is not None
    ]
    missing = subtract(target.box, (move.box for move in moves))
    return moves, missing[0] if missing else None


def _one_of_each(have: TensorLayout, target: Piece, sent: dict[int, int]) -> tuple[list[Move], Box | None]:
    moves: list[Move] = []
    left = [target.box]
    near = [piece for piece in have.pieces if piece.box & target.box is not None]
    while left:
        box = left.pop(0)
        holders = sorted(near, key=lambda piece: (piece.rank != target.rank, sent[piece.rank], piece))
        move = next(
            (Move(piece, target, part) for piece in holders if (part := piece.box & box) is not None), None
        )
        if move is None:
            return moves, box
        moves.append(move)
        if move.crosses:
            sent[move.source.rank] += move.box.size
        left += box.minus(move.box)
    return moves, None
