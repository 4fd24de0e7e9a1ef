"""List images in a folder that is not BIDS: labels from a table, or from the sub-folders they lie in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.data.images.reading import SUFFIXES, files_of, stem, suffix
from trainer.data.sources import foreign_files
from trainer.data.sources.listing import (
    IMAGE_COLUMNS,
    SESSION_COLUMNS,
    SUBJECT_COLUMNS,
    Listing,
    SourceImage,
    known,
    person,
)
from trainer.data.sources.tables import Table
from trainer.errors import CohortError


def find(root: Path, label: str, labels: Table | None) -> Listing:
    """List all images below a folder.

    With a table, rows are matched by image (path relative to the folder, or file name) or by subject, which
    is the file name without suffix. Without one, `LABEL/SUBJECT.nii.gz`, `LABEL/SUBJECT/FILE` and
    `LABEL/SUBJECT/SESSION/FILE` give the label.

    Raises:
        CohortError: no images, neither table nor sub-folders, a table without the columns needed.
    """
    paths, foreign = _paths(root), foreign_files.unread_formats([root], root)
    if not paths:
        said = [f"{finding.message} {finding.cure}" for finding in foreign]
        cure = " ".join(said) or f"Known suffixes: {', '.join(SUFFIXES)}."
        raise CohortError(f"{root}: holds no images.", cure=cure)
    if labels is not None:
        images = _from_table(root, paths, label, labels)
    else:
        images = [_from_folders(root, path) for path in paths]
        if all(image.label is None for image in images):
            cure = (
                f"Give a table with --labels FILE (columns image or subject, and {label}), "
                "or sort the images into a sub-folder per label."
            )
            raise CohortError(f"{root}: the labels of its images are unknown.", cure=cure)
    return Listing("folder", root.resolve().name, label, tuple(images), tuple(foreign))


def _paths(root: Path) -> list[Path]:
    found: dict[Path, None] = {}
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        if suffix(path) and not path.is_dir() and not any(part.startswith(".") for part in parts):
            # A pair is one image, named by its data file.
            found[files_of(path)[-1]] = None
    return sorted(found, key=lambda path: path.as_posix())


def _from_folders(root: Path, path: Path) -> SourceImage:
    *folders, _ = path.relative_to(root).parts
    return SourceImage(
        path=path,
        source=path.relative_to(root).as_posix(),
        subject=folders[1] if len(folders) > 1 else stem(path),
        session="/".join(folders[2:]) or None,
        label=folders[0] if folders else None,
    )


def _from_table(root: Path, paths: list[Path], label: str, table: Table) -> list[SourceImage]:
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
