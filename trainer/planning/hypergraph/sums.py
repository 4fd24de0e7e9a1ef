"""Parts of sums that cross: statistics of batch norm, means. Pure.

Each rank adds up its part of the input, and each part goes to each other rank that needs an element of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from trainer.planning.hypergraph.bounds import Bounds, Ints
from trainer.planning.placement import boxes
from trainer.planning.placement.boxes import Box
from trainer.planning.placement.layouts import Layout
from trainer.planning.placement.operations import Operation


def received(operation: Operation, made: Layout, reads: Mapping[int, Iterable[Box]]) -> list[int]:
    """Return how many elements of others' parts each reading rank receives.

    Args:
        operation: that sums.
        made: who adds up which part of its input.
        reads: what each rank needs of its output.
    """
    parts = {
        rank: tuple(sorted(boxes.disjoint(operation.reduced(box) for box in made.of(rank))))
        for rank in made.ranks
    }
    alike = Counter(parts.values())
    found = []
    for target, wanted in reads.items():
        need = boxes.disjoint(wanted)
        from_all = sum(times * _common(part, need) for part, times in alike.items())
        found.append(from_all - _common(parts.get(target, ()), need))
    return found


def _common(part: Iterable[Box], need: Sequence[Box]) -> int:
    """How many elements two sets of disjoint boxes share."""
    return sum(common.size for box in part for one in need if (common := box & one) is not None)


def of_bounds(parts: Bounds, need: Bounds) -> Ints:
    """Return the same where each rank has a part of one box at most, and needs one, `(ranks,)`.

    Ranks with the same box are counted once: there are few different ones.
    """
    different, alike = np.unique(_ends(parts), axis=0, return_counts=True)
    wanted, which = np.unique(_ends(need), axis=0, return_inverse=True)
    common = np.minimum(different[:, 1], wanted[:, None, 1]) - np.maximum(different[:, 0], wanted[:, None, 0])
    from_all = (common.clip(min=0).prod(axis=2) * alike).sum(axis=1)
    return np.asarray(from_all[which.reshape(-1)] - (parts & need).sizes)


def _ends(some: Bounds) -> Ints:
    """Lower and upper ends, `(ranks, 2, axes)`."""
    return np.stack([some.lower, some.upper], axis=1)
