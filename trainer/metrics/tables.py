"""A run's evaluation/<split>.csv, read back: what its network said of each subject."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.errors import RunError
from trainer.record import RunFolder


@dataclass(frozen=True)
class Table:
    """One line per judged volume.

    Attributes:
        run: the run folder.
        task: `classification`, `regression` or `segmentation`, by the table's columns.
        classes: names in the order of `values`' columns; without the background for segmentation, () for
            regression.
        rows: int64 (N,), rows of the shard set.
        subjects: who.
        true: class numbers int64 (N,), or targets float64 (N,); zeros for segmentation.
        values: float64; probabilities (N, K), or predicted numbers (N, 1), or the Dice of K classes and then
            their hd95 in mm, (N, 2 K), NaN where there is none.
        shards: content hash of the shard set, or None where run.json does not tell.
    """

    run: Path
    task: str
    classes: tuple[str, ...]
    rows: np.ndarray
    subjects: tuple[str, ...]
    true: np.ndarray
    values: np.ndarray
    shards: str | None

    @property
    def dice(self) -> dict[str, np.ndarray]:
        """Of a segmentation: by class, float64 (N,), NaN where neither map has the class."""
        return {name: self.values[:, k] for k, name in enumerate(self.classes)}

    @property
    def hd95(self) -> dict[str, np.ndarray]:
        """Of a segmentation: by class, mm, float64 (N,), NaN where a map lacks the class."""
        return {name: self.values[:, len(self.classes) + k] for k, name in enumerate(self.classes)}

    def taken(self, places: Sequence[int]) -> Table:
        """Only the lines at these places, in this order."""
        where = np.asarray(places, np.int64)
        return dataclasses.replace(
            self,
            rows=self.rows[where],
            subjects=tuple(self.subjects[place] for place in where),
            true=self.true[where],
            values=self.values[where],
        )

    def with_classes(self, classes: tuple[str, ...]) -> Table:
        """The same with its classes in another order."""
        if not classes:
            return self
        where = [self.classes.index(name) for name in classes]
        if self.task == "classification":
            number = np.argsort(where)
            return dataclasses.replace(
                self, classes=classes, true=number[self.true], values=self.values[:, where]
            )
        columns = [*where, *(len(where) + k for k in where)]
        return dataclasses.replace(self, classes=classes, values=self.values[:, columns])


def read(run: Path, split: str) -> Table:
    """Read a finished run's table.

    Raises:
        RunError: it is no run folder, the run is not finished, was not evaluated on this split, or the table
            is damaged.
    """
    folder = RunFolder.open(run)
    if not folder.result.is_file():
        raise RunError(
            f"{run}: this run is not finished: it has no result yet.",
            cure=f"Go on with: cingulum train {folder.config} --resume",
        )
    path = folder.evaluation / f"{split}.csv"
    cure = f"cingulum evaluate {run} --split {split} writes it."
    if not path.is_file():
        raise RunError(f"{path}: is missing.", cure=cure)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            table = csv.DictReader(file)
            columns = list(table.fieldnames or ())
            lines = list(table)
        return _parsed(run, columns, lines, _content_hash(folder))
    except KeyError as error:
        raise RunError(f"{path}: is damaged: it has no column for {error}.", cure=cure) from None
    except (ValueError, csv.Error) as error:
        raise RunError(f"{path}: is damaged: {error}.", cure=cure) from None


def _parsed(run: Path, columns: list[str], lines: list[dict[str, str]], shards: str | None) -> Table:
    if not lines:
        raise ValueError("it has no subjects")
    for number, line in enumerate(lines, start=2):
        if None in line or None in line.values():
            raise ValueError(f"line {number} has more or fewer columns than the first")
    classes = tuple(name[2:] for name in columns if name.startswith("p_"))
    segmented = tuple(name[5:] for name in columns if name.startswith("dice_"))
    if classes and "label" in columns:
        task, wanted = "classification", [f"p_{name}" for name in classes]
        number_of = {name: k for k, name in enumerate(classes)}
        true = np.array([number_of[line["label"]] for line in lines])
    elif segmented:
        task, classes = "segmentation", segmented
        wanted = [f"{kind}_{name}" for kind in ("dice", "hd95") for name in classes]
        true = np.zeros(len(lines))
    elif "target" in columns and "predicted" in columns:
        task, wanted = "regression", ["predicted"]
        true = np.array([float(line["target"]) for line in lines])
    else:
        raise ValueError(f"its columns are {', '.join(columns)}")
    empty = np.nan if task == "segmentation" else "empty"
    values = np.array([[float(line[name] or empty) for name in wanted] for line in lines])
    if task != "segmentation" and not (np.isfinite(values).all() and np.isfinite(true).all()):
        raise ValueError("a number is not finite")
    return Table(
        run=run,
        task=task,
        classes=classes,
        rows=np.array([int(line["row"]) for line in lines]),
        subjects=tuple(line["subject"] for line in lines),
        true=true,
        values=values,
        shards=shards,
    )


def _content_hash(folder: RunFolder) -> str | None:
    try:
        found = json.loads(folder.run.read_text(encoding="utf-8"))["shards"]["content_hash"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(found) if found else None
