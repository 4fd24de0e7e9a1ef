"""How good predictions are: one function from labels and probabilities to JSON-able numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.metrics import calibration, ranking
from trainer.metrics.bootstrap import interval, interval_of_difference


def classification_metrics(
    true: np.ndarray, probabilities: np.ndarray, classes: Sequence[str], *, bootstrap: int = 2000
) -> dict[str, Any]:
    """Metrics of a classifier on one split.

    Args:
        true: int (N,), the number of each subject's class.
        probabilities: float (N, len(classes)), rows that sum to 1.
        classes: names; with two of them the second is the positive one (AUC, sensitivity, specificity).
        bootstrap: resamples within each class for the 95 % intervals of the two areas; 0 for no interval.

    Returns:
        n, accuracy, accuracy_interval (Wilson, 95 %), balanced_accuracy (mean recall of the classes
        present), auc and pr_auc (average precision), with more than two classes the mean of each against
        the rest, auc_interval, pr_auc_interval, sensitivity, specificity (with more than two: macro), brier
        and ece (see calibration.py), positive (name or None), confusion (rows true, columns predicted).
        What cannot be told from these subjects is None: the AUC where a class is missing, for example, and
        its interval where a class has fewer than `bootstrap.LEAST` subjects or no resample differs.

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
    smallest = smallest_class(true, len(classes))
    weights = ranking.weights_within_classes(true, len(classes), bootstrap)
    auc, auc_interval = _with_interval(
        None if weights is None else ranking.roc_areas(true, probabilities, weights), smallest
    )
    pr_auc, pr_auc_interval = _with_interval(
        None if weights is None else ranking.average_precisions(true, probabilities, weights), smallest
    )
    return {
        "n": n,
        "accuracy": hits / n if n else None,
        "accuracy_interval": wilson(hits, n) if n else None,
        "balanced_accuracy": _mean(recall),
        "auc": auc,
        "auc_interval": auc_interval,
        "pr_auc": pr_auc,
        "pr_auc_interval": pr_auc_interval,
        "sensitivity": recall[1] if binary else _mean(recall),
        "specificity": specificity[1] if binary else _mean(specificity),
        "brier": calibration.brier(true, probabilities),
        "ece": calibration.ece(true, probabilities),
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
    # Not by scikit-learn: its import would cost every rank a second at its start.
    confusion = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(confusion, (true, probabilities.argmax(axis=1)), 1)
    return confusion


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
    true: np.ndarray, first: np.ndarray, second: np.ndarray, *, bootstrap: int = 2000
) -> tuple[float, list[float]] | None:
    """AUC of `first` minus that of `second` on the same subjects, and its 95 % interval (paired bootstrap).

    Args:
        true: int (N,); first, second: float (N, classes), the probabilities of two classifiers.
        bootstrap: resamples.

    Returns:
        The difference and its interval, or None where there is no interval.
    """
    differences = auc_differences(true, first, second, bootstrap)
    if differences is None:
        return None
    bounds = interval_of_difference(differences[1:], smallest_class(true, np.shape(first)[1]))
    return None if bounds is None else (float(differences[0]), bounds)


def smallest_class(true: np.ndarray, classes: int) -> int:
    """How many subjects the class with the fewest has."""
    return int(np.bincount(np.asarray(true, np.int64), minlength=classes).min())


def auc_differences(
    true: np.ndarray, first: np.ndarray, second: np.ndarray, bootstrap: int
) -> np.ndarray | None:
    """As `auc_difference`, but float64 (1 + bootstrap,): the difference, then that of each resample."""
    true = np.asarray(true)
    weights = ranking.weights_within_classes(true, np.shape(first)[1], bootstrap)
    if weights is None:
        return None
    one, other = (ranking.roc_areas(true, np.asarray(p, np.float64), weights) for p in (first, second))
    return one - other


def _with_interval(values: np.ndarray | None, n: int) -> tuple[float | None, list[float] | None]:
    """The first of the values, that of the subjects as they are, and the middle 95 % of the others."""
    return (None, None) if values is None else (float(values[0]), interval(values[1:], n))
