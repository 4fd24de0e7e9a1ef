"""Images named in a CSV or TSV file: one row per image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trainer.data import tables
from trainer.data.findings import bad
from trainer.data.listing import (
    IMAGE_COLUMNS,
    SESSION_COLUMNS,
    SUBJECT_COLUMNS,
    Listing,
    SourceImage,
    known,
    person,
)
from trainer.data.reading import stem, suffix
from trainer.errors import CohortError


def find(path: Path, label: str) -> Listing:
    """List the images of a table, in its order; relative paths start at the table's folder.

    Raises:
        CohortError: the file is an image, or a column is missing.
    """
    if suffix(path):
        raise CohortError(
            f"{path}: is a single image.", cure="Give the folder it lies in, or a table of images."
        )
    table = tables.read(path)
    image_column = table.need(IMAGE_COLUMNS, "the image")
    label_column = table.need([label], "the label")
    subject_column, session_column = table.find(SUBJECT_COLUMNS), table.find(SESSION_COLUMNS)
    images = []
    for number, row in enumerate(table.rows, start=2):
        name = row[image_column]
        if name is None:
            finding = bad(
                "missing-file",
                f"row {number} of {path.name} names no image.",
                "Fill it in, or remove the row.",
            )
            images.append(
                SourceImage(path.parent / "?", f"row {number}", f"row {number}", findings=(finding,))
            )
            continue
        said = known(person(row, table, label_column))
        said["subject"] = (row[subject_column] if subject_column else None) or stem(Path(name))
        said["session"] = row[session_column] if session_column else None
        full = path.parent / Path(name).expanduser()
        images.append(
            replace(SourceImage(path=full, source=_relative(full, path.parent, name), subject=""), **said)
        )
    return Listing("table", path.name, label, tuple(images))


def _relative(full: Path, root: Path, name: str) -> str:
    """The path as the table has it, below the table's folder where it lies there."""
    return full.relative_to(root).as_posix() if full.is_relative_to(root) else name
