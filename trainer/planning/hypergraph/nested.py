"""Ways to divide over many ranks: over groups of ranks, and then inside each group. Pure.

A partitioner takes long for hundreds of parts. It divides the network over a few groups of ranks; what a
group has of a layer is cut over its ranks by a rule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from trainer.planning.hypergraph import choices
from trainer.planning.hypergraph.choices import GroupChoice
from trainer.planning.placement import boxes
from trainer.planning.placement.boxes import Box, Range
from trainer.planning.placement.layouts import Piece, TensorLayout

# Groups that the network is divided over.
_MOST_GROUPS = 16
# Cuts over every fourth rank, every sixteenth ...
_FEWER = 4


def outer(ranks: int) -> int:
    """Return over how many groups of ranks a network is divided first: the most that are alike."""
    return max(one for one in range(1, _MOST_GROUPS + 1) if ranks % one == 0)


def over_fewer(shape: Sequence[int], ranks: int) -> list[GroupChoice]:
    """Return cuts over every fourth rank, every sixteenth and so on: what has little may need no more."""
    cuts = []
    step = _FEWER
    while ranks % step == 0 and step < ranks:
        for one in choices.cuts(shape, [1.0] * (ranks // step)):
            pieces = tuple(Piece(step * piece.rank, piece.box) for piece in one.layout.pieces)
            cuts.append(
                GroupChoice(f"{one.label} on every {step}th rank", TensorLayout(one.layout.shape, pieces))
            )
        step *= _FEWER
    return cuts


def inside(
    divided: Sequence[TensorLayout], ranks: int, groups: int
) -> Iterator[tuple[str, list[TensorLayout]]]:
    """Return layouts over all ranks, of layouts over groups of them, each with what the ranks of one do.

    Args:
        divided: of the groups of operations; what rank g has is for the ranks of group g.
        ranks: in all, a multiple of `groups`; those of one group follow each other.
        groups: of ranks.
    """
    size = ranks // groups
    for way, more_channels in (("space", False), ("channels", True)):
        parts: dict[tuple[tuple[int, ...], int], list[Box]] = {}
        # With more boxes in a group than it has ranks, a rank would have several.
        if all(len(held.of(group)) <= size for held in divided for group in held.ranks):
            yield way, [_inside(held, size, parts, more_channels=more_channels) for held in divided]


def _inside(
    held: TensorLayout, size: int, parts: dict[tuple[tuple[int, ...], int], list[Box]], *, more_channels: bool
) -> TensorLayout:
    """Cut what each group has over its ranks, each of which has one box at most."""
    pieces = []
    for group in held.ranks:
        own = held.of(group)
        for box, (start, stop) in zip(own, _shares([one.size for one in own], size), strict=True):
            key = box.shape, stop - start
            if key not in parts:
                parts[key] = _parts(*key, more_channels=more_channels)
            first = group * size + start
            pieces += [Piece(first + number, _moved(part, box)) for number, part in enumerate(parts[key])]
    return TensorLayout(held.shape, tuple(pieces))


def _shares(sizes: Sequence[int], ranks: int) -> list[Range]:
    """Ranges of ranks for each box, one or more, about in proportion to their sizes."""
    counts = [1] * len(sizes)
    for _ in range(ranks - len(sizes)):
        counts[max(range(len(sizes)), key=lambda i: sizes[i] / counts[i])] += 1
    ends = list(itertools.accumulate(counts, initial=0))
    return list(itertools.pairwise(ends))


def _parts(shape: tuple[int, ...], ranks: int, *, more_channels: bool) -> list[Box]:
    """Cut a box from 0 into as many parts as there are ranks, or as few less as it can be."""
    for count in range(ranks, 1, -1):
        if found := [one.layout for one in choices.cuts(shape, [1.0] * count)]:
            longest = [one.pieces[0].box.shape[-1] for one in found]
            best = found[longest.index(min(longest) if more_channels else max(longest))]
            return [piece.box for piece in best.pieces]
    return [boxes.whole(shape)]


def _moved(part: Box, box: Box) -> Box:
    """Part of a box that is told from the box's start."""
    starts = (start for start, _ in box.ranges)
    return Box(tuple((a + s, b + s) for (a, b), s in zip(part.ranges, starts, strict=True)))


def most_parts(shapes: Iterable[Sequence[int]], ranks: int) -> int:
    """Return over how many ranks at most one of some tensors can be cut into about equal parts."""
    for count in range(ranks, 1, -1):
        if any(math.prod(one) >= count and choices.cuts(one, [1.0] * count) for one in shapes):
            return count
    return 1
