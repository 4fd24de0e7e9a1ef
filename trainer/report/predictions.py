"""evaluation/<split>.csv, read: what the network said of each subject of a split, one type per task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.metrics import segmentation, tables


@dataclass(frozen=True)
class Predictions:
    """Predictions of a classification.

    Attributes:
        classes: names, in the order of the probabilities' columns.
        rows: int (N,), rows of the shard set.
        subjects: who.
        true: int (N,), class numbers.
        probabilities: float (N, classes).
    """

    classes: tuple[str, ...]
    rows: np.ndarray
    subjects: tuple[str, ...]
    true: np.ndarray
    probabilities: np.ndarray

    @property
    def predicted(self) -> np.ndarray:
        """Return class numbers, int (N,)."""
        return self.probabilities.argmax(axis=1)


@dataclass(frozen=True)
class Values:
    """Predictions of a regression.

    Attributes:
        rows: int (N,), rows of the shard set.
        subjects: who.
        true, predicted: float (N,), in units of the target.
    """

    rows: np.ndarray
    subjects: tuple[str, ...]
    true: np.ndarray
    predicted: np.ndarray

    @property
    def errors(self) -> np.ndarray:
        """Return predicted minus true, float (N,)."""
        return self.predicted - self.true


@dataclass(frozen=True)
class Overlaps:
    """Predictions of a segmentation.

    Attributes:
        classes: names of the classes that were measured.
        rows: int (N,), rows of the shard set.
        subjects: who.
        dice: float (N, classes), from 0 to 1; NaN where a class is in neither map.
        hd95: float (N, classes), 95th percentile of the surface distances in mm; NaN where there is none.
    """

    classes: tuple[str, ...]
    rows: np.ndarray
    subjects: tuple[str, ...]
    dice: np.ndarray
    hd95: np.ndarray

    @property
    def dice_by_class(self) -> dict[str, np.ndarray]:
        """Return name of a class -> float (N,), as `trainer.metrics.segmentation` takes it."""
        return {name: self.dice[:, k] for k, name in enumerate(self.classes)}

    @property
    def hd95_by_class(self) -> dict[str, np.ndarray]:
        """Return name of a class -> float (N,), in mm."""
        return {name: self.hd95[:, k] for k, name in enumerate(self.classes)}

    @property
    def mean_dice(self) -> np.ndarray:
        """Return the mean of each subject over its classes, float (N,); NaN where neither map has any."""
        return segmentation.mean_dice(self.dice_by_class)


Found = Predictions | Values | Overlaps


def read(path: Path, task: str) -> Found:
    """Read a table of predictions.

    Args:
        path: evaluation/<split>.csv.
        task: classification, regression or segmentation.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, or of another task.
    """
    found = tables.judged(*tables.lines(path))
    if found.task != task:
        raise ValueError(f"it is of a {found.task}")
    rows, subjects, true, values = found.rows, found.subjects, found.true, found.values
    if task == "regression":
        return Values(rows, subjects, true, values[:, 0])
    if task == "segmentation":
        count = len(found.classes)
        return Overlaps(found.classes, rows, subjects, values[:, :count], values[:, count:])
    return Predictions(found.classes, rows, subjects, true, values)


def as_table(name: str, found: Found, shards: str | None) -> tables.Table:
    """Return the same as `trainer.metrics.comparison` takes it, of a run with this name and shard set."""
    if isinstance(found, Predictions):
        task, classes, true, values = "classification", found.classes, found.true, found.probabilities
    elif isinstance(found, Values):
        task, classes, true, values = "regression", (), found.true, found.predicted[:, None]
    else:
        task, classes, true = "segmentation", found.classes, np.zeros(len(found.rows))
        values = np.concatenate([found.dice, found.hd95], axis=1)
    return tables.Table(
        task=task,
        classes=classes,
        rows=found.rows,
        subjects=found.subjects,
        true=true,
        values=values,
        run=Path(name),
        shards=shards,
    )
