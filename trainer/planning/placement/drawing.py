"""Who computes what of a network, as lines of text: a strip of ranks for operations divided alike. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.planning.placement.boxes import whole
from trainer.planning.placement.layouts import TensorLayout
from trainer.planning.placement.ways import Layouts

WIDTH = 32
# A rank's sign in a strip; further ranks share the last one.
_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz#"
_SPACE = ("depth", "height", "width")
_VOLUME_AXES = 5  # samples, depth, height, width, channels


@dataclass(frozen=True)
class Strip:
    """Operations, one after the other, that are divided alike.

    Attributes:
        first: name of the first one.
        count: how many.
        axes: along which they are cut, such as `depth`; empty where one rank computes all.
        signs: `WIDTH` of them, of each rank as many as its share of the elements, in the order of boxes.
        ranks: that compute some of it.
    """

    first: str
    count: int
    axes: tuple[str, ...]
    signs: str
    ranks: tuple[int, ...]


def strips(layouts: Layouts) -> list[Strip]:
    """Return a strip for each run of operations that are divided alike, in their order."""
    strips: list[Strip] = []
    for name, held in layouts.items():
        axes, signs = cut_axes(held), _signs(held)
        last = strips[-1] if strips else None
        if last and (last.axes, last.signs, last.ranks) == (axes, signs, held.ranks):
            strips[-1] = Strip(last.first, last.count + 1, axes, signs, held.ranks)
        else:
            strips.append(Strip(name, 1, axes, signs, held.ranks))
    return strips


def cut_axes(held: TensorLayout) -> tuple[str, ...]:
    """Return the names of the axes along which a tensor is cut, such as `depth`; none where it is whole."""
    everything = whole(held.shape).ranges
    cut = [
        axis
        for axis, range_ in enumerate(everything)
        if any(piece.box.ranges[axis] != range_ for piece in held.pieces)
    ]
    return tuple(_name(axis, held.shape) for axis in cut)


def _name(axis: int, shape: Sequence[int]) -> str:
    if axis == 0:
        return "samples"
    if axis == len(shape) - 1:
        return "channels"
    return _SPACE[axis - 1] if len(shape) == _VOLUME_AXES else f"axis {axis}"


def parts(held: TensorLayout) -> list[tuple[int, float]]:
    """Return rank and share of all elements of each box, in the order of boxes."""
    total = sum(piece.box.size for piece in held.pieces)
    ordered = sorted(held.pieces, key=lambda piece: (piece.box, piece.rank))
    return [(piece.rank, piece.box.size / total) for piece in ordered]


def _signs(held: TensorLayout) -> str:
    signs, done = "", 0.0
    for rank, share in parts(held):
        done += share
        signs += _SIGNS[min(rank, len(_SIGNS) - 1)] * (round(WIDTH * done) - len(signs))
    return signs
