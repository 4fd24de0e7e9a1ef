"""Cut a chain of operations into parts that take about as long. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np


def partitions(seconds: Sequence[float], n: int) -> list[tuple[int, int]]:
    """Return the consecutive parts the sum of whose squares is the least there is.

    Where one operation takes longest of all, the largest part says nothing about the others.

    Args:
        seconds: of each operation, or group of them that stays together, in topological order.
        n: how many parts; no more than there are operations.

    Returns:
        (start, stop) of each part; none is empty.

    Raises:
        ValueError: there is nothing to cut, n is below 1, or seconds are negative.
    """
    values = np.asarray(seconds, np.float64)
    if not len(values) or n < 1 or not (values >= 0).all():
        raise ValueError(f"{len(values)} operations cannot be cut into {n} parts")
    n, count = min(n, len(values)), len(values)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    # least[i]: squares of the first i operations in so many parts; where the last part begins is kept.
    least, begins = np.where(np.arange(count + 1) > 0, sums**2, np.inf), []
    last = (sums[None, :] - sums[:, None]) ** 2  # [start, stop]
    last[np.tri(count + 1, dtype=bool)] = np.inf
    for _ in range(n - 1):
        both = least[:, None] + last
        begins.append(both.argmin(axis=0))
        least = both.min(axis=0)
    cuts = [count]
    for begin in reversed(begins):
        cuts.append(int(begin[cuts[-1]]))
    cuts.append(0)
    cuts.reverse()
    return list(itertools.pairwise(cuts))
