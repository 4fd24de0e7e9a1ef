"""DeLong's test: is one AUC higher than another on the same subjects?

DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988) 837; from midranks as Sun and Xu, IEEE Signal
Processing Letters 21 (2014) 1389, in O(n log n).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm, rankdata


def compare(true: np.ndarray, first: np.ndarray, second: np.ndarray) -> dict[str, Any] | None:
    """Compare two AUCs of the same subjects.

    Args:
        true: int (N,), 1 for the positive class, 0 for the other.
        first: float (N,), scores of one classifier.
        second: float (N,), of the other.

    Returns:
        auc_first, auc_second, difference (first - second), interval (of the difference, 95 %, normal),
        p_value (two-sided); None where a class has no subject. Interval and p are None where a class has
        but one subject, and where two different classifiers differ by the same for everyone, which gives no
        variance to measure by; p is 1 for two that rank alike.
    """
    one, other = _placements(true, first), _placements(true, second)
    if one is None or other is None:
        return None
    # The variance of a difference is that of the differences: exactly 0 for two equal classifiers.
    variance = _variance(one[0] - other[0], one[1] - other[1])
    auc_first, auc_second = float(one[0].mean()), float(other[0].mean())
    difference = auc_first - auc_second
    interval, p_value = None, None
    if variance is not None and variance > 0:
        error = np.sqrt(variance)
        half = float(norm.ppf(0.975) * error)
        interval = [difference - half, difference + half]
        p_value = float(2 * norm.sf(abs(difference) / error))
    elif variance is not None and difference == 0:
        interval, p_value = [0.0, 0.0], 1.0
    return {
        "auc_first": auc_first,
        "auc_second": auc_second,
        "difference": difference,
        "interval": interval,
        "p_value": p_value,
    }


def _placements(true: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """For each positive the share of negatives below it, (m,), and for each negative that of positives
    above it, (n,), ties counting half: V10 and V01 of the paper. None where a class has no subject."""
    positive = np.asarray(true) == 1
    scores = np.asarray(scores, np.float64)
    m, n = int(positive.sum()), int((~positive).sum())
    if not m or not n:
        return None
    rank = rankdata(scores)
    above = (rank[positive] - rankdata(scores[positive])) / n
    below = 1 - (rank[~positive] - rankdata(scores[~positive])) / m
    return above, below


def _variance(above: np.ndarray, below: np.ndarray) -> float | None:
    if len(above) < 2 or len(below) < 2:
        return None
    return float(above.var(ddof=1) / len(above) + below.var(ddof=1) / len(below))
