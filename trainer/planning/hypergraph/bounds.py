"""One box for each rank, of all ranks at once, as arrays. Pure.

Most layouts give a rank one box at most. What such ranks need and lack is counted without a loop over them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.planning.placement.layouts import TensorLayout
from trainer.planning.placement.operations import Operation, Reading

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
# Of more boxes for each rank, unions are not counted by inclusion and exclusion: sums have 2^n terms.
MOST_BOXES = 4


@dataclass(frozen=True, eq=False)
class Bounds:
    """A box of a tensor for each rank; one without elements for a rank that has none.

    Attributes:
        lower: first index, `(ranks, axes)`.
        upper: index after the last one, `(ranks, axes)`.
    """

    lower: Ints
    upper: Ints

    @functools.cached_property
    def sizes(self) -> Ints:
        """Elements of each rank, `(ranks,)`."""
        return np.asarray((self.upper - self.lower).clip(min=0).prod(axis=1))

    def __and__(self, other: Bounds) -> Bounds:
        """What is in both, rank by rank."""
        return Bounds(np.maximum(self.lower, other.lower), np.minimum(self.upper, other.upper))

    def covers(self, other: Bounds) -> bool:
        """Return whether the other's box of every rank is inside this one's."""
        inside = ((self.lower <= other.lower) & (other.upper <= self.upper)).all(axis=1)
        return bool((inside | (other.sizes == 0)).all())

    def padded(self, ranks: int) -> Bounds:
        """Return the same for more ranks, which have none."""
        if len(self.lower) == ranks:
            return self
        lower, upper = (np.zeros((ranks, self.lower.shape[1]), np.int64) for _ in range(2))
        lower[: len(self.lower)], upper[: len(self.upper)] = self.lower, self.upper
        return Bounds(lower, upper)


def of(layout: TensorLayout) -> Bounds | None:
    """Return the boxes of a layout; None where a rank has several."""
    pieces = layout.pieces
    ranks = [piece.rank for piece in pieces]
    if len(set(ranks)) < len(ranks):
        return None
    both = np.zeros((max(ranks) + 1, len(layout.shape), 2), np.int64)
    both[ranks] = [piece.box.ranges for piece in pieces]
    return Bounds(both[..., 0], both[..., 1])


def needed(reading: Reading, made: Bounds) -> Bounds:
    """Return what boxes of an operation's output need of one of its inputs."""
    lower, upper = (np.zeros((len(made.lower), len(reading.shape)), np.int64) for _ in range(2))
    empty = made.sizes == 0
    for axis, (size, how) in enumerate(zip(reading.shape, reading.axes, strict=True)):
        if how is None:
            upper[:, axis] = size
            continue
        ranges = list(zip(made.lower[:, how[0]].tolist(), made.upper[:, how[0]].tolist(), strict=True))
        needs = {one: how[1].need(one, size) for one in set(ranges) if one[0] < one[1]}
        found = [(0, 0) if (need := needs.get(one)) is None else need.range for one in ranges]
        lower[:, axis], upper[:, axis] = np.array(found).T
    upper[empty] = lower[empty] = 0
    return Bounds(lower, upper)


def reduced(operation: Operation, parts: Bounds) -> Bounds:
    """Return the box of a sum to which each part of its input adds; of an operation that `sums`."""
    count, empty = len(parts.lower), parts.sizes == 0
    lower = np.zeros((count, len(operation.shape)), np.int64)
    upper = np.tile(np.array(operation.shape, np.int64), (count, 1))
    for axis, how in enumerate(operation.readings[0].axes):
        if how is not None:
            ranges = list(zip(parts.lower[:, axis].tolist(), parts.upper[:, axis].tolist(), strict=True))
            reached = {one: how[1].reached(one) for one in set(ranges) if one[0] < one[1]}
            ends = np.array([reached.get(one, (0, 0)) for one in ranges])
            lower[:, how[0]], upper[:, how[0]] = ends.T
    upper[empty] = lower[empty] = 0
    return Bounds(lower, upper)


def largest(some: Sequence[Bounds]) -> list[Bounds]:
    """Return those that are inside of no other one, for any rank."""
    outermost: list[Bounds] = []
    for one in some:
        if not any(other.covers(one) for other in outermost):
            outermost = [other for other in outermost if not one.covers(other)] + [one]
    return outermost


def missing(needs: Sequence[Bounds], own: Bounds) -> Ints:
    """Return how many elements of the union of these boxes are not among a rank's own, `(ranks,)`.

    Args:
        needs: one or more, at most `MOST_BOXES`.
        own: of as many ranks.
    """
    total = np.zeros(len(own.lower), np.int64)
    for count in range(1, len(needs) + 1):
        for some in itertools.combinations(needs, count):
            common = some[0]
            for one in some[1:]:
                common = common & one
            more = common.sizes - (common & own).sizes
            total = total + more if count % 2 else total - more
    return total


def are_halos(needs: Sequence[Bounds], own: Bounds) -> Flags:
    """Return of each rank whether it has the inside of what it reads, and lacks the border in space."""
    far = np.iinfo(np.int64).max
    there = [(one, (one.sizes > 0)[:, None]) for one in needs]
    need = Bounds(
        np.min([np.where(is_there, one.lower, far) for one, is_there in there], axis=0),
        np.max([np.where(is_there, one.upper, 0) for one, is_there in there], axis=0),
    )
    ends = (0, need.lower.shape[1] - 1)  # samples and channels
    has_all = [
        (own.lower[:, at] <= need.lower[:, at]) & (need.upper[:, at] <= own.upper[:, at]) for at in ends
    ]
    return np.asarray((own.sizes > 0) & ((need & own).sizes > 0) & has_all[0] & has_all[1])
