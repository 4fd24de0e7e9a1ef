"""Whether probabilities mean what they say: reliability, expected calibration error, Brier score."""

from __future__ import annotations

from typing import Any

import numpy as np


def reliability(true: np.ndarray, probabilities: np.ndarray, bins: int = 10) -> list[dict[str, Any]]:
    """How often the network is right where it is about equally sure.

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
    """Expected calibration error: mean over subjects of |accuracy - confidence| of their bin.

    Naeini et al., AAAI 2015; Guo et al., ICML 2017 (arXiv 1706.04599), equation 3. With few subjects per
    bin it is too high even for a calibrated network. None without subjects.
    """
    table = [row for row in reliability(true, probabilities, bins) if row["n"]]
    n = sum(row["n"] for row in table)
    return sum(row["n"] * abs(row["accuracy"] - row["confidence"]) for row in table) / n if n else None


def brier(true: np.ndarray, probabilities: np.ndarray) -> float | None:
    """Brier score (Brier 1950): mean squared distance of the probabilities from what was the case.

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
