"""evaluation/<split>.csv, read: what the network said of each subject of a split, one type per task."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.metrics import segmentation


@dataclass(frozen=True)
class Predictions:
    """Of a classification.

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
        """Class numbers, int (N,)."""
        return self.probabilities.argmax(axis=1)


@dataclass(frozen=True)
class Values:
    """Of a regression.

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
        """Predicted minus true, float (N,)."""
        return self.predicted - self.true


@dataclass(frozen=True)
class Overlaps:
    """Of a segmentation.

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
        """Name of a class -> float (N,), as `trainer.metrics.segmentation` takes it."""
        return {name: self.dice[:, k] for k, name in enumerate(self.classes)}

    @property
    def hd95_by_class(self) -> dict[str, np.ndarray]:
        """Name of a class -> float (N,), in mm."""
        return {name: self.hd95[:, k] for k, name in enumerate(self.classes)}

    @property
    def mean_dice(self) -> np.ndarray:
        """Of each subject over its classes, float (N,); NaN where neither map has any."""
        return segmentation.mean_dice(self.dice_by_class)


Found = Predictions | Values | Overlaps


def read(path: Path, task: str) -> Found:
    """Read a table of predictions.

    Args:
        path: evaluation/<split>.csv.
        task: classification, regression or segmentation.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is empty, a column is missing, or a value is wrong.
    """
    with path.open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file)
        columns = list(table.fieldnames or ())
        lines = list(table)
    if not lines:
        raise ValueError("no predictions")
    try:
        rows = np.array([int(line["row"]) for line in lines])
        subjects = tuple(line["subject"] for line in lines)
        if task == "regression":
            true, predicted = _finite(lines, ["target", "predicted"]).T
            return Values(rows, subjects, true, predicted)
        if task == "segmentation":
            classes = _after("dice_", columns)
            dice, hd95 = (
                _numbers(lines, [f"{what}_{name}" for name in classes]) for what in ("dice", "hd95")
            )
            return Overlaps(classes, rows, subjects, dice, hd95)
        classes = _after("p_", columns)
        if len(classes) < 2:
            raise ValueError("fewer than two classes")
        labels = np.array([classes.index(line["label"]) for line in lines])
        return Predictions(classes, rows, subjects, labels, _finite(lines, [f"p_{name}" for name in classes]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"column {error}") from None


def _after(prefix: str, columns: list[str]) -> tuple[str, ...]:
    found = tuple(column.removeprefix(prefix) for column in columns if column.startswith(prefix))
    if not found:
        raise ValueError(f"no column {prefix}...")
    return found


def _numbers(lines: list[dict[str, str]], columns: list[str]) -> np.ndarray:
    """Float (N, columns); an empty cell is NaN."""
    return np.array([[float(line[column] or "nan") for column in columns] for line in lines])


def _finite(lines: list[dict[str, str]], columns: list[str]) -> np.ndarray:
    values = _numbers(lines, columns)
    if not np.isfinite(values).all():
        raise ValueError("a value is not finite")
    return values
