"""How many of a convolution's filters each rank computes. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.planning.placement import boxes

# Number of filters of each rank; they add up to those of the convolution.
Split = tuple[int, ...]


@dataclass(frozen=True)
class FilterCost:
    """What filters of one convolution cost a rank, in seconds.

    Attributes:
        fixed_s: once, if it computes any filter: the convolution's input must be sent to it.
        compute_s: for each filter, forward and backward.
        link_s: for each filter, for its output and the gradient of that to cross the link.

    Raises:
        ValueError: one of these is negative or not finite.
    """

    fixed_s: float
    compute_s: float
    link_s: float

    def __post_init__(self) -> None:
        numbers = (self.fixed_s, self.compute_s, self.link_s)
        if not all(number >= 0 and math.isfinite(number) for number in numbers):
            raise ValueError(f"seconds must be finite and not negative: {numbers}")

    def seconds(self, filters: int) -> float:
        """Return the seconds of `filters` filters: a + n (c + beta) for n of them; 0 for none."""
        return self.fixed_s + filters * (self.compute_s + self.link_s) if filters else 0.0


def slowest(costs: Sequence[FilterCost], split: Split) -> float:
    """Seconds until the last rank is done: the largest of all ranks'."""
    return max(cost.seconds(count) for cost, count in zip(costs, split, strict=True))


def equal(filters: int, ranks: int) -> Split:
    """As many for each rank, the first ones taking those that are left."""
    return _counts(filters, [1.0] * ranks)


def by_speed(filters: int, seconds: Sequence[float]) -> Split:
    """In proportion to speed, by the largest remainder; a rank may get none.

    Args:
        filters: of the convolution.
        seconds: that each rank takes for the same work, positive.

    Raises:
        ValueError: some are not positive or not finite.
    """
    return _counts(filters, speeds(seconds))


def speeds(seconds: Sequence[float]) -> list[float]:
    """Speed of each rank, relative to the fastest.

    Raises:
        ValueError: some seconds are not positive or not finite.
    """
    if not all(one > 0 and math.isfinite(one) for one in seconds):
        raise ValueError(f"seconds must be positive and finite: {list(seconds)}")
    return [min(seconds) / one for one in seconds]


def fastest(filters: int, costs: Sequence[FilterCost]) -> Split:
    """The split whose slowest rank is done first: it minimises max_i(a_i + n_i (c_i + beta_i)), exactly.

    Filters are dealt one by one, each to the rank that is done first with one more. Why that is the optimum:
    write down for each rank the seconds of 1, 2, 3, ... filters. These lists ascend, since a filter never
    costs less than nothing. A split takes the first n_i entries of each list, `filters` entries in all, and
    its time is the largest of these. No `filters` entries have a largest one that is less than the
    `filters`-th smallest of all lists together. Dealing merges the lists in ascending order, so that it takes
    just the `filters` smallest: its time is that bound. A rank that gets none costs nothing, so no split
    gains by anything that is not in the lists.

    Ties go to the rank that has fewer filters, then to the first.

    Args:
        filters: of the convolution.
        costs: of each rank.

    Raises:
        ValueError: there are no ranks.
    """
    if not costs:
        raise ValueError("filters need a rank")
    counts = [0] * len(costs)
    ready = [(cost.seconds(1), 1, rank) for rank, cost in enumerate(costs)]
    heapq.heapify(ready)
    for _ in range(filters):
        _, count, rank = ready[0]
        counts[rank] = count
        heapq.heapreplace(ready, (costs[rank].seconds(count + 1), count + 1, rank))
    return tuple(counts)


def _counts(filters: int, shares: Sequence[float]) -> Split:
    ranges = boxes.divided(filters, shares)
    return tuple(0 if range_ is None else range_[1] - range_[0] for range_ in ranges)
