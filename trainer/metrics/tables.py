"""evaluation/<split>.csv, read back: what a network said of each scan of a split.

header, lines = tables.lines(path)              # what is written
judged = tables.judged(header, lines)           # what it means
table = tables.read(run, "test")                # the same of a finished run
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.errors import RunError, typed
from trainer.run_folder import resuming
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord

# A line of a table, by column.
Line = dict[str, str]


@dataclass(frozen=True)
class JudgedVolume:
    """One line per judged volume.

    Attributes:
        task: `classification`, `regression` or `segmentation`, by the table's columns.
        classes: names in the order of `values`' columns; without the background for segmentation, () for
            regression.
        rows: int64 (N,), rows of the shard set.
        subjects: who.
        sessions: which visit; "" where that is not known.
        true: class numbers int64 (N,), or targets float64 (N,); zeros for segmentation.
        values: float64; probabilities (N, K), or predicted numbers (N, 1), or the Dice of K classes and then
            their hd95 in mm, (N, 2 K), NaN where there is none.
    """

    task: str
    classes: tuple[str, ...]
    rows: np.ndarray
    subjects: tuple[str, ...]
    sessions: tuple[str, ...]
    true: np.ndarray
    values: np.ndarray

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of `values` in the file."""
        return _columns(self.task, self.classes)

    @property
    def dice(self) -> dict[str, np.ndarray]:
        """Of a segmentation: by class, float64 (N,), NaN where neither map has the class."""
        return {name: self.values[:, k] for k, name in enumerate(self.classes)}

    @property
    def hd95(self) -> dict[str, np.ndarray]:
        """Of a segmentation: by class, mm, float64 (N,), NaN where a map lacks the class."""
        return {name: self.values[:, len(self.classes) + k] for k, name in enumerate(self.classes)}


@dataclass(frozen=True)
class EvaluationTable(JudgedVolume):
    """That of a run.

    Attributes:
        run: the run folder.
        shards: content hash of the shard set, or None where run.json does not tell.
    """

    run: Path
    shards: str | None

    def taken(self, places: Sequence[int]) -> EvaluationTable:
        """Return the table with the lines at these places only, in this order."""
        where = np.asarray(places, np.int64)
        return dataclasses.replace(
            self,
            rows=self.rows[where],
            subjects=tuple(self.subjects[place] for place in where),
            sessions=tuple(self.sessions[place] for place in where),
            true=self.true[where],
            values=self.values[where],
        )

    def with_classes(self, classes: tuple[str, ...]) -> EvaluationTable:
        """Return the table with its classes in another order."""
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


def read(run: Path, split: str) -> EvaluationTable:
    """Read a finished run's table.

    Raises:
        RunError: it is no run folder, the run is not finished, was not evaluated on this split, or the table
            is damaged.
    """
    folder = RunFolder.open(run)
    if not folder.result.is_file():
        raise RunError(
            f"{run}: this run is not finished: it has no result yet.", cure=resuming.cure(folder), path=run
        )
    path = folder.evaluation / f"{split}.csv"
    cure = f"cingulum evaluate {typed(run)} --split {split} writes it."
    if not path.is_file():
        raise RunError(f"{path}: is missing.", cure=cure, path=path)
    try:
        found = judged(*lines(path))
    except ValueError as error:
        raise RunError(f"{path}: is damaged: {error}.", cure=cure, path=path) from None
    return EvaluationTable(**vars(found), run=run, shards=_content_hash(folder))


def lines(path: Path) -> tuple[tuple[str, ...], list[Line]]:
    """Return the header and the lines of a table of predictions, by column.

    A table of an older version has no column `session`: it gets an empty one.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no table, has no `row` or `subject`, or a line is cut short.
    """
    with path.open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(file)
        try:
            header, rows = tuple(table.fieldnames or ()), list(table)
        except csv.Error as error:
            raise ValueError(str(error)) from None
    if not {"row", "subject"} <= set(header):
        raise ValueError(f"its columns are {', '.join(header)}")
    for number, line in enumerate(rows, start=2):
        if None in line or None in line.values():
            raise ValueError(f"line {number} has more or fewer columns than the first")
        if not line["row"].isdecimal():
            raise ValueError(f"line {number}: {line['row']!r} is no row")
    if "session" not in header:
        place = header.index("subject") + 1
        header = (*header[:place], "session", *header[place:])
        rows = [{**line, "session": ""} for line in rows]
    return header, rows


def judged(header: Sequence[str], lines: Sequence[Line]) -> JudgedVolume:
    """Parse the lines of a table of predictions.

    Raises:
        ValueError: there are no lines, the columns are those of no task, or a value is wrong.
    """
    if not lines:
        raise ValueError("it has no subjects")
    task, classes = _task(header)
    wanted = _columns(task, classes)
    missing = [name for name in wanted if name not in header]
    if missing:
        raise ValueError(f"it has no column for {missing[0]!r}")
    # Only a segmentation has undefined figures.
    empty = "nan" if task == "segmentation" else "empty"
    true = _true(task, classes, lines)
    values = np.array([[float(line[name] or empty) for name in wanted] for line in lines])
    if task != "segmentation" and not (np.isfinite(values).all() and np.isfinite(true).all()):
        raise ValueError("a number is not finite")
    return JudgedVolume(
        task=task,
        classes=classes,
        rows=np.array([int(line["row"]) for line in lines]),
        subjects=tuple(line["subject"] for line in lines),
        sessions=tuple(line["session"] for line in lines),
        true=true,
        values=values,
    )


def _task(header: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Which task writes such a table, and its classes."""
    classes = _after("p_", header)
    if len(classes) > 1 and "label" in header:
        return "classification", classes
    segmented = _after("dice_", header)
    if segmented:
        return "segmentation", segmented
    if "target" in header and "predicted" in header:
        return "regression", ()
    raise ValueError(f"its columns are {', '.join(header)}")


def _after(prefix: str, header: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.removeprefix(prefix) for name in header if name.startswith(prefix))


def _columns(task: str, classes: Sequence[str]) -> tuple[str, ...]:
    if task == "classification":
        return tuple(f"p_{name}" for name in classes)
    if task == "segmentation":
        return tuple(f"{kind}_{name}" for kind in ("dice", "hd95") for name in classes)
    return ("predicted",)


def _true(task: str, classes: Sequence[str], lines: Sequence[Line]) -> np.ndarray:
    if task == "regression":
        return np.array([float(line["target"]) for line in lines])
    if task == "segmentation":
        return np.zeros(len(lines))
    number_of = {name: k for k, name in enumerate(classes)}
    unknown = next((line["label"] for line in lines if line["label"] not in number_of), None)
    if unknown is not None:
        raise ValueError(f"{unknown!r} is not one of its classes")
    return np.array([number_of[line["label"]] for line in lines])


def _content_hash(folder: RunFolder) -> str | None:
    try:
        return RunRecord.read(folder.run).shards.content_hash or None
    except RunError:
        return None
