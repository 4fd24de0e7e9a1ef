"""The bootstrap (Efron 1979): how much a figure would vary with other subjects of the same kind.

A resample is a vector of weights, how often each subject was drawn, so that a figure of all resamples at
once is a matrix product. The seed is fixed: the same subjects give the same interval, and two runs judged
on the same subjects are resampled alike, which makes their difference a paired one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

SEED = 20190507
# Four subjects can be drawn in 35 ways: too few for a percentile of 2.5. Five can be in 126.
LEAST = 5
# In place of an interval, for people.
TOO_FEW = "too few for an interval"
# Rows of weights at once: 500 x 10,000 subjects are 40 MB.
_BLOCK = 500


def blocks(n: int, resamples: int) -> Iterator[np.ndarray]:
    """Return weights float64 (b, n) of `resamples` resamples of n subjects, some at a time; each row sums to
    n.
    """
    rng = np.random.default_rng(SEED)
    share = np.full(n, 1 / n)
    for start in range(0, resamples, _BLOCK):
        yield rng.multinomial(n, share, size=min(_BLOCK, resamples - start)).astype(np.float64)


def resampled(n: int, resamples: int, figure: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return a figure of each resample, float64 (resamples,).

    Args:
        n: subjects.
        resamples: how many.
        figure: from weights (b, n) to (b,); NaN where undefined.
    """
    parts = [figure(weights) for weights in blocks(n, resamples)]
    return np.concatenate(parts) if parts else np.zeros(0)


def interval(values: np.ndarray, n: int) -> list[float] | None:
    """Return the middle 95 % of values, NaN left out; None where there is no interval.

    That is so for fewer than `LEAST` subjects, and where all resamples give the same value, as an AUC of 1
    does: this says nothing of how sure the figure is.

    Args:
        values: float (resamples,), a figure of each resample.
        n: the subjects that are drawn from; of the smallest class, where each class is drawn from.
    """
    values = values[np.isfinite(values)]
    if n < LEAST or len(values) < 2 or np.ptp(values) <= 1e-12 * np.abs(values).max():
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return [float(low), float(high)]


def interval_of_difference(values: np.ndarray, n: int) -> list[float] | None:
    """Return the interval as `interval` does, but [0, 0] where two runs give the same answers in every
    resample.
    """
    return [0.0, 0.0] if n >= LEAST and len(values) and not values.any() else interval(values, n)


def p_value(differences: np.ndarray) -> float | None:
    """Return two-sided p of resampled differences: twice the smaller share on one side of 0, at least 2 / (B
    + 1).

    Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 15.4, by inverting the percentile
    interval; resamples of no difference count to both sides. None without resamples.
    """
    differences = differences[np.isfinite(differences)]
    if not len(differences):
        return None
    fewer = min(np.count_nonzero(differences <= 0), np.count_nonzero(differences >= 0))
    return float(min(1.0, 2 * (1 + fewer) / (1 + len(differences))))
