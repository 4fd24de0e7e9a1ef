"""How good predictions are: one function from labels and probabilities to JSON-able numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainer.metrics import ranking
from trainer.metrics.subjects import LeftOut, Subjects, left_out, share_interval


def classification_metrics(
    true: np.ndarray, probabilities: np.ndarray, classes: Sequence[str], subjects: Sequence[str] | None
) -> dict[str, Any]:
    """Return metrics of a classifier on one split.

    Args:
        true: int (N,), the number of each scan's class.
        probabilities: float (N, len(classes)), rows that sum to 1.
        classes: names; with two of them the second is the positive one (AUC, sensitivity, specificity).
        subjects: whose scan each is, (N,), for the 95 % intervals (see `trainer.metrics.subjects`); None
            for no interval.

    Returns:
        n (scans), subjects (how many, where they are given), accuracy, accuracy_interval, balanced_accuracy
        (mean recall of the classes present), auc and pr_auc (average precision), with more than two classes
        the mean of each against the rest, auc_interval, pr_auc_interval, sensitivity, specificity (with more
        than two: macro), brier and ece (see those functions), positive (name or None), confusion (rows true,
        columns predicted; scans). What is undefined for these scans is None: the AUC where a class is
        missing, for example, and its interval where a class has fewer than `subjects.LEAST` subjects or no
        subject makes a difference.

    Raises:
        ValueError: shapes that do not belong together, or a probability that is not finite.
    """
    true = np.asarray(true, dtype=np.int64)
    probabilities = np.asarray(probabilities, dtype=np.float64)
    if true.ndim != 1 or probabilities.shape != (len(true), len(classes)):
        raise ValueError(f"{true.shape} labels, {probabilities.shape} probabilities, {len(classes)} classes")
    if not np.isfinite(probabilities).all():
        raise ValueError("a probability is not finite")
    people = None if subjects is None else Subjects.named(subjects)
    confusion = _confusion(true, probabilities, len(classes))
    recall, specificity = _recall(confusion), _specificity(confusion)
    n = len(true)
    binary = len(classes) == 2
    hits = (probabilities.argmax(axis=1) == true).astype(np.float64)
    auc, auc_interval = _area(ranking.roc_areas, true, probabilities, people)
    pr_auc, pr_auc_interval = _area(ranking.average_precisions, true, probabilities, people)
    return {
        "n": n,
        **({} if people is None else {"subjects": people.count}),
        "accuracy": int(np.trace(confusion)) / n if n else None,
        "accuracy_interval": None if people is None else share_interval(hits, people),
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


def _confusion(true: np.ndarray, probabilities: np.ndarray, classes: int) -> np.ndarray:
    # Not by scikit-learn: its import would cost every rank a second at its start.
    confusion = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(confusion, (true, probabilities.argmax(axis=1)), 1)
    return confusion


def _recall(confusion: np.ndarray) -> list[float | None]:
    """Share of each class's scans that are called so; None where the class is absent."""
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


def auc_left_out(true: np.ndarray, probabilities: np.ndarray, subjects: Subjects) -> LeftOut:
    """Return the AUC of all scans and without each subject, int (N,) and float (N, classes)."""
    true, probabilities = np.asarray(true), np.asarray(probabilities, np.float64)
    return left_out(subjects, lambda weights: ranking.roc_areas(true, probabilities, weights), true)


def _area(
    area: Callable[..., np.ndarray], true: np.ndarray, probabilities: np.ndarray, people: Subjects | None
) -> tuple[float | None, list[float] | None]:
    """An area, and its interval."""
    if people is None:
        value, bounds = float(area(true, probabilities, np.ones((1, len(true))))[0]), None
    else:
        without = left_out(people, lambda weights: area(true, probabilities, weights), true)
        value, bounds = without.value, without.interval("share", normal=True)
    return (value, bounds) if np.isfinite(value) else (None, None)


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
    rows = []
    for b in range(bins):
        inside = place == b
        n = int(inside.sum())
        rows.append(
            {
                "low": float(edges[b]),
                "high": float(edges[b + 1]),
                "n": n,
                "confidence": float(confidence[inside].mean()) if n else None,
                "accuracy": float(right[inside].mean()) if n else None,
            }
        )
    return rows


def ece(true: np.ndarray, probabilities: np.ndarray, bins: int = 10) -> float | None:
    """Return expected calibration error: mean over scans of |accuracy - confidence| of their bin.

    Naeini et al., AAAI 2015; Guo et al., ICML 2017 (arXiv 1706.04599), equation 3. With few subjects per
    bin it is too high even for a calibrated network. None without subjects.
    """
    table = [row for row in reliability(true, probabilities, bins) if row["n"]]
    n = sum(row["n"] for row in table)
    return sum(row["n"] * abs(row["accuracy"] - row["confidence"]) for row in table) / n if n else None


def brier(true: np.ndarray, probabilities: np.ndarray) -> float | None:
    """Return Brier score (Brier 1950): mean squared distance of the probabilities from what was the case.

    With two classes that of the second one's probability alone, 0 to 1; with more the sum over classes, 0
    to 2, as scikit-learn's `brier_score_loss`. None without scans.
    """
    if not len(true):
        return None
    missed = np.square(probabilities - np.eye(probabilities.shape[1])[true]).sum(axis=1).mean()
    return float(missed / 2 if probabilities.shape[1] == 2 else missed)


def _confidence(true: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probability of the predicted class, and whether that is the true one; both (N,)."""
    predicted = probabilities.argmax(axis=1)
    return probabilities.max(axis=1), predicted == np.asarray(true)
