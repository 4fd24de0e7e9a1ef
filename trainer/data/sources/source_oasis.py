"""List the images of OASIS-1 (oasis-brains.org): OAS1_0001_MR1/PROCESSED/MPRAGE/T88_111/, and its table.

Of each session the image is taken that its authors moved to the atlas of Talairach and cut the brain out of.
The table has age, sex and the Clinical Dementia Rating (CDR) of each session.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trainer.data.images.findings import Finding, bad, warning
from trainer.data.images.reading import suffix
from trainer.data.sources.file_names import first_three
from trainer.data.sources.joins import RowsById, as_number, id_key, lines_without_id, not_joined
from trainer.data.sources.listing import AGE_COLUMNS, SEX_COLUMNS, SourceImage, SourceListing, age_of
from trainer.data.sources.source_kind import SourceKind, SourceRequest
from trainer.data.sources.tables import Row, TextTable
from trainer.errors import CohortError

_SESSION = re.compile(r"(OAS1_\d+)_(MR\d+)")
# As its discs are unpacked: all in one folder, or one folder for each disc.
_PLACES = ("OAS1_*_MR*", "*disc*/OAS1_*_MR*")
_IMAGES = "PROCESSED/MPRAGE/T88_111/*_t88_masked_gfc.*"
_LABEL = "diagnosis"
_HOW_TO = "docs/how-to/oasis.md shows how to get it."


def is_oasis(folder: Path) -> bool:
    """Return whether a folder holds OAS1_0001_MR1/ with PROCESSED/ or RAW/, or disc1/ with such folders."""
    return folder.is_dir() and next(_sessions(folder), None) is not None


def find(root: Path, request: SourceRequest) -> SourceListing:
    """List the image of each session in the atlas of Talairach, without what is outside the brain.

    The label `diagnosis` is NC where the CDR is 0, and AD where it is more; others are `sex`, or a column of
    the table. Who has no CDR has no diagnosis.

    Raises:
        CohortError: no table, none of its ids is that of a session, no such column; a contrast other than
            T1w; no images.
    """
    if request.table is None:
        raise CohortError(
            f"{root}: age, sex and CDR of its subjects are unknown: they are in OASIS' table.",
            cure=f"Save that as CSV, and give it with --labels FILE. {_HOW_TO}",
        )
    if request.contrast != "T1w":
        raise CohortError(
            f"{root}: has no images of the contrast {request.contrast!r}.", cure="OASIS-1 has T1w alone."
        )
    people = _SessionTable(request.table, request.label)
    images = [
        people.described(SourceImage(path, path.relative_to(root).as_posix(), subject, session))
        for subject, session, folder in _sessions(root)
        for path in sorted(folder.glob(_IMAGES))
        if suffix(path) in (".img", ".nii", ".nii.gz")
    ]
    if not images:
        raise CohortError(
            f"{root}: has no image such as OAS1_0001_MR1/PROCESSED/MPRAGE/T88_111/"
            "OAS1_0001_MR1_mpr_n4_anon_111_t88_masked_gfc.img.",
            cure="Keep the folders of its discs as they are unpacked.",
        )
    images.sort(key=lambda image: image.source)
    name, findings = root.resolve().name, people.findings(root, images)
    return SourceListing("oasis", name, request.label, tuple(images), findings, contrast="T1w")


def _sessions(root: Path) -> Iterator[tuple[str, str, Path]]:
    """Return subject, session and folder of each."""
    for pattern in _PLACES:
        for folder in root.glob(pattern):
            match = _SESSION.fullmatch(folder.name)
            if match is not None and any((folder / part).is_dir() for part in ("PROCESSED", "RAW")):
                yield match[1], match[2], folder


class _SessionTable:
    """What the table says of each session.

    Raises:
        CohortError: no column of ids, or of the label; two rows have one id.
    """

    def __init__(self, table: TextTable, label: str) -> None:
        self._rows = RowsById.of_table(table, (table.need(("ID",), "the session"),))
        self._table, self._is_diagnosis = table, label == _LABEL
        self._age = table.find(AGE_COLUMNS)
        self._sex = table.find(("M/F", *SEX_COLUMNS))
        of_label = {_LABEL: ("CDR",), "sex": ("M/F", *SEX_COLUMNS)}.get(label, (label,))
        self._label = table.need(of_label, "the label")

    def described(self, image: SourceImage) -> SourceImage:
        """Return the image of a session with what the table has of it."""
        name = f"{image.subject}_{image.session}"
        row = self._rows.by_id.get((id_key(name),))
        if row is None:
            message = f"its session {name} is not in {self._table.path.name}."
            return image.found(warning("no-row", message, "Give the whole table, as OASIS publishes it."))
        age, findings = age_of(row[self._age] if self._age else None, self._table.path.name)
        image = replace(image, age=age, sex=row[self._sex] if self._sex else None).found(*findings)
        return self._labelled(image, row)

    def _labelled(self, image: SourceImage, row: Row) -> SourceImage:
        cell = row[self._label]
        if not self._is_diagnosis or cell is None:
            return replace(image, label=cell)
        rating = as_number(cell)
        if rating is None or not 0 <= rating <= 3:
            message = f"has the CDR {cell!r} in {self._table.path.name}, which is no rating from 0 to 3."
            return replace(image, label=cell).found(bad("unknown-label", message, "Correct the table."))
        return replace(image, label="AD" if rating > 0 else "NC")

    def findings(self, root: Path, images: list[SourceImage]) -> tuple[Finding, ...]:
        """Return what is remarkable about the table.

        Raises:
            CohortError: none of its ids is that of a session.
        """
        names = [f"{image.subject}_{image.session}" for image in images]
        keys = {(id_key(name),) for name in names}
        if not keys & self._rows.by_id.keys():
            raise not_joined(str(root), names, self._table, self._rows.ids)
        (column,), table = self._rows.columns, self._table.path.name
        listed = lines_without_id(self._table, self._rows.without_id, column)
        without = [str(row[column]) for key, row in self._rows.by_id.items() if key not in keys]
        if without:
            message = f"{len(without)} sessions of {table} have no image: {first_three(without)}."
            listed.append(warning("no-image", message, "Ignore this if it is intended."))
        return tuple(listed)


KIND = SourceKind("oasis", is_oasis, find, frozenset({"table"}))
