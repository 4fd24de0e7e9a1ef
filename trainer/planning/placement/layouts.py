"""Layouts: which rank holds which boxes of a tensor. Pure."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainer.errors import ConfigError
from trainer.planning.placement import boxes
from trainer.planning.placement.boxes import Box, whole


@dataclass(frozen=True, order=True)
class Piece:
    """A box of a tensor on one rank."""

    rank: int
    box: Box

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.box}"


@dataclass(frozen=True)
class TensorLayout:
    """Who holds what of a tensor.

    Attributes:
        shape: of the whole tensor, samples first.
        pieces: in the order of ranks. Pieces of one rank do not overlap; those of several may (replicas).
    """

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    def of(self, rank: int) -> tuple[Box, ...]:
        """The boxes of a rank."""
        return self._by_rank.get(rank, ())

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that hold something, in order."""
        return tuple(sorted(self._by_rank))

    @functools.cached_property
    def _by_rank(self) -> dict[int, tuple[Box, ...]]:
        found: defaultdict[int, tuple[Box, ...]] = defaultdict(tuple)
        for piece in self.pieces:
            found[piece.rank] += (piece.box,)
        return dict(found)

    def elements(self, rank: int) -> int:
        """Number of elements that a rank holds."""
        return sum(box.size for box in self.of(rank))

    def check(self, name: str, *, covers: bool = True) -> None:
        """See that pieces lie inside the tensor, cover it, and do not overlap on one rank.

        Args:
            name: of the tensor, for messages.
            covers: whether every element must be held.

        Raises:
            ConfigError: says which tensor, rank and box.
        """
        everything = whole(self.shape)
        for piece in self.pieces:
            if len(piece.box.ranges) != len(self.shape) or not everything.contains(piece.box):
                raise ConfigError(
                    f"{name}: {piece} is not inside the tensor, whose shape is {list(self.shape)}.",
                    cure="Correct the box in the plan.",
                )
        for one, other in itertools.combinations(self.pieces, 2):
            if one.rank == other.rank and one.box & other.box is not None:
                raise ConfigError(
                    f"{name}: rank {one.rank} holds {one.box} and {other.box}, which overlap.",
                    cure="Give every element of a tensor to a rank once.",
                )
        if covers and (missing := boxes.subtract(everything, (piece.box for piece in self.pieces))):
            raise ConfigError(
                f"{name}: no rank holds {missing[0]}"
                + (f", nor {len(missing) - 1} more box(es)." if len(missing) > 1 else "."),
                cure="Give every element of the tensor to a rank.",
            )

    def tree(self) -> list[list[object]]:
        """The pieces for JSON: `[rank, [[start, stop], ...]]`."""
        return [[piece.rank, [list(r) for r in piece.box.ranges]] for piece in self.pieces]


def layout(shape: Sequence[int], held: Mapping[int, Iterable[Box]]) -> TensorLayout:
    """A layout of the boxes of each rank; boxes of one rank that touch become one."""
    pieces = [Piece(rank, box) for rank in sorted(held) for box in boxes.joined(held[rank])]
    return TensorLayout(tuple(shape), tuple(pieces))


def replicated(shape: Sequence[int], ranks: Iterable[int]) -> TensorLayout:
    """Every one of these ranks holds the whole tensor."""
    return layout(shape, {rank: [whole(shape)] for rank in ranks})


def cut(shape: Sequence[int], axis: int, shares: Mapping[int, float]) -> TensorLayout:
    """One axis divided over ranks in proportion to their shares; a rank without a share holds nothing.

    Raises:
        ValueError: shares are negative or all 0; see `boxes.divided`.
    """
    ranges = boxes.divided(shape[axis], list(shares.values()))
    held = {
        rank: [whole(shape).with_range(axis, range_)]
        for rank, range_ in zip(shares, ranges, strict=True)
        if range_ is not None
    }
    return layout(shape, held)


def grid(shape: Sequence[int], parts: Mapping[int, int], ranks: Sequence[int]) -> TensorLayout:
    """Several axes divided evenly; ranks are numbered along the last of these axes first.

    Args:
        shape: of the tensor.
        parts: number of parts of each axis.
        ranks: as many as there are parts.

    Raises:
        ConfigError: an axis is shorter than its parts, or ranks and parts differ.
    """
    cuts = []
    for axis, count in parts.items():
        if count > shape[axis]:
            raise ConfigError(
                f"An axis of {shape[axis]} cannot be divided into {count} parts.", cure="Take fewer parts."
            )
        cuts.append([(axis, one) for one in boxes.divided(shape[axis], [1.0] * count)])
    combined = list(itertools.product(*cuts))
    if len(combined) != len(ranks):
        raise ConfigError(f"{len(combined)} parts and {len(ranks)} ranks: the numbers must be equal.")
    held: dict[int, list[Box]] = {}
    for rank, ranges in zip(ranks, combined, strict=True):
        box = whole(shape)
        for axis, range_ in ranges:
            assert range_ is not None  # noqa: S101  counts are checked above
            box = box.with_range(axis, range_)
        held.setdefault(rank, []).append(box)
    return layout(shape, held)
