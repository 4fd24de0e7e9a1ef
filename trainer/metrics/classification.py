"""How good predictions are: one function from labels and probabilities to JSON-able numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.metrics import ranking
from trainer.metrics.bootstrap import interval, interval_of_difference


def classification_metrics(
    true: np.ndarray, probabilities: np.ndarray, classes: Sequence[str], *, bootstrap: int = 2000
) -> dict[str, Any]:
    """Return metrics of a classifier on one split.

    Args:
        true: int (N,), the number of each subject's class.
        probabilities: float (N, len(classes)), rows that sum to 1.
        classes: names; with two of them the second is the positive one (AUC, sensitivity, specificity).
        bootstrap: resamples within each class for the 95 % intervals of the two areas; 0 for no interval.

    Returns:
        n, accuracy, accuracy_interval (Wilson, 95 %), balanced_accuracy (mean recall of the classes
        present), auc and pr_auc (average precision), with more than two classes the mean of each against
        the rest, auc_interval, pr_auc_interval, sensitivity, specificity (with more than two: macro), brier
        and ece (see those functions), positive (name or None), confusion (rows true, columns predicted).
        What is undefined for these subjects is None: the AUC where a class is missing, for example, and
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
        "brier": brier(true, probabilities),
        "ece": ece(true, probabilities),
        "positive": classes[1] if binary else None,
        "confusion": confusion.tolist(),
    }


def wilson(hits: float, n: int) -> list[float]:
    """Return the 95 % interval of a share (Wilson 1927), which stays inside 0 and 1 for few subjects too."""
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
    """Return AUC of `first` minus that of `second` on the same subjects, and its 95 % interval (paired
    bootstrap).

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
    """Return the number of subjects of the smallest class."""
    return int(np.bincount(np.asarray(true, np.int64), minlength=classes).min())


def auc_differences(
    true: np.ndarray, first: np.ndarray, second: np.ndarray, bootstrap: int
) -> np.ndarray | None:
    """Return the differences of `auc_difference`, float64 (1 + bootstrap,): the difference, then that of each
    resample.
    """
    true = np.asarray(true)
    weights = ranking.weights_within_classes(true, np.shape(first)[1], bootstrap)
    if weights is None:
        return None
    one, other = (ranking.roc_areas(true, np.asarray(p, np.float64), weights) for p in (first, second))
    return one - other


def _with_interval(values: np.ndarray | None, n: int) -> tuple[float | None, list[float] | None]:
    """The first of the values, that of the subjects as they are, and the middle 95 % of the others."""
    return (None, None) if values is None else (float(values[0]), interval(values[1:], n))


def reliability(true: np.ndarray, probabilities: np.ndarray, bins: int = 10) -> list[dict[str, Any]]:
    """Return the share of right predictions by how sure the network is.

    Confidence is the probability of the predicted class; bins of equal width divide 0 to 1, each without
    its lower and with its upper end, as scikit-learn's `calibration_curve` (the first holds 0 too).

    Args:
        true: int (N,), class numbers.
        probabilities: float (N, classes), rows that sum to 1.
        bins: how many.

    Returns:
        For each bin: low, high (its ends), n, confidence (mean), accuracy (share right); the last two are
        None where n is 0.
    """
    confidence, right = _confidence(true, probabilities)
    edges = np.linspace(0, 1, bins + 1)
    place = np.searchsorted(edges[1:-1], confidence)
    found = []
    for b in range(bins):
        inside = place == b
        n = int(inside.sum())
        found.append(
            {
                "low": float(edges[b]),
                "high": float(edges[b + 1]),
                "n": n,
                "confidence": float(confidence[inside].mean()) if n else None,
                "accuracy": float(right[inside].mean()) if n else None,
            }
        )
    return found


def ece(true: np.ndarray, probabilities: np.ndarray, bins: int = 10) -> float | None:
    """Return expected calibration error: mean over subjects of |accuracy - confidence| of their bin.

    Naeini et al., AAAI 2015; Guo et al., ICML 2017 (arXiv 1706.04599), equation 3. With few subjects per
    bin it is too high even for a calibrated network. None without subjects.
    """
    table = [row for row in reliability(true, probabilities, bins) if row["n"]]
    n = sum(row["n"] for row in table)
    return sum(row["n"] * abs(row["accuracy"] - row["confidence"]) for row in table) / n if n else None


def brier(true: np.ndarray, probabilities: np.ndarray) -> float | None:
    """Return Brier score (Brier 1950): mean squared distance of the probabilities from what was the case.

    With two classes that of the second one's probability alone, 0 to 1; with more the sum over classes, 0
    to 2, as scikit-learn's `brier_score_loss`. None without subjects.
    """
    if not len(true):
        return None
    missed = np.square(probabilities - np.eye(probabilities.shape[1])[true]).sum(axis=1).mean()
    return float(missed / 2 if probabilities.shape[1] == 2 else missed)


def _confidence(true: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probability of the predicted class, and whether that is the true one; both (N,)."""
    predicted = probabilities.argmax(axis=1)
    return probabilities.max(axis=1), predicted == np.asarray(true)
