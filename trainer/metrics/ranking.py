"""Areas under the ROC and the precision-recall curve, of all subjects and of every resample at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainer.metrics.bootstrap import SEED

# Rows of weights at once: what is summed up on the way would be several times as large as the weights.
_BLOCK = 250


def weights_within_classes(true: np.ndarray, classes: int, resamples: int) -> np.ndarray | None:
    """Return weights float64 (1 + resamples, N): ones, then how often each subject was drawn, within its
    class.

    Args:
        true: int (N,), class numbers.
        classes: how many there are.
        resamples: how many.

    Returns:
        The weights, or None where a class has no subject.
    """
    members = [np.flatnonzero(true == k) for k in range(classes)]
    if min(len(m) for m in members) == 0:
        return None
    rng = np.random.default_rng(SEED)
    weights = np.ones((resamples + 1, len(true)))
    for m in members:
        weights[1:, m] = rng.multinomial(len(m), np.full(len(m), 1 / len(m)), size=resamples)
    return weights


def targets(classes: int) -> list[int]:
    """Return classes whose curves are averaged: the second of two, or all of more."""
    return [1] if classes == 2 else list(range(classes))


def reached(own: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return thresholds, and how many subjects of a class and of the others reach each, as curves need them.

    Args:
        own: bool (N,), whether a subject is of the class.
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

    The area is the share of pairs (a subject of the class, another) in which the first has the higher
    probability, ties half (Mann and Whitney 1947); counted by ranks, so that ten thousand subjects need no
    table of pairs.

    Args:
        true: int (N,).
        probabilities: float (N, classes).
        weights: float (B, N), as of `weights_within_classes`.

    Returns:
        float64 (B,).
    """

    def area(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
        # Thresholds fall: whoever comes after a threshold is below it.
        below = outside[:, -1:] - outside
        wins = np.diff(inside, axis=1, prepend=0.0) * (below + 0.5 * np.diff(outside, axis=1, prepend=0.0))
        return wins.sum(axis=1) / (inside[:, -1] * outside[:, -1])

    return _mean_over_targets(true, probabilities, weights, area)


def average_precisions(true: np.ndarray, probabilities: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return average precision for each row of weights, mean over `targets`, one against the rest.

    The step-wise area under the precision-recall curve, scikit-learn's `average_precision_score`, which takes
    one vector of weights at a time: 2000 resamples would take seconds.

    Args:
        true: int (N,).
        probabilities: float (N, classes).
        weights: float (B, N), as of `weights_within_classes`.

    Returns:
        float64 (B,).
    """

    def area(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
        called = inside + outside
        precision = np.divide(inside, called, out=np.zeros_like(inside), where=called > 0)
        gained = np.diff(inside / inside[:, -1:], axis=1, prepend=0.0)
        return (gained * precision).sum(axis=1)

    return _mean_over_targets(true, probabilities, weights, area)


def _mean_over_targets(
    true: np.ndarray, probabilities: np.ndarray, weights: np.ndarray, area: Callable[..., np.ndarray]
) -> np.ndarray:
    """Mean over classes of `area`(inside, outside): the weight, (b, thresholds), of the class's own subjects
    and of the others at and above each threshold, from the highest probability down."""
    found = np.zeros(len(weights))
    chosen = targets(probabilities.shape[1])
    for k in chosen:
        order = np.argsort(-probabilities[:, k], kind="stable")
        scores, own = probabilities[order, k], true[order] == k
        # A threshold lies after the last of those that share a score.
        last = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))
        for start in range(0, len(weights), _BLOCK):
            block = weights[start : start + _BLOCK, order]
            inside, outside = (np.cumsum(block * which, axis=1)[:, last] for which in (own, ~own))
            found[start : start + _BLOCK] += area(inside, outside) / len(chosen)
    return found
