"""How far predicted numbers, such as ages, are from the true ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.metrics.subjects import Figure, Scale, Subjects, left_out

# The numbers that each figure can be.
SCALES: dict[str, Scale] = {
    "mae": "size",
    "rmse": "size",
    "r2": "at most one",
    "pearson": "correlation",
    "bias": "any",
}


def regression_metrics(
    true: np.ndarray, predicted: np.ndarray, subjects: Sequence[str] | None
) -> dict[str, Any]:
    """Return metrics of predicted numbers on one split.

    Args:
        true: float (N,), in the target's unit.
        predicted: float (N,), in the same unit.
        subjects: whose scan each is, (N,), for the 95 % intervals (see `trainer.metrics.subjects`); None
            for no interval.

    Returns:
        n (scans), subjects (how many, where they are given); mae, mae_interval, rmse and bias (mean of
        predicted - true), in the target's unit; r2, r2_interval (1 - squared error / squared distance from
        the mean of these scans: 0 for one who always says that mean, below 0 for worse), pearson
        (correlation). What is undefined is None: everything without scans, r2 where all targets are alike,
        pearson where targets or predictions are, intervals of fewer than `subjects.LEAST` subjects, or where
        no subject makes a difference.

    Raises:
        ValueError: shapes that do not belong together, or a number that is not finite.
    """
    true, predicted = np.asarray(true, np.float64), np.asarray(predicted, np.float64)
    if true.ndim != 1 or true.shape != predicted.shape:
        raise ValueError(f"{true.shape} targets, {predicted.shape} predictions")
    if not (np.isfinite(true).all() and np.isfinite(predicted).all()):
        raise ValueError("a target or a prediction is not finite")
    people = None if subjects is None else Subjects.named(subjects)
    figures = regression_figures(true, predicted)
    every = np.ones((1, len(true)))
    values = {
        name: _known(float(figure(every)[0])) if len(true) else None for name, figure in figures.items()
    }

    def interval(name: str) -> list[float] | None:
        if people is None or values[name] is None:
            return None
        return left_out(people, figures[name]).interval(SCALES[name])

    return {
        "n": len(true),
        **({} if people is None else {"subjects": people.count}),
        "mae": values["mae"],
        "mae_interval": interval("mae"),
        "rmse": values["rmse"],
        "r2": values["r2"],
        "r2_interval": interval("r2"),
        "pearson": values["pearson"],
        "bias": values["bias"],
    }


def regression_figures(true: np.ndarray, predicted: np.ndarray) -> dict[str, Figure]:
    """Return mae, rmse, r2, pearson and bias as functions of the scans' weights.

    Args:
        true, predicted: float64 (N,).
    """
    error = predicted - true

    def r2(weights: np.ndarray) -> np.ndarray:
        return 1 - _ratio(mean(weights, error**2), _variance(weights, true))

    def pearson(weights: np.ndarray) -> np.ndarray:
        variances = _variance(weights, true) * _variance(weights, predicted)
        return _ratio(_covariance(weights, true, predicted), np.sqrt(variances))

    return {
        "mae": lambda weights: mean(weights, np.abs(error)),
        "rmse": lambda weights: np.sqrt(mean(weights, error**2)),
        "r2": r2,
        "pearson": pearson,
        "bias": lambda weights: mean(weights, error),
    }


def mean(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the weighted mean of values (N,) for each row of weights (b, N); NaN without weight."""
    return _ratio(weights @ values, weights.sum(axis=1))


def _covariance(weights: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    # About the plain means first, so that large numbers with small differences keep their digits.
    one, other = one - one.mean(), other - other.mean()
    return mean(weights, one * other) - mean(weights, one) * mean(weights, other)


def _variance(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """0 where all values with a weight are alike but for rounding."""
    variance = _covariance(weights, values, values)
    return np.where(variance > 1e-12 * np.square(values - values.mean()).mean(), variance, 0.0)


def _ratio(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.divide(one, other, out=np.full(np.shape(one), np.nan), where=other > 0)


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None
