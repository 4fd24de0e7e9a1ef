"""Subjects and sessions of series: who is who, under labels that no name is in."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainer import atomic
from trainer.data.dicom.choosing import SeriesVerdict, choose
from trainer.data.dicom.series import Series
from trainer.data.sources import tables
from trainer.data.sources.joins import id_key
from trainer.errors import CohortError

SubjectBy = Literal["id", "folder"]
_TABLE_CURE = (
    "Give --subject-table TABLE, with the columns id and subject; docs/how-to/dicom.md shows one. If each "
    "person has a folder of a harmless name, --subject folder may do."
)


@dataclass(frozen=True)
class DicomSession:
    """A study of a subject.

    Attributes:
        subject: label, without `sub-`: letters and digits.
        number: of the study, from 1, in the order of their days.
        id: of the patient, or the folder, by which the subject is told.
        verdicts: of its series.
    """

    subject: str
    number: int
    id: str
    verdicts: tuple[SeriesVerdict, ...]

    @property
    def taken(self) -> Series | None:
        """Return the series that is its T1-weighted image."""
        return next((verdict.series for verdict in self.verdicts if verdict.is_taken), None)

    @property
    def name(self) -> str:
        """Return its name in BIDS, such as `sub-S001_ses-02`."""
        return f"sub-{self.subject}_ses-{self.number:02d}"

    @property
    def stem(self) -> str:
        """Return folder and name of its image, without what ends it."""
        return f"sub-{self.subject}/ses-{self.number:02d}/anat/{self.name}_T1w"


@dataclass(frozen=True)
class DicomCohort:
    """All sessions, and what should be looked at (a text for each)."""

    sessions: tuple[DicomSession, ...]
    doubts: tuple[str, ...]


def cohort(
    listed: Sequence[Series],
    root: Path,
    *,
    by: SubjectBy = "id",
    table: Path | None = None,
    patterns: Sequence[str] = (),
) -> DicomCohort:
    """Return the sessions of all subjects, in the order of their labels and days.

    Args:
        listed: all series.
        root: folder of them.
        by: what tells subjects apart: the patient's id, or the folder in `root`.
        table: from these ids or folders (`id`) to subjects (`subject`).
        patterns: see `choose`.

    Raises:
        CohortError: who a series is of is not known, or a label would have a name in it; two people would
            have one label, or one has two sexes or days of birth; a table without one of them.
    """
    ids = [one.patient.id if by == "id" else _folder(one, root) for one in listed]
    labels = _labels(ids, by, table)
    _check_harmless(listed, [labels[name] for name in ids], ids, is_stated=table is not None)
    _check_distinct(labels, is_stated=table is not None)
    _check_people(listed, [labels[name] for name in ids])
    studies: dict[tuple[str, str], list[Series]] = {}
    id_of: dict[str, str] = {}
    for name, one in zip(ids, listed, strict=True):
        studies.setdefault((labels[name], one.key.study), []).append(one)
        id_of.setdefault(one.key.study, name)
    by_subject: dict[str, list[list[Series]]] = {}
    for (subject, _), study in sorted(studies.items()):
        by_subject.setdefault(subject, []).append(study)
    sessions = tuple(
        DicomSession(subject, number, id_of[study[0].key.study], tuple(choose(study, patterns)))
        for subject, of_subject in by_subject.items()
        for number, study in enumerate(sorted(of_subject, key=_when), 1)
    )
    return DicomCohort(sessions, tuple(_doubts(listed, root, by, by_subject)))


def write_key(sessions: Sequence[DicomSession], path: Path) -> None:
    """Write who is who: subject, session, id and day of the scan, in a table that only its owner may read."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("subject", "session", "id", "scanned"))
    for session in sessions:
        day = min(verdict.series.patient.scanned for verdict in session.verdicts)[0]
        table.writerow((session.subject, f"{session.number:02d}", session.id, day))
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_private(path, text.getvalue())


def _folder(series: Series, root: Path) -> str:
    place = Path(series.files[0].path).relative_to(root)
    return place.parts[0] if len(place.parts) > 1 else ""


def _when(study: Sequence[Series]) -> tuple[tuple[str, str], str]:
    return min(one.patient.scanned for one in study), study[0].key.study


def _labels(ids: Sequence[str], by: SubjectBy, table: Path | None) -> dict[str, str]:
    """Return the label of each id: letters and digits, which is all that BIDS takes; no message names one."""
    different = sorted(set(ids))
    stated = {} if table is None else _stated(table)
    if table is not None and (without := [name for name in different if name not in stated]):
        raise CohortError(
            f"{table}: has no row of {len(without)} of {len(different)} ids.",
            cure="Add them, or leave their files out; ids are compared letter by letter.",
        )
    if table is None and "" in different:
        what = "no patient's id" if by == "id" else "no folder of their own in SOURCE"
        raise CohortError(f"{ids.count('')} of {len(ids)} series have {what}.", cure=_TABLE_CURE)
    labels = {name: re.sub(r"[^A-Za-z0-9]", "", stated.get(name, name)) for name in different}
    if "" in labels.values():
        where = "--subject-table" if table is not None else "ids"
        raise CohortError(f"{where}: a subject has neither letters nor digits.", cure=_TABLE_CURE)
    return labels


def _check_distinct(labels: dict[str, str], *, is_stated: bool) -> None:
    """Raise where two labels would be one: for import, which compares letters and numbers, or for BIDS."""
    first: dict[object, str] = {}
    for label in dict.fromkeys(labels.values()):
        other = first.setdefault(id_key(label), label)
        if other != label:
            raise CohortError(
                f"the subjects {other} and {label} would be one for `cingulum import`: S1 and S01 are.",
                cure=_TABLE_CURE,
            )
    if not is_stated and len(set(labels.values())) < len(labels):
        raise CohortError(
            "two ids are one in letters and digits, of which names of BIDS consist.", cure=_TABLE_CURE
        )


def _stated(path: Path) -> dict[str, str]:
    table = tables.read(path)
    of_id, of_subject = table.need(("id",), "the patient"), table.need(("subject",), "the subject")
    stated: dict[str, str] = {}
    for line, row in zip(table.lines, table.rows, strict=True):
        name, label = row[of_id] or "", row[of_subject] or ""
        if stated.setdefault(name, label) != label:
            raise CohortError(
                f"{path}: the id on line {line} stands there twice, with two subjects.",
                cure="Keep one row for each id.",
            )
    return stated


def _check_harmless(
    listed: Sequence[Series], labels: Sequence[str], ids: Sequence[str], *, is_stated: bool
) -> None:
    """Raise where a label has a name or a day of birth in it, or may have."""
    for series, label, name in zip(listed, labels, ids, strict=True):
        texts = (label,) if is_stated else (label, name)
        if any(map(series.patient.is_named_in, texts)):
            raise CohortError(
                "names or days of birth are in what subjects would be called by.",
                cure=f"Give each person a label of no meaning. {_TABLE_CURE}",
            )
        if not is_stated and not re.search(r"\d", label):
            raise CohortError(
                "an id or folder that a subject would be called by has no digit, and may be a name.",
                cure=f"Give each person a label of no meaning. {_TABLE_CURE}",
            )


def _check_people(listed: Sequence[Series], labels: Sequence[str]) -> None:
    """Raise where one label is of several people."""
    people: dict[tuple[str, str], str] = {}
    for label, series in zip(labels, listed, strict=True):
        for what, value in (("sexes", series.patient.sex), ("days of birth", series.patient.born)):
            if value and people.setdefault((label, what), value) != value:
                raise CohortError(
                    f"subject {label} has two {what}.",
                    cure=f"If these are several people: {_TABLE_CURE} Else correct the headers.",
                )


def _doubts(
    listed: Sequence[Series], root: Path, by: SubjectBy, by_subject: dict[str, list[list[Series]]]
) -> list[str]:
    doubts = []
    folders = {_folder(one, root) for one in listed}
    if by == "id" and len(by_subject) == 1 and len(folders) > 1:
        doubts.append(
            f"all files have one patient's id, and are in {len(folders)} folders: if these are several "
            "people, give --subject folder"
        )
    for subject, studies in by_subject.items():
        named = [one.patient.names for study in studies for one in study if one.patient.names]
        if any(not (names & named[0]) for names in named):
            doubts.append(f"subject {subject} has two names: look whether they are one person")
        if len(studies) > 1 and not all(one.patient.scanned[0] for study in studies for one in study):
            doubts.append(f"subject {subject} has studies without a day, whose order is not known")
    return doubts
