"""Areas under the ROC and the precision-recall curve, for many weightings of the scans at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainer.metrics.subjects import Subjects

# Rows of weights at once: what is summed up on the way would be several times as large as the weights.
_BLOCK = 250


def targets(classes: int) -> list[int]:
    """Return classes whose curves are averaged: the second of two, or all of more."""
    return [1] if classes == 2 else list(range(classes))


def reached(own: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return thresholds, and how many scans of a class and of the others reach each, as curves need them.

    Args:
        own: bool (N,), whether a scan is of the class.
        scores: float (N,).

    Returns:
        The distinct scores from the highest down, float (T,), and two counts, int (T,).
    """
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    # A threshold lies after the last of those that share a score.
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    inside = np.cumsum(own[order])[last]
    return ordered[last], inside, last + 1 - inside


def roc_areas(true: np.ndarray, probabilities: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return area under the ROC curve for each row of weights, mean over `targets`, one against the rest.

    The area is the share of pairs (a scan of the class, another) in which the first has the higher
    probability, ties half (Mann and Whitney 1947); counted by ranks, so that ten thousand scans need no
    table of pairs.

    Args:
        true: int (N,).
        probabilities: float (N, classes).
        weights: float (B, N), of the scans.

    Returns:
        float64 (B,), NaN where a class has no weight.
    """

    def area(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
        # Thresholds fall: whoever comes after a threshold is below it.
        below = outside[:, -1:] - outside
        wins = np.diff(inside, axis=1, prepend=0.0) * (below + 0.5 * np.diff(outside, axis=1, prepend=0.0))
        return _ratio(wins.sum(axis=1), inside[:, -1] * outside[:, -1])

    return _mean_over_targets(true, probabilities, weights, area)


def average_precisions(true: np.ndarray, probabilities: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return average precision for each row of weights, mean over `targets`, one against the rest.

    The step-wise area under the precision-recall curve, scikit-learn's `average_precision_score`, which takes
    one vector of weights at a time: thousands would take seconds.

    Args:
        true: int (N,).
        probabilities: float (N, classes).
        weights: float (B, N), of the scans.

    Returns:
        float64 (B,), NaN where a class has no weight.
    """

    def area(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
        called = inside + outside
        precision = np.divide(inside, called, out=np.zeros_like(inside), where=called > 0)
        gained = np.diff(inside, axis=1, prepend=0.0)
        return _ratio((gained * precision).sum(axis=1), inside[:, -1] * (outside[:, -1] > 0))

    return _mean_over_targets(true, probabilities, weights, area)


def _mean_over_targets(
    true: np.ndarray, probabilities: np.ndarray, weights: np.ndarray, area: Callable[..., np.ndarray]
) -> np.ndarray:
    """Mean over classes of `area`(inside, outside): the weight, (b, thresholds), of the class's own subjects
    and of the others at and above each threshold, from the highest probability down."""
    means = np.zeros(len(weights))
    if not len(true):
        return np.full(len(weights), np.nan)
    chosen = targets(probabilities.shape[1])
    for k in chosen:
        order = np.argsort(-probabilities[:, k], kind="stable")
        scores, own = probabilities[order, k], true[order] == k
        # A threshold lies after the last of those that share a score.
        last = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))
        for start in range(0, len(weights), _BLOCK):
            block = weights[start : start + _BLOCK, order]
            inside, outside = (np.cumsum(block * which, axis=1)[:, last] for which in (own, ~own))
            means[start : start + _BLOCK] += area(inside, outside) / len(chosen)
    return means


def _ratio(parts: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(parts, whole, out=np.full(len(parts), np.nan), where=whole > 0)


def exchange_parts(true: np.ndarray, first: np.ndarray, second: np.ndarray, subjects: Subjects) -> np.ndarray:
    """Return what each subject contributes to the difference of two areas, for `subjects.exchange_p`.

    Bandos, Rockette and Gur, Statistics in Medicine 24 (2005) 2873: were the answers of some subjects
    exchanged, the difference of the areas would be the sum of these parts with the signs of those subjects
    turned. A pair of scans then compares answers of two networks, so each network's are replaced by
    their ranks: only their order counts.

    Args:
        true: int (N,).
        first, second: float (N, classes), probabilities of two networks for the same scans.
        subjects: whose scans they are.

    Returns:
        float64 (subjects,), whose sum is the first area minus the second, mean over `targets`; NaN where
        a class has no scans.
    """
    parts = np.zeros(len(true))
    chosen = targets(first.shape[1])
    for k in chosen:
        own = true == k
        pairs = 2 * len(chosen) * int(own.sum()) * int((~own).sum())
        if not pairs:
            return np.full(subjects.count, np.nan)
        a, b = _midranks(first[:, k]), _midranks(second[:, k])
        for which, sign in ((own, 1), (~own, -1)):
            others = {"a": np.sort(a[~which]), "b": np.sort(b[~which])}
            alike = _below(a[which], others["a"]) - _below(b[which], others["b"])
            crossed = _below(a[which], others["b"]) - _below(b[which], others["a"])
            parts[which] += sign * (alike + crossed) / pairs
    return subjects.sums(parts)


def _midranks(scores: np.ndarray) -> np.ndarray:
    """Return each score's rank, of equal scores the mean of theirs."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def _below(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Return for each value how many of the ordered ones are below it, ties half."""
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2
