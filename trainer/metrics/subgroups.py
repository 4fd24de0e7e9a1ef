"""The same figures for both sexes, age bands and sites: a good mean can hide a group that is served badly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.metrics.classification import classification_metrics
from trainer.metrics.regression import regression_metrics
from trainer.metrics.segmentation import segmentation_metrics

if TYPE_CHECKING:
    from trainer.data.shards.index import VolumeMeta

UNKNOWN = "unknown"
# From places in the table, int (n,), to figures of those scans.
Measure = Callable[[np.ndarray], Mapping[str, Any]]


def subgroup_table(
    volumes: Sequence[VolumeMeta], measure: Measure, *, smallest: int = 10, band: int = 10
) -> list[dict[str, Any]]:
    """Return figures by sex, age band and site.

    Args:
        volumes: one for each judged scan, with `subject`, `sex`, `age` in years and `site`.
        measure: `classification_measure`, `regression_measure` or `segmentation_measure` of these scans,
            in the same order.
        smallest: groups with fewer subjects get no figures, which would say more about chance than about
            the group, and might tell a single person's result.
        band: years of an age band; bands begin at its multiples, so 60-69, 70-79.

    Returns:
        Rows by (`sex`, `age` or `site`), group, n (scans), subjects, metrics (what `measure` gives, or None
        for a small group); groups sorted, those of unknown sex, age or site last. A property that no subject
        has is left out. A subject whose scans are of two ages may be in two age bands.
    """
    keys: dict[str, list[str]] = {
        "sex": [str(volume.sex) if volume.sex else UNKNOWN for volume in volumes],
        "age": [_band(volume.age, band) for volume in volumes],
        "site": [str(volume.site) if volume.site else UNKNOWN for volume in volumes],
    }
    rows = []
    for by, groups in keys.items():
        if set(groups) <= {UNKNOWN}:
            continue
        for group in sorted(set(groups), key=_order):
            places = np.flatnonzero([g == group for g in groups])
            people = len({volumes[place].subject for place in places.tolist()})
            metrics = dict(measure(places)) if people >= smallest else None
            rows.append({"by": by, "group": group, "n": len(places), "subjects": people, "metrics": metrics})
    return rows


def classification_measure(
    true: np.ndarray, probabilities: np.ndarray, classes: Sequence[str], subjects: Sequence[str]
) -> Measure:
    """Return accuracy, balanced accuracy and AUC with intervals; see `classification_metrics`."""
    names = ("accuracy", "accuracy_interval", "balanced_accuracy", "auc", "auc_interval")

    def measure(places: np.ndarray) -> dict[str, Any]:
        metrics = classification_metrics(true[places], probabilities[places], classes, _at(subjects, places))
        return {name: metrics[name] for name in names}

    return measure


def regression_measure(true: np.ndarray, predicted: np.ndarray, subjects: Sequence[str]) -> Measure:
    """Return mean absolute error with interval, and bias; see `regression_metrics`."""

    def measure(places: np.ndarray) -> dict[str, Any]:
        metrics = regression_metrics(true[places], predicted[places], _at(subjects, places))
        return {name: metrics[name] for name in ("mae", "mae_interval", "bias")}

    return measure


def segmentation_measure(
    dice: Mapping[str, np.ndarray], hd95: Mapping[str, np.ndarray], subjects: Sequence[str]
) -> Measure:
    """Return mean Dice with interval; see `segmentation_metrics`."""

    def measure(places: np.ndarray) -> dict[str, Any]:
        of_dice, of_hd95 = (
            {name: values[places] for name, values in figures.items()} for figures in (dice, hd95)
        )
        metrics = segmentation_metrics(of_dice, of_hd95, _at(subjects, places))
        return {name: metrics[name] for name in ("dice", "dice_interval")}

    return measure


def _at(subjects: Sequence[str], places: np.ndarray) -> list[str]:
    return [subjects[place] for place in places]


def _band(age: float | None, width: int) -> str:
    """'70-79' for 75.3 and a width of 10."""
    if age is None or not np.isfinite(age):
        return UNKNOWN
    low = int(age // width) * width
    return f"{low}-{low + width - 1}"


def _order(group: str) -> tuple[bool, float, str]:
    """Unknown last, age bands by number, all else by name."""
    start = group.split("-")[0]
    return group == UNKNOWN, float(start) if start.isdigit() else 0.0, group
