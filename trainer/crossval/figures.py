"""Figures of a cross-validation, with intervals.

Two kinds, because they answer different questions:

- *pooled*: over all held-out scans, each with the prediction of the network that never saw its subject; with
  several seeds, the mean over seeds of each seed's figure. The interval is by subject, with all its scans and
  the predictions of all seeds (see `trainer.metrics.subjects`): it says how much the figure depends on who
  was examined, the trained networks given.
- *over folds*: mean and standard deviation of the runs' own figures. Training sets of folds overlap, so the
  folds are not independent, and no unbiased estimate of the variance of their mean exists (Bengio and
  Grandvalet, JMLR 5, 2004): the standard deviation is a description, never to be divided by sqrt(folds).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainer.crossval.held_out import HeldOut
from trainer.metrics import ranking
from trainer.metrics.classification import classification_metrics
from trainer.metrics.regression import SCALES, mean, regression_figures
from trainer.metrics.segmentation import mean_dice
from trainer.metrics.subjects import Figure, Scale, Subjects, left_out, share_interval

AREAS = ("auc", "pr_auc")


def pooled(found: HeldOut) -> dict[str, dict[str, Any]]:
    """Return name of each figure -> `value` and 95 % `interval` ([low, high], or None where
    unknown).
    """
    subjects = Subjects.named(found.subjects.tolist())
    by_seed = [figures(found, k) for k in range(len(found.values))]
    classes = found.true if found.task == "classification" else None
    shares = _shares(found)
    result = {}
    for name in by_seed[0]:
        if name in shares:
            result[name] = _share(shares[name], subjects)
            continue
        without = left_out(subjects, _over_seeds([of_seed[name] for of_seed in by_seed]), classes)
        result[name] = {
            "value": _known(without.value),
            "interval": without.interval(_scale(name), normal=name in AREAS),
        }
    return result


def _over_seeds(figures: Sequence[Figure]) -> Figure:
    return lambda weights: np.mean([figure(weights) for figure in figures], axis=0)


def _scale(name: str) -> Scale:
    if name in SCALES:
        return SCALES[name]
    # Distances and volumes of a label map.
    return "share" if name in (*AREAS, "balanced_accuracy", "dice") or name.startswith("dice_") else "size"


def _shares(found: HeldOut) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By name of a share of scans: bool (N,), which count, and float (N,), how many seeds are right."""
    if found.task != "classification":
        return {}
    hits = np.mean([values.argmax(axis=1) == found.true for values in found.values], axis=0)
    shares = {"accuracy": (np.ones(len(hits), bool), hits)}
    if len(found.classes) == 2:
        shares |= {"sensitivity": (found.true == 1, hits), "specificity": (found.true == 0, hits)}
    return shares


def _share(share: tuple[np.ndarray, np.ndarray], subjects: Subjects) -> dict[str, Any]:
    counted, hits = share
    if not counted.any():
        return {"value": None, "interval": None}
    hits = hits[counted]
    return {"value": float(hits.mean()), "interval": share_interval(hits, subjects.of(counted))}


def per_seed(found: HeldOut) -> list[dict[str, Any]]:
    """Return for each seed the figures of all its scans together, without intervals."""
    if found.task == "classification":
        every = [classification_metrics(found.true, v, found.classes, None) for v in found.values]
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
        if name not in ("n", "subjects") and all(
            isinstance(v, int | float) and not isinstance(v, bool) for v in values
        ):
            numbers = np.array(values, np.float64)
            sd = float(numbers.std(ddof=1)) if len(numbers) > 1 else None
            result[name] = {"mean": float(numbers.mean()), "sd": sd, "n": len(numbers)}
    return result


def figures(found: HeldOut, seed: int) -> dict[str, Figure]:
    """Return the figures of the seed with this place among the seeds, as functions of the
    scans' weights.
    """
    values = found.values[seed]
    if found.task == "classification":
        return _of_classes(found.true, values)
    if found.task == "regression":
        return regression_figures(found.true, values[:, 0])
    return _of_maps(found.columns, values)


def _of_classes(true: np.ndarray, probabilities: np.ndarray) -> dict[str, Figure]:
    count = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    hit = (predicted == true).astype(float)

    def recall(k: int) -> Figure:
        return lambda w: mean(w * (true == k), hit)

    result: dict[str, Figure] = {
        "auc": lambda w: ranking.roc_areas(true, probabilities, w),
        "pr_auc": lambda w: ranking.average_precisions(true, probabilities, w),
        "accuracy": lambda w: mean(w, hit),
        "balanced_accuracy": lambda w: np.mean([recall(k)(w) for k in range(count)], axis=0),
    }
    return {**result, "sensitivity": recall(1), "specificity": recall(0)} if count == 2 else result


def _of_maps(columns: Sequence[str], values: np.ndarray) -> dict[str, Figure]:
    """Means over scans: `dice`, the mean over a scan's classes, and every column.

    A scan without a value, as of a class that neither map has, is left out of that mean.
    """

    def over(of_scan: np.ndarray) -> Figure:
        there = np.isfinite(of_scan)
        return lambda w: mean(w * there, np.where(there, of_scan, 0.0))

    every = {name: values[:, k] for k, name in enumerate(columns)}
    dice = {name: column for name, column in every.items() if name.startswith("dice_")}
    return {"dice": over(mean_dice(dice)), **{name: over(column) for name, column in every.items()}}


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
