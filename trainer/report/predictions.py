"""evaluation/<split>.csv, read: what the network said of each scan of a split, one type per task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from trainer.metrics import segmentation, tables


class Scans:
    """The scans of a split, whatever was predicted of them.

    Attributes:
        rows: int (N,), rows of the shard set.
        subjects: who.
        sessions: which visit, "" where that is not known; () where that is known of none.
    """

    rows: np.ndarray
    subjects: tuple[str, ...]
    sessions: tuple[str, ...]

    @property
    def people(self) -> int:
        """Return the number of subjects."""
        return len(set(self.subjects))

    def session(self, place: int) -> str:
        """Return the session of the scan at a place, "" where it is not known."""
        return self.sessions[place] if self.sessions else ""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return what tells each scan from the others: its subject, with the session (else the row) of those
        that have several scans.
        """
        scans = Counter(self.subjects)
        return tuple(
            subject if scans[subject] == 1 else f"{subject}, {self.session(i) or f'row {self.rows[i]}'}"
            for i, subject in enumerate(self.subjects)
        )


@dataclass(frozen=True)
class ClassPredictions(Scans):
    """Predictions of a classification.

    Attributes:
        classes: names, in the order of the probabilities' columns.
        true: int (N,), class numbers.
        probabilities: float (N, classes).
    """

    classes: tuple[str, ...]
    rows: np.ndarray
    subjects: tuple[str, ...]
    true: np.ndarray
    probabilities: np.ndarray
    sessions: tuple[str, ...] = ()

    @property
    def predicted(self) -> np.ndarray:
        """Return class numbers, int (N,)."""
        return self.probabilities.argmax(axis=1)


@dataclass(frozen=True)
class Values(Scans):
    """Predictions of a regression.

    Attributes:
        true, predicted: float (N,), in units of the target.
    """

    rows: np.ndarray
    subjects: tuple[str, ...]
    true: np.ndarray
    predicted: np.ndarray
    sessions: tuple[str, ...] = ()

    @property
    def errors(self) -> np.ndarray:
        """Return predicted minus true, float (N,)."""
        return self.predicted - self.true


@dataclass(frozen=True)
class Overlaps(Scans):
    """Predictions of a segmentation.

    Attributes:
        classes: names of the classes that were measured.
        dice: float (N, classes), from 0 to 1; NaN where a class is in neither map.
        hd95: float (N, classes), 95th percentile of the surface distances in mm; NaN where there is none.
    """

    classes: tuple[str, ...]
    rows: np.ndarray
    subjects: tuple[str, ...]
    dice: np.ndarray
    hd95: np.ndarray
    sessions: tuple[str, ...] = ()

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
        """Return the mean of each scan over its classes, float (N,); NaN where neither map has any."""
        return segmentation.mean_dice(self.dice_by_class)


Found = ClassPredictions | Values | Overlaps


def read(path: Path, task: str) -> Found:
    """Read a table of predictions.

    Args:
        path: evaluation/<split>.csv.
        task: classification, regression or segmentation.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, or of another task.
    """
    table = tables.judged(*tables.lines(path))
    if table.task != task:
        raise ValueError(f"it is of a {table.task}")
    rows, subjects, true, values = table.rows, table.subjects, table.true, table.values
    if task == "regression":
        return Values(rows, subjects, true, values[:, 0], table.sessions)
    if task == "segmentation":
        count = len(table.classes)
        return Overlaps(table.classes, rows, subjects, values[:, :count], values[:, count:], table.sessions)
    return ClassPredictions(table.classes, rows, subjects, true, values, table.sessions)


def as_table(name: str, predictions: Found, shards: str | None) -> tables.EvaluationTable:
    """Return the same as `trainer.metrics.comparison` takes it, of a run with this name and shard set."""
    if isinstance(predictions, ClassPredictions):
        task, classes, true, values = (
            "classification",
            predictions.classes,
            predictions.true,
            predictions.probabilities,
        )
    elif isinstance(predictions, Values):
        task, classes, true, values = "regression", (), predictions.true, predictions.predicted[:, None]
    else:
        task, classes, true = "segmentation", predictions.classes, np.zeros(len(predictions.rows))
        values = np.concatenate([predictions.dice, predictions.hd95], axis=1)
    return tables.EvaluationTable(
        task=task,
        classes=classes,
        rows=predictions.rows,
        subjects=predictions.subjects,
        sessions=predictions.sessions or ("",) * len(predictions.subjects),
        true=true,
        values=values,
        run=Path(name),
        shards=shards,
    )
