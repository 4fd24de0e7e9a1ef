"""How far predicted numbers, such as ages, are from the true ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.metrics import bootstrap as resampling


def regression_metrics(true: np.ndarray, predicted: np.ndarray, bootstrap: int = 2000) -> dict[str, Any]:
    """Return metrics of predicted numbers on one split.

    Args:
        true: float (N,), in the target's unit.
        predicted: float (N,), in the same unit.
        bootstrap: resamples of the subjects for the 95 % intervals; 0 for none.

    Returns:
        n; mae, mae_interval, rmse and bias (mean of predicted - true), in the target's unit; r2, r2_interval
        (1 - squared error / squared distance from the mean of these subjects: 0 for one who always says that
        mean, below 0 for worse), pearson (correlation). What is undefined is None: everything without
        subjects, r2 where all targets are alike, pearson where targets or predictions are, intervals of
        fewer than `bootstrap.LEAST` subjects, or where no resample differs.

    Raises:
        ValueError: shapes that do not belong together, or a number that is not finite.
    """
    true, predicted = np.asarray(true, np.float64), np.asarray(predicted, np.float64)
    if true.ndim != 1 or true.shape != predicted.shape:
        raise ValueError(f"{true.shape} targets, {predicted.shape} predictions")
    if not (np.isfinite(true).all() and np.isfinite(predicted).all()):
        raise ValueError("a target or a prediction is not finite")
    # Imported here: it would cost every rank a second at its start.
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    n = len(true)
    varied = n > 1 and np.ptp(true) > 0
    return {
        "n": n,
        "mae": float(mean_absolute_error(true, predicted)) if n else None,
        "mae_interval": resampling.interval(mae_resampled(true, predicted, bootstrap), n) if n else None,
        "rmse": float(root_mean_squared_error(true, predicted)) if n else None,
        "r2": float(r2_score(true, predicted)) if varied else None,
        "r2_interval": resampling.interval(_r2_resampled(true, predicted, bootstrap), n) if varied else None,
        "pearson": _pearson(true, predicted) if varied else None,
        "bias": float(np.mean(predicted - true)) if n else None,
    }


def mae_resampled(true: np.ndarray, predicted: np.ndarray, resamples: int) -> np.ndarray:
    """Return the mean absolute error of each resample of the subjects, float64 (resamples,)."""
    error = np.abs(predicted - true)
    return resampling.resampled(len(true), resamples, lambda weights: weights @ error / len(true))


def _r2_resampled(true: np.ndarray, predicted: np.ndarray, resamples: int) -> np.ndarray:
    """float64 (resamples,): r2 of each resample, NaN where all its targets are alike."""
    # About the mean, so that a sum of squares loses no digits to the size of the numbers.
    centred, squared = true - true.mean(), np.square(predicted - true)
    n = len(true)

    def figure(weights: np.ndarray) -> np.ndarray:
        spread = weights @ np.square(centred) - np.square(weights @ centred) / n
        varied = spread > 1e-12 * np.square(centred).sum()
        share = np.divide(weights @ squared, spread, out=np.full(len(weights), np.nan), where=varied)
        return 1 - share

    return resampling.resampled(n, resamples, figure)


def _pearson(true: np.ndarray, predicted: np.ndarray) -> float | None:
    """Pearson's correlation; None where the predictions are all alike."""
    return float(np.corrcoef(true, predicted)[0, 1]) if np.ptp(predicted) > 0 else None
