"""The folder of a study: rows.jsonl, one line for each measured cell, and studies.json, the studies.

A study that is stopped loses only the cell that was being measured: lines are appended and synced one by one,
and one that was cut short is dropped when the folder is opened again.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType

from trainer.atomic import write_text
from trainer.bench.scaling.cells import Cell, MeasuredCell, key
from trainer.bench.scaling.study import Study
from trainer.errors import InputError

ROWS = "rows.jsonl"
STUDIES = "studies.json"


class StudyResults:
    """The rows of a folder; as a context, the only writer of it.

    Args:
        folder: of the study; made when it is first written to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows, self.unreadable = read(folder)
        self._file: int | None = None

    def __enter__(self) -> StudyResults:
        """Open for writing.

        Raises:
            InputError: another study is being measured in this folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(self._lock)
            raise InputError(
                f"{self.folder}: another study is being measured in this folder.",
                cure="Wait for its end, or name another folder with --out.",
            ) from None
        self.rows, self.unreadable = read(self.folder)  # it may have grown until we had the lock
        self._file = os.open(self.folder / ROWS, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.truncate(self._file, (self.folder / ROWS).read_bytes().rfind(b"\n") + 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)
            os.close(self._lock)
            self._file = None

    def add(self, row: MeasuredCell) -> None:
        """Append a row; it is on the disk when this returns. Of rows of one cell, the last counts.

        Raises:
            OSError: the disk is full.
        """
        if self._file is None:
            raise RuntimeError("results are added within the context")
        line = (row.to_json() + "\n").encode()
        while line:
            line = line[os.write(self._file, line) :]
        os.fsync(self._file)
        self.rows[key(row.cell)] = row

    def missing(self, cells: tuple[Cell, ...], *, retry: bool) -> list[Cell]:
        """Return cells without a row; with `retry`, also those that failed."""
        rows = self.rows
        return [
            cell for cell in cells if key(cell) not in rows or (retry and rows[key(cell)].error is not None)
        ]

    def studies(self) -> list[Study]:
        """Return the studies of this folder, the first first; none where the file cannot be read."""
        try:
            known = json.loads((self.folder / STUDIES).read_text(encoding="utf-8"))
            return [Study.from_json(fields) for fields in known]
        except (OSError, ValueError, TypeError, AttributeError):
            return []

    def note(self, study: Study) -> list[Study]:
        """Add a study to studies.json unless it is there; returns all of them."""
        studies = self.studies()
        if study not in studies:
            studies.append(study)
            text = json.dumps([each.to_json() for each in studies], indent=1)
            write_text(self.folder / STUDIES, text + "\n")
        return studies


def read(folder: Path) -> tuple[dict[str, MeasuredCell], int]:
    """Return the rows of a folder by the key of their cell, and the number of unreadable whole lines.

    Raises:
        OSError: the file is there and cannot be read.
    """
    path = folder / ROWS
    rows: dict[str, MeasuredCell] = {}
    unreadable = 0
    if not path.exists():
        return rows, unreadable
    *lines, _ = path.read_bytes().split(b"\n")  # what follows the last newline was cut short
    for line in lines:
        try:
            row = MeasuredCell.from_json(line.decode())
        except ValueError:
            unreadable += 1
        else:
            rows[key(row.cell)] = row
    return rows, unreadable
