"""List images named in a CSV or TSV file: one row per image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainer.data.images.findings import bad
from trainer.data.images.reading import stem, suffix
from trainer.data.sources import source_maps, tables
from trainer.data.sources.listing import (
    IMAGE_COLUMNS,
    MAP_COLUMNS,
    SESSION_COLUMNS,
    SUBJECT_COLUMNS,
    Listing,
    SourceFile,
    SourceImage,
    known,
    person,
)
from trainer.data.sources.map_request import MapRequest
from trainer.errors import CohortError


def find(path: Path, label: str, contrasts: Sequence[str] = (), maps: MapRequest | None = None) -> Listing:
    """List the images of a table, in its order; relative paths start at the table's folder.

    Where several contrasts are asked for, the first is the column `image` or one of its name, each other one
    the column of its name; label maps are the column `map`. With maps nothing needs a label.

    Raises:
        CohortError: the file is an image, or a column is missing.
    """
    if suffix(path):
        raise CohortError(
            f"{path}: is a single image.", cure="Give the folder it lies in, or a table of images."
        )
    table = tables.read(path)
    image_column = table.need((*IMAGE_COLUMNS, *contrasts[:1]), "the image")
    label_column = table.need([label], "the label") if maps is None else table.find([label])
    further = {name: table.need([name], f"the {name} image") for name in contrasts[1:]}
    map_column = table.need(MAP_COLUMNS, "the label map") if maps is not None else None
    subject_column, session_column = table.find(SUBJECT_COLUMNS), table.find(SESSION_COLUMNS)
    images: list[SourceImage] = []
    map_files: list[SourceFile | None] = []
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
            map_files.append(None)
            continue
        said = known(person(row, table, label_column))
        said["subject"] = (row[subject_column] if subject_column else None) or stem(Path(name))
        said["session"] = row[session_column] if session_column else None
        first = _file("", name, path.parent)
        image = replace(SourceImage(path=first.path, source=first.source, subject=""), **said)
        others = [(contrast, row[column]) for contrast, column in further.items()]
        images.append(_with_contrasts(image, others, path))
        there = row[map_column] if map_column is not None else None
        map_files.append(_file("", there, path.parent) if there is not None else None)
    recipe = None
    listed: Sequence[SourceImage] = images
    if maps is not None:
        listed, recipe = source_maps.of_table(images, map_files, maps, path.name)
    return Listing("table", path.name, label, tuple(listed), maps=recipe)


def _with_contrasts(image: SourceImage, others: Sequence[tuple[str, str | None]], table: Path) -> SourceImage:
    files = tuple(_file(contrast, name, table.parent) for contrast, name in others if name is not None)
    cure = "Fill it in, remove the row, or import fewer --contrasts."
    missing = tuple(
        bad("missing-contrast", f"has no {contrast} image in {table.name}.", cure)
        for contrast, name in others
        if name is None
    )
    return replace(image, contrasts=files, findings=(*image.findings, *missing))


def _file(what: str, name: str, root: Path) -> SourceFile:
    full = root / Path(name).expanduser()
    return SourceFile(what, full, _relative(full, root, name))


def _relative(full: Path, root: Path, name: str) -> str:
    """Return the path as the table has it, below the table's folder where it lies there."""
    return full.relative_to(root).as_posix() if full.is_relative_to(root) else name
