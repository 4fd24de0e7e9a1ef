"""Figures of a cross-validation, with intervals.

Two kinds, because they answer different questions:

- *pooled*: over all subjects, each with the prediction of the network that never saw it; with several seeds,
  the mean over seeds of each seed's figure. The interval is a percentile bootstrap over subjects (Efron and
  Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13): a subject is drawn with all its scans and
  the predictions of all seeds, within its class. Shares of subjects (accuracy, sensitivity, specificity) have
  Wilson's interval for the number of subjects instead, which has a width at 0 and 1, too. Both say how much
  the figure depends on who was examined, the trained networks given.
- *over folds*: mean and standard deviation of the runs' own figures. Training sets of folds overlap, so the
  folds are not independent, and no unbiased estimate of the variance of their mean exists (Bengio and
  Grandvalet, JMLR 5, 2004): the standard deviation is a description, never to be divided by sqrt(folds).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trainer.crossval.held_out import HeldOut
from trainer.metrics import ranking
from trainer.metrics.bootstrap import interval
from trainer.metrics.classification import classification_metrics, wilson

RESAMPLES = 2000
BOOTSTRAP_SEED = 20190507
SHARES = ("accuracy", "sensitivity", "specificity")
_CHUNK = 250  # resamples at a time: memory stays small with ten thousand subjects

# From weights (resamples, N) to one value per resample, float64 (resamples,); NaN where there is none.
Figure = Callable[[np.ndarray], np.ndarray]


def pooled(found: HeldOut, *, resamples: int = RESAMPLES) -> dict[str, dict[str, Any]]:
    """Return name of each figure -> `value` and 95 % `interval` ([low, high], or None where
    unknown).
    """
    by_seed = [figures(found, k) for k in range(len(found.values))]
    sums: dict[str, list[np.ndarray]] = {name: [] for name in by_seed[0]}
    with np.errstate(invalid="ignore", divide="ignore"):
        for weights in _resampled(found, resamples):
            for name, parts in sums.items():
                parts.append(np.mean([of_seed[name](weights) for of_seed in by_seed], axis=0))
    result = {}
    for name, parts in sums.items():
        values = np.concatenate(parts)
        result[name] = {"value": _known(values[0]), "interval": _interval(found, name, values)}
    return result


def _interval(found: HeldOut, name: str, values: np.ndarray) -> list[float] | None:
    """95 % interval of a figure from its value and those of the resamples; None where unknown."""
    if found.task == "classification" and name in SHARES and np.isfinite(values[0]):
        subjects = len(set(found.subjects[_counted(found, name)].tolist()))
        return wilson(values[0] * subjects, subjects)
    drawn = values[1:]
    return interval(drawn, _fewest(found)) if np.isfinite(drawn).all() else None


def _fewest(found: HeldOut) -> int:
    """How many subjects a resample draws from: those of the smallest class there is."""
    if found.task != "classification":
        return len(set(found.subjects.tolist()))
    return min(len(set(found.subjects[found.true == k].tolist())) for k in np.unique(found.true))


def _counted(found: HeldOut, name: str) -> np.ndarray:
    """Bool (N,): the volumes whose share `name` is."""
    if name == "accuracy":
        return np.ones(len(found.true), bool)
    return np.asarray(found.true == (1 if name == "sensitivity" else 0))


def per_seed(found: HeldOut) -> list[dict[str, Any]]:
    """Return for each seed the figures of all its subjects together, without intervals."""
    if found.task == "classification":
        every = [classification_metrics(found.true, v, found.classes, bootstrap=0) for v in found.values]
        return [
            {name: value for name, value in one.items() if not name.endswith("_interval")} for one in every
        ]
    ones = np.ones((1, len(found.rows)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return [
            {name: _known(figure(ones)[0]) for name, figure in figures(found, k).items()}
            for k in range(len(found.values))
        ]


def spread(metrics: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return mean and standard deviation (n - 1; None for one) of each figure that all of `metrics` know.

    Args:
        metrics: of runs or seeds; what is no number, an interval for example, is passed over.
    """
    result = {}
    for name in metrics[0]:
        values = [one.get(name) for one in metrics]
        if name != "n" and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            numbers = np.array(values, np.float64)
            sd = float(numbers.std(ddof=1)) if len(numbers) > 1 else None
            result[name] = {"mean": float(numbers.mean()), "sd": sd, "n": len(numbers)}
    return result


def figures(found: HeldOut, seed: int) -> dict[str, Figure]:
    """Return the figures of the seed with this place among the seeds, as functions of the
    volumes' weights.
    """
    values = found.values[seed]
    if found.task == "classification":
        return _of_classes(found.true, values)
    if found.task == "regression":
        return _of_numbers(found.true, values[:, 0])
    return _of_maps(found.columns, values)


def _resampled(found: HeldOut, resamples: int) -> Iterator[np.ndarray]:
    """Weights float (<= _CHUNK, N): the volumes as they are, then each resample of subjects."""
    names, home = np.unique(found.subjects, return_inverse=True)
    # A subject counts as the class of its first scan; a target or label map makes no classes.
    first = np.array([np.flatnonzero(home == k)[0] for k in range(len(names))])
    classes = found.true[first] if found.task == "classification" else np.zeros(len(names))
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    yield np.ones((1, len(home)))
    for begin in range(0, resamples, _CHUNK):
        size = min(_CHUNK, resamples - begin)
        weights = np.zeros((size, len(names)))
        for name in np.unique(classes):
            members = np.flatnonzero(classes == name)
            chances = np.full(len(members), 1 / len(members))
            weights[:, members] = rng.multinomial(len(members), chances, size=size)
        yield weights[:, home]


def _of_classes(true: np.ndarray, probabilities: np.ndarray) -> dict[str, Figure]:
    count = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    hit = (predicted == true).astype(float)

    def recall(k: int) -> Figure:
        return lambda w: _mean(w * (true == k), hit)

    def area(w: np.ndarray) -> np.ndarray:
        targets = [1] if count == 2 else range(count)
        return np.mean([weighted_auc(true == k, probabilities[:, k], w) for k in targets], axis=0)

    result: dict[str, Figure] = {
        "auc": area,
        "pr_auc": lambda w: ranking.average_precisions(true, probabilities, w),
        "accuracy": lambda w: _mean(w, hit),
        "balanced_accuracy": lambda w: np.mean([recall(k)(w) for k in range(count)], axis=0),
    }
    return {**result, "sensitivity": recall(1), "specificity": recall(0)} if count == 2 else result


def weighted_auc(positive: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return area under the ROC curve for each row of weights (Mann and Whitney; ties count half).

    Args:
        positive: bool (N,).
        scores: float (N,).
        weights: float (resamples, N).

    Returns:
        float (resamples,), NaN where a class has no weight.
    """
    order = np.argsort(scores, kind="stable")
    ties = np.flatnonzero(np.r_[True, np.diff(scores[order]) > 0])
    w, inside = weights[:, order], positive[order]
    above = np.add.reduceat(w * inside, ties, axis=1)
    below = np.add.reduceat(w * ~inside, ties, axis=1)
    wins = (above * (np.cumsum(below, axis=1) - below / 2)).sum(axis=1)
    return np.asarray(wins / (above.sum(axis=1) * below.sum(axis=1)))


def _of_numbers(target: np.ndarray, predicted: np.ndarray) -> dict[str, Figure]:
    error = predicted - target

    def r2(w: np.ndarray) -> np.ndarray:
        return 1 - _mean(w, error**2) / _covariance(w, target, target)

    def pearson(w: np.ndarray) -> np.ndarray:
        variances = _covariance(w, target, target) * _covariance(w, predicted, predicted)
        return np.asarray(_covariance(w, target, predicted) / np.sqrt(variances))

    return {
        "mae": lambda w: _mean(w, abs(error)),
        "rmse": lambda w: np.sqrt(_mean(w, error**2)),
        "r2": r2,
        "pearson": pearson,
        "bias": lambda w: _mean(w, error),
    }


def _of_maps(columns: Sequence[str], values: np.ndarray) -> dict[str, Figure]:
    """Means over subjects: `dice`, the mean over a subject's classes, and every column.

    A subject without a value, as of a class that neither map has, is left out of that mean.
    """

    def mean(of_subject: np.ndarray) -> Figure:
        there = np.isfinite(of_subject)
        return lambda w: _mean(w * there, np.where(there, of_subject, 0.0))

    dice = values[:, [k for k, name in enumerate(columns) if name.startswith("dice_")]]
    known = np.isfinite(dice).sum(axis=1)
    return {
        "dice": mean(
            np.divide(np.nansum(dice, axis=1), known, out=np.full(len(dice), np.nan), where=known > 0)
        ),
        **{name: mean(values[:, k]) for k, name in enumerate(columns)},
    }


def _mean(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.asarray((weights @ values) / weights.sum(axis=1))


def _covariance(weights: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    # About the plain means first, so that large numbers with small differences keep their digits.
    one, other = one - one.mean(), other - other.mean()
    return _mean(weights, one * other) - _mean(weights, one) * _mean(weights, other)


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
