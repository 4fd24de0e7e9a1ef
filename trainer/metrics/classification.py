"""How good predictions are: one function from labels and probabilities to JSON-able numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix

BOOTSTRAP_SEED = 20190507


def classification_metrics(
    true: np.ndarray, probabilities: np.ndarray, classes: Sequence[str], *, bootstrap: int = 2000
) -> dict[str, Any]:
    """Metrics of a classifier on one split.

    Args:
        true: int (N,), the number of each subject's class.
        probabilities: float (N, len(classes)), rows that sum to 1.
        classes: names; with two of them the second is the positive one (AUC, sensitivity, specificity).
        bootstrap: resamples for the 95 % interval of the AUC; 0 for no interval.

    Returns:
        n, accuracy, accuracy_interval (Wilson, 95 %), balanced_accuracy (mean recall of the classes present),
        auc (with more than two classes: macro, one against the rest), auc_interval, sensitivity, specificity
        (with more than two: macro), positive (name or None), confusion (rows true, columns predicted).
        What cannot be told from these subjects is None: the AUC where a class is missing, for example.

    Raises:
        ValueError: shapes that do not belong together, or a probability that is not finite.
    """
    true = np.asarray(true, dtype=np.int64)
    probabilities = np.asarray(probabilities, dtype=np.float64)
    if true.ndim != 1 or probabilities.shape != (len(true), len(classes)):
        raise ValueError(f"{true.shape} labels, {probabilities.shape} probabilities, {len(classes)} classes")
    if not np.isfinite(probabilities).all():
        raise ValueError("a probability is not finite")
    confusion = _confusion(true, probabilities, len(classes))
    recall, specificity = _recall(confusion), _specificity(confusion)
    hits, n = int(np.trace(confusion)), len(true)
    binary = len(classes) == 2
    auc, interval = _auc(true, probabilities, bootstrap)
    return {
        "n": n,
        "accuracy": hits / n if n else None,
        "accuracy_interval": wilson(hits, n) if n else None,
        "balanced_accuracy": _mean(recall),
        "auc": auc,
        "auc_interval": interval,
        "sensitivity": recall[1] if binary else _mean(recall),
        "specificity": specificity[1] if binary else _mean(specificity),
        "positive": classes[1] if binary else None,
        "confusion": confusion.tolist(),
    }


def wilson(hits: float, n: int) -> list[float]:
    """The 95 % interval of a share (Wilson 1927), which stays inside 0 and 1 for few subjects too."""
    z = 1.959963984540054
    centre = (hits + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * np.sqrt(hits * (n - hits) / n + z * z / 4)
    return [float(max(0.0, centre - half)), float(min(1.0, centre + half))]


def _confusion(true: np.ndarray, probabilities: np.ndarray, classes: int) -> np.ndarray:
    if not len(true):
        return np.zeros((classes, classes), dtype=np.int64)
    return confusion_matrix(true, probabilities.argmax(axis=1), labels=range(classes))


def _recall(confusion: np.ndarray) -> list[float | None]:
    """Share found of each class; None where the class is absent."""
    return [float(row[k] / row.sum()) if row.sum() else None for k, row in enumerate(confusion)]


def _specificity(confusion: np.ndarray) -> list[float | None]:
    """For each class, the share of all others that was not taken for it; None where there are no others."""
    total, shares = confusion.sum(), []
    for k in range(len(confusion)):
        others = total - confusion[k].sum()
        wrong = confusion[:, k].sum() - confusion[k, k]
        shares.append(float(1 - wrong / others) if others else None)
    return shares


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


def auc_difference(
    true: np.ndarray, first: np.ndarray, second: np.ndarray
) -> tuple[float, list[float]] | None:
    """AUC of `first` minus that of `second` on the same subjects, and its 95 % interval (paired bootstrap).

    Args:
        true: int (N,); first, second: float (N, classes), the probabilities of two classifiers.

    Returns:
        The difference and its interval, or None where a class has no subject.
    """
    one, other = (_areas(np.asarray(true), np.asarray(p, np.float64), 2000) for p in (first, second))
    if one is None or other is None:
        return None
    differences = one - other  # the fixed seed draws the same subjects for both
    low, high = np.percentile(differences[1:], [2.5, 97.5])
    return float(differences[0]), [float(low), float(high)]


def _auc(
    true: np.ndarray, probabilities: np.ndarray, bootstrap: int
) -> tuple[float | None, list[float] | None]:
    """Area under the ROC curve and its bootstrap interval (2.5 and 97.5 %, resampled within each class)."""
    areas = _areas(true, probabilities, bootstrap)
    if areas is None:
        return None, None
    if not bootstrap:
        return float(areas[0]), None
    low, high = np.percentile(areas[1:], [2.5, 97.5])
    return float(areas[0]), [float(low), float(high)]


def _areas(true: np.ndarray, probabilities: np.ndarray, bootstrap: int) -> np.ndarray | None:
    """Areas under the ROC curve: of the subjects as they are, then of each resample.

    The area is the share of pairs (a subject of the class, another) in which the first has the higher
    probability (Mann and Whitney), so that a resample is two weight vectors about one matrix of pairs. None
    where a class has no subject.
    """
    classes = probabilities.shape[1]
    members = [np.flatnonzero(true == k) for k in range(classes)]
    if min(len(m) for m in members) == 0:
        return None
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    weights = np.ones((bootstrap + 1, len(true)))  # row 0: the subjects as they are
    for m in members:
        weights[1:, m] = rng.multinomial(len(m), np.full(len(m), 1 / len(m)), size=bootstrap)
    areas = np.zeros(bootstrap + 1)
    targets = [1] if classes == 2 else list(range(classes))
    for k in targets:
        inside, outside = members[k], np.flatnonzero(true != k)
        first, second = probabilities[inside, k][:, None], probabilities[outside, k][None, :]
        pairs = (first > second) + 0.5 * (first == second)
        wins = np.einsum("bi,bi->b", weights[:, inside] @ pairs, weights[:, outside])
        areas += wins / (len(inside) * len(outside) * len(targets))
    return areas
