"""Images of a cohort, before any is opened."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.data.images.findings import Finding, warning
from trainer.data.images.recipe import MapRecipe
from trainer.data.sources.tables import Row, TextTable

IMAGE_COLUMNS = ("image", "path", "file", "filename")
MAP_COLUMNS = ("map",)
AGE_COLUMNS = ("age", "age_years")
SEX_COLUMNS = ("sex", "gender")
SITE_COLUMNS = ("site", "centre", "center", "scanner")


@dataclass(frozen=True)
class SourceFile:
    """A further file of an image: another contrast, or a map.

    Attributes:
        name: of the contrast or of the map's class; empty for a map of label numbers.
        path: the file.
        source: its path relative to the source folder, with forward slashes.
    """

    name: str
    path: Path
    source: str


@dataclass(frozen=True)
class SourceImage:
    """One image of a cohort, not yet opened.

    Attributes:
        path: the file.
        source: its path relative to the source folder, with forward slashes.
        subject: who was scanned, without BIDS' `sub-`.
        tissue_maps: (tissue, file) of its probability maps, where the source has them.
        contrasts: its images of further contrasts, in the order asked for.
        maps: the files its label map is made of: one for each class, or one of label numbers.
        findings: what is wrong with its entry.
    """

    path: Path
    source: str
    subject: str
    session: str | None = None
    label: str | None = None
    age: float | None = None
    sex: str | None = None
    site: str | None = None
    tissue_maps: tuple[tuple[str, Path], ...] = ()
    contrasts: tuple[SourceFile, ...] = ()
    maps: tuple[SourceFile, ...] = ()
    findings: tuple[Finding, ...] = ()

    def found(self, *findings: Finding) -> SourceImage:
        """Return it with further findings."""
        return replace(self, findings=(*self.findings, *findings))

    @property
    def further(self) -> tuple[SourceFile, ...]:
        """Return every file but the image itself that determines what is stored."""
        return (*self.contrasts, *self.maps)

    @property
    def identity(self) -> list[Any]:
        """Return what the shard set records of the image besides its content, as JSON values."""
        tissues = [tissue for tissue, _ in self.tissue_maps]
        said = [self.source, self.subject, self.session, self.label, self.age, self.sex, self.site, tissues]
        return [*said, [file.source for file in self.further]] if self.further else said


@dataclass(frozen=True)
class SourceListing:
    """All images of a source, in the order in which they are stored.

    Attributes:
        kind: which layout was found, a name of `sources.KINDS`.
        name: of the source folder or table, without the folders above it.
        findings: what is remarkable about the cohort (warnings).
        maps: what the label maps are made of, where they were asked for.
        contrast: that names of files were chosen by; None: they say none.
        has_tables: whether its people are described in tables.
        left_out: images that the choice of visits and diagnoses leaves out, by the reason.
        label_changes: of each subject whose sessions have different labels, these as the tables have them.
    """

    kind: str
    name: str
    label_name: str
    images: tuple[SourceImage, ...]
    findings: tuple[Finding, ...] = ()
    maps: MapRecipe | None = None
    contrast: str | None = None
    has_tables: bool = True
    left_out: dict[str, list[str]] = field(default_factory=dict)
    label_changes: dict[str, list[str]] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of every image's identity: it changes with any image or its metadata."""
        return hashlib.sha256(json.dumps([image.identity for image in self.images]).encode()).hexdigest()


def person(row: Row, table: TextTable, label: str | None) -> dict[str, Any]:
    """Return the data of a person in a row: label, age, sex, site; a finding where the age is no number."""

    def cell(names: Sequence[str]) -> str | None:
        column = table.find(names)
        return row[column] if column is not None else None

    age, findings = age_of(cell(AGE_COLUMNS), table.path.name)
    return {
        "label": row[label] if label is not None else None,
        "age": age,
        "sex": cell(SEX_COLUMNS),
        "site": cell(SITE_COLUMNS),
        "findings": findings,
    }


def person_in_tables(tables: Sequence[tuple[TextTable, Row | None]], label: str) -> dict[str, Any]:
    """Return the data of a person as `person` does, each from the first table that has its column.

    A table that has the column decides, also where the person's cell is empty or the row is missing: the
    value of another table would be that of another session.
    """
    data: dict[str, Any] = {"label": None, "age": None, "sex": None, "site": None, "findings": ()}
    for table, row in reversed(tables):
        columns = {"label": [label], "age": AGE_COLUMNS, "sex": SEX_COLUMNS, "site": SITE_COLUMNS}
        fields = [name for name, names in columns.items() if table.find(names) is not None]
        own = person(row, table, table.find([label])) if row is not None else {}
        data |= {name: own.get(name) for name in fields}
        if "age" in fields:
            data["findings"] = own.get("findings", ())
    return data


def known(said: dict[str, Any]) -> dict[str, Any]:
    """Return the known values: without None and empty findings, so that no table overwrites another's."""
    return {name: value for name, value in said.items() if value not in (None, ())}


def age_of(text: str | None, where: str) -> tuple[float | None, tuple[Finding, ...]]:
    """Return the age in a cell of a table, in years; None, and a finding, where it is no such number."""
    if text is None:
        return None, ()
    try:
        age = float(text.replace(",", "."))
    except ValueError:
        age = float("nan")
    if not 0 <= age <= 130:
        return None, (
            warning(
                "age",
                f"its age {text!r} in {where} is not a number of years, and is not used.",
                "Correct the table.",
            ),
        )
    return age, ()
