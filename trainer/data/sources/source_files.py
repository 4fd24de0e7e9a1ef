"""List images outside BIDS: of a folder, with labels from a table or sub-folders, or of a table of images."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from trainer.data.images.findings import Finding, bad, warning
from trainer.data.images.reading import SUFFIXES, files_of, stem, suffix
from trainer.data.sources import foreign_files, source_maps, tables
from trainer.data.sources.file_names import first_three
from trainer.data.sources.joins import (
    SESSION_COLUMNS,
    SUBJECT_COLUMNS,
    RowsById,
    id_key,
    lines_without_id,
    not_joined,
)
from trainer.data.sources.labels import missing_label
from trainer.data.sources.listing import (
    IMAGE_COLUMNS,
    MAP_COLUMNS,
    SourceFile,
    SourceImage,
    SourceListing,
    known,
    person,
)
from trainer.data.sources.source_kind import SourceKind, SourceRequest
from trainer.data.sources.tables import Row, TextTable
from trainer.errors import CohortError


def in_folder(root: Path, request: SourceRequest) -> SourceListing:
    """List all images below a folder.

    With a table, rows are matched by image (path relative to the folder, or file name) or by subject, which
    is the file name without suffix. Without one, `LABEL/SUBJECT.nii.gz`, `LABEL/SUBJECT/FILE` and
    `LABEL/SUBJECT/SESSION/FILE` give the label.

    Raises:
        CohortError: no images, neither table nor sub-folders, a table without the columns needed.
    """
    label, labels = request.label, request.table
    paths, findings = image_files(root), foreign_files.unread_formats([root], root)
    if not paths:
        formats = [f"{finding.message} {finding.cure}" for finding in findings]
        cure = " ".join(formats) or f"Known suffixes: {', '.join(SUFFIXES)}."
        raise CohortError(f"{root}: holds no images.", cure=cure)
    if labels is not None:
        images, unseen = _labelled_by_table(root, paths, label, labels)
        findings += unseen
    else:
        images = [_labelled_by_folders(root, path) for path in paths]
        if all(image.label is None for image in images):
            cure = (
                f"Give a table with --labels FILE (columns image or subject, and {label}), "
                "or sort the images into a sub-folder per label."
            )
            raise CohortError(f"{root}: the labels of its images are unknown.", cure=cure)
    name = root.resolve().name
    return SourceListing("folder", name, label, tuple(images), tuple(findings), has_tables=labels is not None)


def image_files(root: Path) -> list[Path]:
    """Return all images below a folder, a pair by its data file, in the order of their paths."""
    paths: dict[Path, None] = {}
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        if suffix(path) and not path.is_dir() and not any(part.startswith(".") for part in parts):
            # A pair is one image, named by its data file.
            paths[files_of(path)[-1]] = None
    return sorted(paths, key=lambda path: path.as_posix())


def _labelled_by_folders(root: Path, path: Path) -> SourceImage:
    *folders, _ = path.relative_to(root).parts
    return SourceImage(
        path=path,
        source=path.relative_to(root).as_posix(),
        subject=folders[1] if len(folders) > 1 else stem(path),
        session="/".join(folders[2:]) or None,
        label=folders[0] if folders else None,
    )


def _labelled_by_table(
    root: Path, paths: Sequence[Path], label: str, table: TextTable
) -> tuple[list[SourceImage], list[Finding]]:
    """Return the images with the data of their rows, and findings on rows without an image.

    Raises:
        CohortError: a column is missing, two rows have one id, or no row is that of an image.
    """
    label_column, image_column = table.need([label], "the label"), table.find(IMAGE_COLUMNS)
    id_column = image_column or table.need(SUBJECT_COLUMNS, "the subject (or 'image' for the file)")
    rows, findings = _rows_by_name(table, id_column, by_image=image_column is not None)
    ids = [str(row[id_column]) for row in rows.values()]
    images: list[SourceImage] = []
    owners: dict[int, list[int]] = {}  # numbers of the images of each row, by its identity
    for number, path in enumerate(paths):
        image = SourceImage(path=path, source=path.relative_to(root).as_posix(), subject=stem(path))
        keys = [id_key(image.subject)] if image_column is None else _path_keys(path, image.source)
        own = {id(row): row for key in keys if (row := rows.get(key)) is not None}
        for row in own.values():
            owners.setdefault(id(row), []).append(number)
            image = _with_row(image, row, table, label_column)
        if len(own) > 1:
            image = image.found(_ambiguous(f"has several rows in {table.path.name}."))
        if not own:
            why = f"{image.source} is not in {table.path.name}, whose ids are {first_three(ids)}"
            image = image.found(missing_label(label, why))
        images.append(image)
    if not owners:
        raise not_joined(str(root), (i.source if image_column else i.subject for i in images), table, ids)
    for numbers in owners.values():
        if len(numbers) > 1:
            names = first_three(images[number].source for number in numbers)
            message = f"has a row in {table.path.name} that may be that of several images: {names}."
            for number in numbers:
                images[number] = images[number].found(_ambiguous(message))
    left = [str(row[id_column]) for row in rows.values() if id(row) not in owners]
    if left:
        message = f"{len(left)} rows of {table.path.name} have no image: {first_three(left)}."
        findings.append(warning("no-image", message, "Ignore this if it is intended."))
    return images, findings


def _rows_by_name(
    table: TextTable, column: str, *, by_image: bool
) -> tuple[dict[object, Row], list[Finding]]:
    """Return the rows by path of an image or id of a subject, and a warning for rows without one.

    Raises:
        CohortError: two rows have one id.
    """
    if not by_image:
        by_id = RowsById.of_table(table, [column])
        rows: dict[object, Row] = {key[0]: row for key, row in by_id.by_id.items()}
        return rows, lines_without_id(table, by_id.without_id, column)
    rows, without = {}, []
    for line, row in zip(table.lines, table.rows, strict=True):
        cell = row[column]
        if cell is None:
            without.append(line)
        elif rows.setdefault(_path_key(cell), row) is not row:
            raise CohortError(
                f"{table.path}: has {cell!r} twice, again on line {line}.",
                cure="Keep one row for each image.",
            )
    return rows, lines_without_id(table, without, column)


def _path_key(text: str) -> str:
    """Return a path as file names spell it: `./` and backslashes of other systems do not count."""
    return PurePosixPath(unicodedata.normalize("NFC", text.replace("\\", "/"))).as_posix()


def _path_keys(path: Path, source: str) -> list[str]:
    """Return the names by which a table may call an image."""
    return [_path_key(text) for text in (source, path.name, stem(path), stem(path).removeprefix("sub-"))]


def _with_row(image: SourceImage, row: Row, table: TextTable, label: str) -> SourceImage:
    subject, session = table.find(SUBJECT_COLUMNS), table.find(SESSION_COLUMNS)
    data = person(row, table, label)
    data["session"] = row[session] if session else None
    data["subject"] = row[subject] if subject else None
    no_subject = [_no_subject(table)] if subject and data["subject"] is None else []
    return replace(image, **known(data)).found(*no_subject)


def _no_subject(table: TextTable) -> Finding:
    message = f"its row in {table.path.name} names no subject, but the table has a column for it."
    cure = "Fill it in: without it, two images of one person may be in two splits."
    return bad("missing-subject", message, cure)


def _ambiguous(message: str) -> Finding:
    return bad("ambiguous-row", message, "Name each image by its path relative to the folder, in one row.")


def in_table(path: Path, request: SourceRequest) -> SourceListing:
    """List the images of a table, in its order; relative paths start at the table's folder.

    Where several contrasts are asked for, the first is the column `image` or one of its name, each other one
    the column of its name; label maps are the column `map`. With maps nothing needs a label.

    Raises:
        CohortError: the file is an image, or a column is missing.
    """
    label, contrasts, maps = request.label, request.contrasts, request.maps
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
    for number, row in zip(table.lines, table.rows, strict=True):
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
        details = known(person(row, table, label_column))
        subject = row[subject_column] if subject_column else stem(Path(name))
        details["subject"] = subject or stem(Path(name))
        if subject is None:
            details["findings"] = (*details.get("findings", ()), _no_subject(table))
        details["session"] = row[session_column] if session_column else None
        first = _file("", name, path.parent)
        image = replace(SourceImage(path=first.path, source=first.source, subject=""), **details)
        others = [(contrast, row[column]) for contrast, column in further.items()]
        images.append(_with_contrasts(image, others, path))
        there = row[map_column] if map_column is not None else None
        map_files.append(_file("", there, path.parent) if there is not None else None)
    recipe = None
    listed: Sequence[SourceImage] = images
    if maps is not None:
        listed, recipe = source_maps.of_table(images, map_files, maps, path.name)
    return SourceListing("table", path.name, label, tuple(listed), maps=recipe)


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


TABLE = SourceKind("table", Path.is_file, in_table, frozenset({"contrasts", "maps"}))
FOLDER = SourceKind("folder", lambda path: True, in_folder, frozenset({"table"}))
