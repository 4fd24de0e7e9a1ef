"""Ways to divide one group over ranks: whole on one rank, or cut along axes. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainer.planning.placement import boxes
from trainer.planning.placement.layouts import Piece, TensorLayout, cut, replicated

_FEWEST_AXES = 3  # samples, one of space, channels


@dataclass(frozen=True)
class GroupChoice:
    """One way to divide a group.

    Attributes:
        label: for people, such as `depth / 2, channels / 2`.
        layout: of the group's shape.
    """

    label: str
    layout: TensorLayout


def whole(shape: Sequence[int], rank: int) -> GroupChoice:
    """Return all of it on one rank."""
    return GroupChoice(f"whole on rank {rank}", replicated(shape, [rank]))


def cuts(shape: Sequence[int], speeds: Sequence[float]) -> list[GroupChoice]:
    """Return the ways to cut a tensor into a part for each rank.

    Parts along one axis are in proportion to the ranks' speeds. Parts along several axes are equal: the first
    axis changes slowest from rank to rank, so that neighbours stay neighbours where another group is cut
    along fewer axes.

    Args:
        shape: samples first, channels last.
        speeds: of each rank, positive.
    """
    ranks = len(speeds)
    choices = []
    for parts in _factors(ranks, len(shape)):
        if any(count > length for count, length in zip(parts, shape, strict=True)):
            continue
        axes = [axis for axis, count in enumerate(parts) if count > 1]
        if not axes:
            continue
        label = ", ".join(f"{axis_name(axis, len(shape))} / {parts[axis]}" for axis in axes)
        if len(axes) == 1:
            layout = cut(shape, axes[0], dict(enumerate(speeds)))
        elif len(set(speeds)) > 1:
            continue
        else:
            layout = _grid(shape, parts)
        choices.append(GroupChoice(label, layout))
    return choices


def axis_name(axis: int, dimensions: int) -> str:
    """Return samples, depth, height, width or channels."""
    if axis == 0:
        return "samples"
    if axis == dimensions - 1:
        return "channels"
    return ("depth", "height", "width")[axis - 1 + max(0, 5 - dimensions)]


def _grid(shape: Sequence[int], parts: Sequence[int]) -> TensorLayout:
    """As `layouts.grid`, but without a search: boxes of a grid never overlap."""
    ranges = [boxes.divided(length, [1.0] * count) for length, count in zip(shape, parts, strict=True)]
    combined = itertools.product(*ranges)
    return TensorLayout(
        tuple(shape),
        tuple(
            Piece(rank, boxes.Box(tuple(one for one in some if one is not None)))
            for rank, some in enumerate(combined)
        ),
    )


def _factors(ranks: int, dimensions: int) -> Iterator[tuple[int, ...]]:
    """Parts of each axis, whose product is the number of ranks."""
    if dimensions < _FEWEST_AXES:
        yield from ((*before, last) for before, last in _pairs(ranks, dimensions))
        return
    space = dimensions - 2
    for samples in _divisors(ranks):
        for channels in _divisors(ranks // samples):
            left = ranks // samples // channels
            for middle in {_slabs(left, space), _cubes(left, space)}:
                yield (samples, *middle, channels)


def _pairs(ranks: int, dimensions: int) -> Iterator[tuple[tuple[int, ...], int]]:
    if dimensions == 1:
        yield (), ranks
        return
    for first in _divisors(ranks):
        yield (first,), ranks // first


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def _slabs(count: int, space: int) -> tuple[int, ...]:
    return (count, *[1] * (space - 1))


def _cubes(count: int, space: int) -> tuple[int, ...]:
    """The factors that differ least, the largest first."""
    if space == 1:
        return (count,)
    best = min(
        (one for one in _divisors(count) if one**space >= count),
        key=lambda one: (one, count // one),
        default=count,
    )
    return (best, *_cubes(count // best, space - 1))


def imbalance(choice: GroupChoice, speeds: Sequence[float]) -> float:
    """Return how much longer the busiest rank computes than it would if all did at once: max / mean - 1."""
    size = math.prod(choice.layout.shape)
    most = max(choice.layout.elements(rank) / speed for rank, speed in enumerate(speeds))
    return most / (size / math.fsum(speeds)) - 1
