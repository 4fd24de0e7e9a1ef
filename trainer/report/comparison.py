"""Several runs side by side: what differs in their configurations, and how sure a difference is."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.metrics import bootstrap, delong
from trainer.metrics.classification import auc_difference
from trainer.report.methods import settings_of
from trainer.report.predictions import Found, Overlaps, Predictions, Values
from trainer.report.story import Story

RESAMPLES = 2000
# These differ between any two runs and say nothing.
_NAMES = ("name", "runs")


@dataclass(frozen=True)
class Pair:
    """Two runs on the same subjects.

    Attributes:
        first, second: names of the runs.
        figure: what is compared: AUC, MAE or mean Dice.
        difference: of the first minus the second.
        interval: 95 %, or None where there is none.
        p_value: two-sided, or None.
        method: how interval and p were found.
    """

    first: str
    second: str
    figure: str
    difference: float
    interval: tuple[float, float] | None
    p_value: float | None
    method: str


def differing(runs: Sequence[tuple[str, Story]]) -> list[tuple[str, list[str]]]:
    """Dotted keys whose values are not the same in all runs, with each run's value in words."""
    flat = [_flat(settings_of(story)) for _, story in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    found = []
    for key in keys:
        values = [one.get(key) for one in flat]
        if key not in _NAMES and any(value != values[0] for value in values[1:]):
            found.append((key, ["–" if value is None else str(value) for value in values]))
    return found


def same_subjects(founds: Sequence[Found], hashes: Sequence[Any]) -> bool:
    """Whether all predictions are of the same rows of the same shard set."""
    rows = [sorted(found.rows.tolist()) for found in founds]
    return hashes[0] is not None and all(h == hashes[0] for h in hashes) and all(r == rows[0] for r in rows)


def pairs(runs: Sequence[tuple[str, Found]]) -> list[Pair]:
    """Every two runs, on the same subjects: DeLong's test for two classes, else a paired bootstrap."""
    found = []
    for (first, one), (second, other) in itertools.combinations(runs, 2):
        pair = _compare(first, _sorted(one), second, _sorted(other))
        if pair is not None:
            found.append(pair)
    return found


def _compare(first: str, one: Found, second: str, other: Found) -> Pair | None:
    if isinstance(one, Predictions) and isinstance(other, Predictions):
        if one.classes != other.classes or not np.array_equal(one.true, other.true):
            return None
        return _of_classes(first, one, second, other)
    if isinstance(one, Values) and isinstance(other, Values):
        gap = np.abs(one.errors) - np.abs(other.errors)
        return _of_means(first, second, "MAE", gap)
    if isinstance(one, Overlaps) and isinstance(other, Overlaps):
        return _of_means(first, second, "Mean Dice", one.mean_dice - other.mean_dice)
    return None


def _of_classes(first: str, one: Predictions, second: str, other: Predictions) -> Pair | None:
    if len(one.classes) == 2:
        told = delong.compare(one.true, one.probabilities[:, 1], other.probabilities[:, 1])
        if told is None:
            return None
        bounds = told["interval"]
        return Pair(
            first,
            second,
            "AUC",
            told["difference"],
            (bounds[0], bounds[1]) if bounds else None,
            told["p_value"],
            "DeLong 1988",
        )
    difference = auc_difference(one.true, one.probabilities, other.probabilities)
    if difference is None:
        return None
    value, (low, high) = difference
    return Pair(first, second, "AUC, macro", value, (low, high), None, "paired bootstrap")


def _of_means(first: str, second: str, figure: str, gap: np.ndarray) -> Pair:
    """The mean of differences of the same subjects; those that have no figure in one run are left out."""
    gap = gap[np.isfinite(gap)]
    drawn = bootstrap.resampled(len(gap), RESAMPLES, lambda weights: weights @ gap / len(gap))
    bounds = bootstrap.interval(drawn) if len(gap) > 1 else None
    interval = (bounds[0], bounds[1]) if bounds else None
    p_value = bootstrap.p_value(drawn) if len(gap) > 1 else None
    return Pair(first, second, figure, float(gap.mean()), interval, p_value, "paired bootstrap")


def _sorted(found: Found) -> Found:
    """The same predictions in the order of their rows."""
    order = np.argsort(found.rows, kind="stable")
    subjects = tuple(found.subjects[i] for i in order)
    rows = found.rows[order]
    if isinstance(found, Predictions):
        return Predictions(found.classes, rows, subjects, found.true[order], found.probabilities[order])
    if isinstance(found, Values):
        return Values(rows, subjects, found.true[order], found.predicted[order])
    return Overlaps(found.classes, rows, subjects, found.dice[order], found.hd95[order])


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of every leaf."""
    if isinstance(tree, dict) and tree:
        return {
            key: value
            for name, child in tree.items()
            for key, value in _flat(child, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    return {prefix: tree}
