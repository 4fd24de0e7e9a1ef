"""Areas under the ROC and the precision-recall curve, of all subjects and of every resample at once."""

from __future__ import annotations

import numpy as np

from trainer.metrics.bootstrap import SEED


def weights_within_classes(true: np.ndarray, classes: int, resamples: int) -> np.ndarray | None:
    """float64 (1 + resamples, N): ones, then how often each subject was drawn, each class by itself.

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
    """Classes whose curves are averaged: the second of two, or all of more."""
    return [1] if classes == 2 else list(range(classes))


def roc_areas(true: np.ndarray, probabilities: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Area under the ROC curve for each row of weights, mean over `targets`, one against the rest.

    The area is the share of pairs (a subject of the class, another) in which the first has the higher
    probability (Mann and Whitney 1947), so that a resample is two weight vectors about one matrix of pairs.

    Args:
        true: int (N,).
        probabilities: float (N, classes).
        weights: float (B, N), as of `weights_within_classes`.

    Returns:
        float64 (B,).
    """
    areas = np.zeros(len(weights))
    chosen = targets(probabilities.shape[1])
    for k in chosen:
        inside, outside = np.flatnonzero(true == k), np.flatnonzero(true != k)
        first, second = probabilities[inside, k][:, None], probabilities[outside, k][None, :]
        pairs = (first > second) + 0.5 * (first == second)
        wins = np.einsum("bi,bi->b", weights[:, inside] @ pairs, weights[:, outside])
        areas += wins / (len(inside) * len(outside) * len(chosen))
    return areas


def average_precisions(true: np.ndarray, probabilities: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Average precision for each row of weights, mean over `targets`, one against the rest.

    The step-wise area under the precision-recall curve, scikit-learn's `average_precision_score`, which
    takes one vector of weights at a time: 2000 resamples would take seconds.

    Args:
        true: int (N,).
        probabilities: float (N, classes).
        weights: float (B, N), as of `weights_within_classes`.

    Returns:
        float64 (B,).
    """
    found = np.zeros(len(weights))
    chosen = targets(probabilities.shape[1])
    for k in chosen:
        order = np.argsort(-probabilities[:, k], kind="stable")
        scores = probabilities[order, k]
        # A threshold lies after the last of those that share a score.
        last = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))
        called = np.cumsum(weights[:, order], axis=1)[:, last]
        right = np.cumsum(weights[:, order] * (true[order] == k), axis=1)[:, last]
        precision = np.divide(right, called, out=np.zeros_like(right), where=called > 0)
        recall = right / right[:, -1:]
        found += (np.diff(recall, axis=1, prepend=0.0) * precision).sum(axis=1) / len(chosen)
    return found
