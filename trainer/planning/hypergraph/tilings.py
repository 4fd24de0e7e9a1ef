"""How finely groups are cut into tiles before a partitioner gives the tiles to ranks. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from trainer.planning.hypergraph.groups import Group

Counts = list[tuple[int, ...]]
# Of a tiling that is tried: more tiles take long and have gained nothing.
_MOST_TILES = 10_000
_MOST_OF_A_GROUP = 256
# Which axes are cut.
_AXES = ("", "depth", "channels", "samples", "depth, channels", "samples, depth, channels")
_FEWEST_AXES = 3  # samples, one of space, channels


def tilings(groups: Sequence[Group], ranks: int, granularity: int | None) -> Iterator[tuple[str, Counts]]:
    """Return ways to cut groups into tiles, each with what it is called.

    Args:
        groups: of a network.
        ranks: that the tiles are for.
        granularity: tiles along an axis that is cut; None: as many as there are ranks, and twice as many.
    """
    seen: list[Counts] = []
    for step in [granularity] if granularity else [ranks, 2 * ranks]:
        for axes in _AXES:
            counts = [_counts(group.shape, axes, step) for group in groups]
            sizes = [math.prod(one) for one in counts]
            fits = ranks <= sum(sizes) <= _MOST_TILES and max(sizes) <= _MOST_OF_A_GROUP
            if fits and counts not in seen:
                seen.append(counts)
                yield (f"{axes} in {step}" if axes else "whole layers"), counts


def _counts(shape: Sequence[int], axes: str, parts: int) -> tuple[int, ...]:
    counts = [1] * len(shape)
    if "samples" in axes:
        counts[0] = min(parts, shape[0])
    if len(shape) >= _FEWEST_AXES:
        if "depth" in axes:
            counts[1] = min(parts, shape[1])
        if "channels" in axes:
            counts[-1] = min(parts, shape[-1])
    return tuple(counts)
