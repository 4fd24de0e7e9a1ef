"""The subgroup table of a page: the main figures by sex, age band and site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.metrics import subgroups
from trainer.report.figure import FigureTable, table
from trainer.report.judgement import share, told_interval
from trainer.report.predictions import ClassPredictions, Found, Overlaps
from trainer.report.story import ReportMaterial

# The figures of each task: name in the metrics, and on the page.
_COLUMNS = {
    "classification": {"accuracy": "Accuracy", "balanced_accuracy": "Balanced accuracy", "auc": "AUC"},
    "regression": {"mae": "MAE", "bias": "Bias"},
    "segmentation": {"dice": "Dice"},
}


@dataclass(frozen=True)
class Subgroups:
    """Columns (name, whether numbers), cells as words, and the numbers for a CSV file."""

    header: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, ...], ...]
    table: FigureTable


def of(story: ReportMaterial, predictions: Found) -> Subgroups | None:
    """Return the table; None where the shard set is not at hand or no group by sex, age or site is
    large enough.
    """
    shards = story.shards
    if shards is None or not all(0 <= row < len(shards) for row in predictions.rows):
        return None
    every = subgroups.subgroup_table([shards.volumes[row] for row in predictions.rows], _measure(predictions))
    known = {group["by"] for group in every if group["metrics"] is not None}
    # Where all of a kind are too few, there is nothing to say.
    groups = [group for group in every if group["by"] in known]
    if not groups:
        return None
    names = _COLUMNS[story.task.name]
    header = [("Group", False), ("By", False), ("Subjects", True), ("Scans", True)]
    for label in names.values():
        header.append((label, True))
    return Subgroups(
        tuple(header),
        tuple(_row(group, tuple(names)) for group in groups),
        table(
            [
                "by",
                "group",
                "n",
                *(f"{name}{end}" for name in names for end in ("", "_low", "_high")),
                "subjects",
            ],
            [
                (
                    g["by"],
                    g["group"],
                    g["n"],
                    *(v for name in names for v in _numbers(g["metrics"] or {}, name)),
                    g["subjects"],
                )
                for g in groups
            ],
        ),
    )


def _measure(predictions: Found) -> subgroups.Measure:
    if isinstance(predictions, ClassPredictions):
        return subgroups.classification_measure(
            predictions.true, predictions.probabilities, predictions.classes, predictions.subjects
        )
    if isinstance(predictions, Overlaps):
        return subgroups.segmentation_measure(
            predictions.dice_by_class, predictions.hd95_by_class, predictions.subjects
        )
    return subgroups.regression_measure(predictions.true, predictions.predicted, predictions.subjects)


def _row(group: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    metrics = group["metrics"]
    facts = (str(group["group"]), str(group["by"]), str(group["subjects"]), str(group["n"]))
    if metrics is None:
        return (*facts, "too few", *("–" for _ in names[1:]))
    cells = []
    for name in names:
        bounds = told_interval(metrics, name)
        cells.append(f"{share(metrics.get(name))} ({bounds})" if bounds else share(metrics.get(name)))
    return (*facts, *cells)


def _numbers(metrics: Mapping[str, Any], name: str) -> tuple[Any, Any, Any]:
    low, high = metrics.get(f"{name}_interval") or (None, None)
    return metrics.get(name), low, high
