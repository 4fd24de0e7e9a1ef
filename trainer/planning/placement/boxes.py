"""Boxes: a range of indices on each axis of a tensor. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Range = tuple[int, int]


@dataclass(frozen=True, order=True)
class Box:
    """The indices `start <= i < stop` on each axis of a tensor.

    Attributes:
        ranges: `(start, stop)` of each axis; `stop > start`.

    Raises:
        ValueError: a range is empty or starts below 0.
    """

    ranges: tuple[Range, ...]

    def __post_init__(self) -> None:
        for start, stop in self.ranges:
            if not 0 <= start < stop:
                raise ValueError(f"range {start}:{stop} is empty or starts below 0")

    def __str__(self) -> str:
        return "[" + ", ".join(f"{start}:{stop}" for start, stop in self.ranges) + "]"

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return tuple(stop - start for start, stop in self.ranges)

    @functools.cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod([stop - start for start, stop in self.ranges])

    def __and__(self, other: Box) -> Box | None:
        """The indices in both; None where there are none."""
        ranges = []
        for (a, b), (c, d) in zip(self.ranges, other.ranges, strict=True):
            start, stop = a if a > c else c, b if b < d else d
            if start >= stop:
                return None
            ranges.append((start, stop))
        return Box(tuple(ranges))

    def contains(self, other: Box) -> bool:
        """Whether every index of `other` is in this box."""
        return self & other == other

    def minus(self, other: Box) -> list[Box]:
        """Return disjoint boxes that hold every index of this box that is not in `other`."""
        common = self & other
        if common is None:
            return [self]
        left, rest = list(self.ranges), []
        for axis, ((start, stop), (first, last)) in enumerate(zip(self.ranges, common.ranges, strict=True)):
            for part in ((start, first), (last, stop)):
                if part[0] < part[1]:
                    rest.append(Box((*left[:axis], part, *self.ranges[axis + 1 :])))
            left[axis] = (first, last)
        return rest

    def slices_in(self, outer: Box) -> tuple[slice, ...]:
        """Where this box lies in an array that holds exactly `outer`.

        Raises:
            ValueError: it is not inside `outer`.
        """
        if not outer.contains(self):
            raise ValueError(f"{self} is not inside {outer}")
        return tuple(
            slice(start - origin, stop - origin)
            for (start, stop), (origin, _) in zip(self.ranges, outer.ranges, strict=True)
        )

    def with_range(self, axis: int, range_: Range) -> Box:
        """The same box with another range on one axis; `axis` may count from the end."""
        axis %= len(self.ranges)
        return Box((*self.ranges[:axis], range_, *self.ranges[axis + 1 :]))


def whole(shape: Sequence[int]) -> Box:
    """The box of a whole tensor."""
    return Box(tuple((0, length) for length in shape))


def hull(boxes: Iterable[Box]) -> Box:
    """The smallest box that contains all of these."""
    axes = zip(*(box.ranges for box in boxes), strict=True)
    return Box(tuple((min(a for a, _ in axis), max(b for _, b in axis)) for axis in axes))


def subtract(box: Box, others: Iterable[Box]) -> list[Box]:
    """Disjoint boxes that hold every index of `box` that is in none of the others."""
    left = [box]
    for other in others:
        left = [part for piece in left for part in piece.minus(other)]
    return left


def disjoint(boxes: Iterable[Box]) -> list[Box]:
    """The same indices in boxes that do not overlap."""
    found: list[Box] = []
    for box in dict.fromkeys(boxes):
        found += subtract(box, found)
    return found


def joined(boxes: Iterable[Box]) -> list[Box]:
    """The same indices in fewer boxes: those that touch along one axis become one, until none do.

    Args:
        boxes: disjoint.
    """
    left = sorted(boxes)
    while True:
        pair = next(
            (
                (i, j, one)
                for i in range(len(left))
                for j in range(i + 1, len(left))
                if (one := _glued(left[i], left[j])) is not None
            ),
            None,
        )
        if pair is None:
            return left
        i, j, one = pair
        left = sorted([*left[:i], *left[i + 1 : j], *left[j + 1 :], one])


def _glued(box: Box, other: Box) -> Box | None:
    """Return the union of two boxes that touch and differ along one axis only; None for any other two."""
    apart = [axis for axis, (a, b) in enumerate(zip(box.ranges, other.ranges, strict=True)) if a != b]
    if len(apart) != 1:
        return None
    (a, b), (c, d) = box.ranges[apart[0]], other.ranges[apart[0]]
    return box.with_range(apart[0], (min(a, c), max(b, d))) if b == c or d == a else None


def divided(length: int, shares: Sequence[float]) -> list[Range | None]:
    """Return ranges of `0:length` in proportion to `shares`, by the largest remainder; ties go to the first.

    Args:
        length: of the axis.
        shares: not negative, their sum positive.

    Returns:
        One range per share, in order; None for a share that gets nothing.

    Raises:
        ValueError: a share is negative or not finite, or all are 0.
    """
    total = math.fsum(shares)
    if not all(share >= 0 and math.isfinite(share) for share in shares) or not total > 0:
        raise ValueError(f"shares must be finite, not negative and not all 0: {list(shares)}")
    exact = [length * share / total for share in shares]
    counts = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: length - sum(counts)]:
        counts[i] += 1
    ranges: list[Range | None] = []
    start = 0
    for count in counts:
        ranges.append((start, start + count) if count else None)
        start += count
    return ranges
