"""The table of predictions: whole at any time, gone on with after a stop, and how it was made."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.atomic import write_text
from trainer.data.sources import tables
from trainer.errors import CohortError, RunError
from trainer.run_folder.record import read_json, write_json


def columns(task: str, classes: Sequence[str], several: bool) -> tuple[str, ...]:
    """Return names of the columns of a task.

    Args:
        task: 'classification', 'regression' or 'segmentation'.
        classes: names.
        several: whether it is an ensemble, which has columns of the standard deviation over its members.
    """
    if task == "regression":
        return ("predicted", *(["sd"] if several else []))
    if task == "segmentation":
        names = [f"ml_{name}" for name in classes[1:]]
        return ("segmentation", *names, *(f"sd_{name}" for name in names if several))
    spreads = [f"sd_{name}" for name in classes if several]
    return ("predicted", *(f"p_{name}" for name in classes), *spreads)


def row(task: str, classes: Sequence[str], outputs: np.ndarray) -> dict[str, Any]:
    """Return the columns of one image.

    Args:
        task: 'classification' or 'regression'.
        classes: names.
        outputs: float64 (M, K) or (M, 1), what each of M members said: probabilities, or numbers.
    """
    means = outputs.mean(axis=0)
    cells: list[Any]
    if task == "regression":
        cells = [round(float(means[0]), 4)]
    else:
        cells = [classes[int(means.argmax())], *(round(float(share), 6) for share in means)]
    cells += spread(outputs)
    return dict(zip(columns(task, classes, len(outputs) > 1), cells, strict=True))


def spread(found: np.ndarray) -> list[float]:
    """Return the standard deviation (divided by M - 1) over M members (M, K); [] for a single one."""
    if len(found) < 2:
        return []
    return [round(float(value), 6) for value in found.std(axis=0, ddof=1)]


# Each writing replaces the whole file, so it must not follow every image.
_WRITE_EVERY_S = 5.0


class Results:
    """Rows of a table that grows, in the order of the images asked about.

    Beside `table.csv` lies `table.csv.json`: runs, options and versions that made it.

    Args:
        columns: of the table; the first names the image, `error` says what is wrong with it.
        made_by: what decides the rows; JSON values. A table made by other values is not resumed.
        path: of the CSV file; None keeps the rows in memory.
    """

    def __init__(self, columns: Sequence[str], made_by: Mapping[str, Any], path: Path | None) -> None:
        self._columns, self._made_by, self._path = tuple(columns), dict(made_by), path
        self._rows: dict[str, dict[str, Any]] = {}
        self._written = time.monotonic()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows so far; an empty cell is None."""
        return list(self._rows.values())

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Rows of images that could not be used."""
        return [row for row in self._rows.values() if row["error"]]

    def resume(self) -> None:
        """Read the rows of the file that have no error.

        Raises:
            RunError: the table was made by other runs or options, or is damaged.
        """
        if self._path is None:
            raise RunError("--resume: there is no table to resume.", cure="Add --output TABLE.csv")
        if not self._path.is_file():
            return
        about = self._about(self._path)
        if not about.is_file() or read_json(about) != self._made_by:
            raise RunError(
                f"{self._path}: was made by other runs or with other options.",
                cure=f"Give another --output, or see {about} for the runs and options that made it.",
                path=self._path,
            )
        try:
            table = tables.read(self._path)
        except CohortError as error:
            raise RunError(
                f"{error.message}", cure=f"Remove {self._path} to start again.", path=self._path
            ) from None
        if table.columns != self._columns:
            raise RunError(
                f"{self._path}: has other columns.",
                cure=f"Remove {self._path} to start again.",
                path=self._path,
            )
        for row in table.rows:
            if not row["error"]:
                try:
                    values = {name: self._value(name, cell) for name, cell in row.items()}
                except ValueError as error:
                    raise RunError(
                        f"{self._path}: is damaged: {error}.",
                        cure=f"Remove {self._path} to start again.",
                        path=self._path,
                    ) from None
                self._rows[str(row["image"])] = values

    def __contains__(self, image: str) -> bool:
        """Whether an image has its row already."""
        return image in self._rows

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows; the file follows every few seconds."""
        for row in rows:
            self._rows[row["image"]] = dict(row)
        if time.monotonic() - self._written > _WRITE_EVERY_S:
            self.write()

    def write(self) -> None:
        """Write the file, where there is one."""
        if self._path is None or not self._rows:
            return
        text = io.StringIO()
        table = csv.DictWriter(text, self._columns, lineterminator="\n")
        table.writeheader()
        table.writerows(self._rows.values())
        write_json(self._about(self._path), self._made_by)
        write_text(self._path, text.getvalue())
        self._written = time.monotonic()

    def _value(self, column: str, cell: str | None) -> Any:
        """A cell as it was before it was text. A class may be called 1, and its name is not a number."""
        words = ("image", "segmentation", "error")
        named = column == "predicted" and any(name.startswith("p_") for name in self._columns)
        if cell is None or column in words or named:
            return cell
        try:
            return float(cell)
        except ValueError:
            raise ValueError(f"{column} {cell!r} is not a number") from None

    @staticmethod
    def _about(path: Path) -> Path:
        return path.with_name(path.name + ".json")
