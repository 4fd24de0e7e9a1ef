"""List the images of IXI (brain-development.org/ixi-dataset): IXI002-Guys-0828-T1.nii.gz, and its table.

The name has subject, hospital and contrast; age and sex are in IXI.xls, saved as CSV. Of other columns only
the one of the label is read: the table has dates of birth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from trainer.data.images.findings import Finding, bad, warning
from trainer.data.images.reading import stem, suffix
from trainer.data.sources import source_files
from trainer.data.sources.file_names import first_three
from trainer.data.sources.joins import as_number, not_joined
from trainer.data.sources.listing import SourceFile, SourceImage, SourceListing, age_of
from trainer.data.sources.source_kind import SourceKind, SourceRequest
from trainer.data.sources.tables import Row, TextTable
from trainer.errors import CohortError

_NAME = re.compile(r"(IXI(\d+))-([A-Za-z]+)-\d+-(T1|T2|PD)")
# As its archives are unpacked: all in one folder, or one folder for each archive.
_PLACES = ("IXI[0-9]*-*-*-*", "IXI-*/IXI[0-9]*-*-*-*")
_CONTRASTS = {"T1w": "T1", "T2w": "T2", "PDw": "PD"}
_SEXES = {1: "M", 2: "F"}
_HOW_TO = "docs/how-to/ixi.md shows how to get it."


class _Person(NamedTuple):
    """What the table says of a subject, and what is wrong with that."""

    data: dict[str, Any]
    findings: tuple[Finding, ...]


def is_ixi(folder: Path) -> bool:
    """Return whether a folder holds IXI002-Guys-0828-T1.nii.gz, or IXI-T1/ with such files."""
    return folder.is_dir() and next(_files(folder), None) is not None


def find(root: Path, request: SourceRequest) -> SourceListing:
    """List the images of a contrast, or those that have all of several.

    The label is `sex`, `site`, or a column of the table. With another table it is a folder of images.

    Raises:
        CohortError: no table, none of its ids is one of the images, no such column; another contrast than
            T1w, T2w and PDw.
    """
    if request.table is None:
        raise CohortError(
            f"{root}: sex and age of its subjects are unknown: they are in IXI.xls.",
            cure=f"Save that as CSV, and give it with --labels FILE. {_HOW_TO}",
        )
    if request.table.find(("IXI_ID",)) is None and not request.contrasts:
        return source_files.in_folder(root, request)  # a table of the user's own
    contrasts = request.contrasts or (request.contrast,)
    wrong = [name for name in contrasts if name not in _CONTRASTS]
    if wrong:
        raise CohortError(
            f"{root}: has no images of the contrast {wrong[0]!r}.", cure="IXI has T1w, T2w and PDw."
        )
    files: dict[int, dict[str, list[Path]]] = {}
    for path in sorted(_files(root), key=lambda path: path.name):
        number, contrast = _NAME.fullmatch(stem(path)).group(2, 4)  # type: ignore[union-attr]
        files.setdefault(int(number), {}).setdefault(contrast, []).append(path)
    people = _people(request.table, request.label)
    first = _CONTRASTS[contrasts[0]]
    images = [
        _image(root, path, request, contrasts, of_subject, people)
        for of_subject in files.values()
        for path in of_subject.get(first, ())
    ]
    if not images:
        raise CohortError(f"{root}: has no {contrasts[0]} images.", cure=f"Unpack IXI-{first}.tar there.")
    if not people.keys() & files.keys():
        raise not_joined(str(root), map(_id, files), request.table, map(_id, people))
    without = [number for number in people if number not in files]
    unseen = [_without_image(without, request.table)] if without else []
    name = root.resolve().name
    return SourceListing("ixi", name, request.label, tuple(images), tuple(unseen), contrast=contrasts[0])


def _files(folder: Path) -> Iterator[Path]:
    return (
        path
        for pattern in _PLACES
        for path in folder.glob(pattern)
        if suffix(path) and _NAME.fullmatch(stem(path)) and not path.is_dir()
    )


def _image(
    root: Path,
    path: Path,
    request: SourceRequest,
    contrasts: Sequence[str],
    others: Mapping[str, Sequence[Path]],
    people: Mapping[int, _Person],
) -> SourceImage:
    subject, number, site = _NAME.fullmatch(stem(path)).group(1, 2, 3)  # type: ignore[union-attr]
    image = SourceImage(path, path.relative_to(root).as_posix(), subject, site=site)
    person = people.get(int(number))
    if person is None:
        message = f"its subject {subject} is not in the table."
        image = image.found(warning("no-row", message, "Give the whole table, as IXI publishes it."))
    else:
        image = replace(image, **person.data).found(*person.findings)
    if request.label == "site":
        image = replace(image, label=site)
    further = []
    for name in contrasts[1:]:
        own = others.get(_CONTRASTS[name], ())
        if own:
            further.append(SourceFile(name, own[0], own[0].relative_to(root).as_posix()))
        else:
            cure = f"Unpack IXI-{_CONTRASTS[name]}.tar there, or import fewer --contrasts."
            image = image.found(bad("missing-contrast", f"has no {name} image.", cure))
    return replace(image, contrasts=tuple(further))


def _people(table: TextTable, label: str) -> dict[int, _Person]:
    """Return the data of each subject by number: some have several rows, which may not contradict each other.

    Raises:
        CohortError: no column of ids, of sex or of ages, or of the label.
    """
    of_id, of_age = table.need(("IXI_ID",), "the subject"), table.need(("AGE",), "the age")
    of_sex = table.need(("SEX_ID (1=m, 2=f)", "SEX_ID", "SEX"), "the sex")
    of_label = None if label in ("sex", "site") else table.need((label,), "the label")
    rows: dict[int, list[Row]] = {}
    for row in table.rows:
        number = as_number((row[of_id] or "").removeprefix("IXI"))
        if number is not None:
            rows.setdefault(int(number), []).append(row)
    return {
        number: _person([_cells(row, of_age, of_sex, of_label) for row in own], table)
        for number, own in rows.items()
    }


def _cells(row: Row, of_age: str, of_sex: str, of_label: str | None) -> dict[str, str | None]:
    number = as_number(row[of_sex] or "")
    sex = row[of_sex] if number is None else _SEXES.get(int(number))
    return {"age": row[of_age], "sex": sex, "label": sex if of_label is None else row[of_label]}


def _person(rows: Sequence[dict[str, str | None]], table: TextTable) -> _Person:
    values = {name: list(dict.fromkeys(filter(None, (row[name] for row in rows)))) for name in rows[0]}
    data: dict[str, Any] = {name: next(iter(known), None) for name, known in values.items()}
    twice = [f"{name} {' and '.join(known)}" for name, known in values.items() if len(known) > 1]
    data["age"], findings = age_of(data["age"], table.path.name)
    if twice:
        message = f"has several rows in {table.path.name}, with {first_three(twice)}."
        findings = (*findings, bad("ambiguous-row", message, "Keep the row that is right."))
    return _Person(data, findings)


def _id(number: int) -> str:
    return f"IXI{number:03d}"


def _without_image(numbers: Sequence[int], table: TextTable) -> Finding:
    message = f"{len(numbers)} subjects of {table.path.name} have no image: {first_three(map(_id, numbers))}."
    return warning("no-image", message, "Ignore this if it is intended.")


KIND = SourceKind("ixi", is_ixi, find, frozenset({"table", "contrasts"}))
