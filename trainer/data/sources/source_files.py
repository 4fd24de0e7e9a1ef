"""List images outside BIDS: of a folder, with labels from a table or sub-folders, or of a table of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.data.images.findings import bad
from trainer.data.images.reading import SUFFIXES, files_of, stem, suffix
from trainer.data.sources import foreign_files, source_maps, tables
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
from trainer.data.sources.tables import Table
from trainer.errors import CohortError


def in_folder(root: Path, label: str, labels: Table | None) -> Listing:
    """List all images below a folder.

    With a table, rows are matched by image (path relative to the folder, or file name) or by subject, which
    is the file name without suffix. Without one, `LABEL/SUBJECT.nii.gz`, `LABEL/SUBJECT/FILE` and
    `LABEL/SUBJECT/SESSION/FILE` give the label.

    Raises:
        CohortError: no images, neither table nor sub-folders, a table without the columns needed.
    """
    paths, foreign = _image_files(root), foreign_files.unread_formats([root], root)
    if not paths:
        said = [f"{finding.message} {finding.cure}" for finding in foreign]
        cure = " ".join(said) or f"Known suffixes: {', '.join(SUFFIXES)}."
        raise CohortError(f"{root}: holds no images.", cure=cure)
    if labels is not None:
        images = _labelled_by_table(root, paths, label, labels)
    else:
        images = [_labelled_by_folders(root, path) for path in paths]
        if all(image.label is None for image in images):
            cure = (
                f"Give a table with --labels FILE (columns image or subject, and {label}), "
                "or sort the images into a sub-folder per label."
            )
            raise CohortError(f"{root}: the labels of its images are unknown.", cure=cure)
    return Listing("folder", root.resolve().name, label, tuple(images), tuple(foreign))


def _image_files(root: Path) -> list[Path]:
    found: dict[Path, None] = {}
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        if suffix(path) and not path.is_dir() and not any(part.startswith(".") for part in parts):
            # A pair is one image, named by its data file.
            found[files_of(path)[-1]] = None
    return sorted(found, key=lambda path: path.as_posix())


def _labelled_by_folders(root: Path, path: Path) -> SourceImage:
    *folders, _ = path.relative_to(root).parts
    return SourceImage(
        path=path,
        source=path.relative_to(root).as_posix(),
        subject=folders[1] if len(folders) > 1 else stem(path),
        session="/".join(folders[2:]) or None,
        label=folders[0] if folders else None,
    )


def _labelled_by_table(root: Path, paths: list[Path], label: str, table: Table) -> list[SourceImage]:
    label_column = table.need([label], "the label")
    image_column, subject_column = table.find(IMAGE_COLUMNS), table.find(SUBJECT_COLUMNS)
    session_column = table.find(SESSION_COLUMNS)
    if image_column is None:
        subject_column = table.need(SUBJECT_COLUMNS, "the subject (or 'image' for the file)")
    said: dict[str, dict[str, Any]] = {}
    for row in table.rows:
        key = row[image_column] if image_column else row[str(subject_column)]
        if key is None:
            continue
        if key in said:
            raise CohortError(f"{table.path}: has {key!r} twice.", cure="Keep one row for each image.")
        entry = person(row, table, label_column)
        entry["subject"] = row[subject_column] if subject_column else None
        entry["session"] = row[session_column] if session_column else None
        said[key] = known(entry)
    images = []
    for path in paths:
        source = path.relative_to(root).as_posix()
        keys = (source, path.name, stem(path), stem(path).removeprefix("sub-"))
        entry = next((said[key] for key in keys if key in said), {})
        images.append(replace(SourceImage(path=path, source=source, subject=stem(path)), **entry))
    return images


def in_table(path: Path, label: str, contrasts: Sequence[str], maps: MapRequest | None) -> Listing:
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
