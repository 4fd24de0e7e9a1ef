"""List images as ADNI's archive packs them: SUBJECT/DESCRIPTION/DATE/IMAGE-ID/, with the CSV."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal

from trainer.data.images.findings import Finding, bad, note, warning
from trainer.data.images.reading import stem, suffix
from trainer.data.sources import adni_diagnoses, foreign_files, source_maps
from trainer.data.sources.adni_diagnoses import GROUPS, MCI, Diagnoses
from trainer.data.sources.file_names import first_three
from trainer.data.sources.joins import id_key, not_joined
from trainer.data.sources.listing import SourceImage, SourceListing, known, person
from trainer.data.sources.source_kind import SourceKind, SourceRequest
from trainer.data.sources.tables import Row, TextTable
from trainer.errors import CohortError, ConfigError, typed

_SUBJECTS = "[0-9][0-9][0-9]_S_[0-9]*"
_ID = re.compile(r"[ID]?(\d+)(?:\.0+)?", re.IGNORECASE)
_LABEL = "diagnosis"
_HOW_TO = "docs/how-to/adni.md shows how to download it."


@dataclass(frozen=True)
class AdniRequest:
    """What to take of a download from ADNI.

    Attributes:
        diagnoses: table of diagnoses over visits, which divides MCI into sMCI and pMCI; None: groups alone.
        within: months in which MCI must become dementia to be pMCI.
        visits: the first scan of each subject, or one of each day.
    """

    diagnoses: Path | None = None
    within: int = 36
    visits: Literal["baseline", "all"] = "baseline"

    @classmethod
    def of(
        cls, diagnoses: Path | None, within: int | None, visits: Literal["baseline", "all"] | None
    ) -> AdniRequest | None:
        """Return what the options of an import ask for; None where none was given.

        Raises:
            ConfigError: months without diagnoses.
        """
        if within is not None and diagnoses is None:
            raise ConfigError(
                f"--within {within}: there are no diagnoses over visits to count months in.",
                cure="Add --diagnoses DXSUM.csv.",
            )
        if diagnoses is None and visits is None:
            return None
        return cls(diagnoses, cls.within if within is None else within, visits or cls.visits)

    @property
    def decisive(self) -> dict[str, Any]:
        """Return the parameters that determine which images are taken, as JSON values."""
        return {"visits": self.visits, **({"within": self.within} if self.diagnoses is not None else {})}


@dataclass(frozen=True)
class _Scan:
    """An image with the number of its id, and its row of the collection."""

    image: SourceImage
    number: int
    day: date | None


_LeftOut = dict[str, list[str]]
"""Images that are left out, by the reason."""


def is_adni(folder: Path) -> bool:
    """Return whether a folder holds SUBJECT/DESCRIPTION/DATE/IMAGE-ID/, with subjects such as 002_S_0295."""
    return any(path.is_dir() for path in folder.glob(f"{_SUBJECTS}/*/*/*"))


def find(root: Path, request: SourceRequest) -> SourceListing:
    """List the MRI images with their rows of the collection.

    With the label `diagnosis` they are labelled by group, and with diagnoses over visits, MCI as sMCI and
    pMCI; with another one by that column of the collection.

    Rows, dates and visits that cannot be read are left out, and counted.

    Raises:
        CohortError: no collection, no such column, an image twice in it, no row or no visit of these images,
            no image left.
        ConfigError: diagnoses, and another label.
    """
    label, collection = request.label, request.table
    adni: AdniRequest = request.adni or AdniRequest()
    if collection is None:
        raise CohortError(
            f"{root}: the groups of its images are unknown: they are in the CSV of ADNI's image collection.",
            cure=f"Download that too, and give it with --labels FILE. {_HOW_TO}",
        )
    if adni.diagnoses is not None and label != _LABEL:
        raise ConfigError(
            f"--diagnoses divides MCI into sMCI and pMCI, but --label is {label!r}.",
            cure="Leave one of them out.",
        )
    rows, odd_rows = _rows(collection)
    left_out = _LeftOut()
    scans: list[_Scan] = []
    unusable: list[SourceImage] = []
    images = _images(root)
    if not any(number in rows for number in images):
        names = [f"I{number}" for number in images]
        raise not_joined(str(root), names, collection, (f"I{number}" for number in rows))
    for number, files in images.items():
        image, *more = files
        unusable += [copy.found(_second(number, image)) for copy in more]
        if number not in rows:
            unusable.append(image.found(_no_row(number, collection)))
        elif (kind := _cell(rows[number], collection, "Modality") or "MRI") != "MRI":
            left_out.setdefault(f"modality {kind}", []).append(image.source)
        else:
            scans.append(_scan(image, number, rows[number], collection, label))
    scans = _chosen(scans, adni.visits, left_out)
    if adni.diagnoses is not None:
        diagnoses = adni_diagnoses.read(adni.diagnoses)
        odd_rows += [*diagnoses.findings, *_without_visits(root, scans, diagnoses)]
        scans = _divided(scans, diagnoses, adni.within, left_out)
    listed = sorted([*unusable, *(scan.image for scan in scans)], key=lambda image: image.source)
    reasons = [_reason(why, sources) for why, sources in left_out.items()]
    if not listed:
        said = " ".join(finding.message for finding in reasons)
        raise CohortError(f"{root}: has no image to import. {said}", cure=_HOW_TO)
    unseen = (
        *odd_rows,
        *_without_image(rows, images, collection),
        *foreign_files.unread_formats([root], root),
    )
    return SourceListing(
        "adni", root.resolve().name, label, tuple(listed), (*reasons, *unseen), left_out=left_out
    )


def _rows(collection: TextTable) -> tuple[dict[int, Row], list[Finding]]:
    """Return the row of each image by the number of its id, and a warning for rows without one.

    I45108, D45108, 45108 and 45108.0 are one id.

    Raises:
        CohortError: no row has an id, or two have the same.
    """
    column = collection.need(("Image Data ID",), "the image")
    rows: dict[int, Row] = {}
    odd = [f"other cells than the header on line {line}" for line in collection.odd_lines]
    for line, row in zip(collection.lines, collection.rows, strict=True):
        match = _ID.fullmatch(row[column] or "")
        if match is None:
            odd.append(
                f"{row[column]!r} on line {line}" if row[column] is not None else f"none on line {line}"
            )
        elif rows.setdefault(int(match[1]), row) is not row:
            raise CohortError(
                f"{collection.path}: has the image {row[column]} twice, again on line {line}.",
                cure="Keep one row for each image.",
            )
    if not odd:
        return rows, []
    cure = "Ids are like I45108 or 45108, as in the names of the folders. Correct these lines."
    count = f"{len(odd)} rows are" if len(odd) > 1 else "1 row is"
    message = (
        f"{count} left out of {collection.path.name}, without an image id in {column}: {first_three(odd)}."
    )
    if not rows:
        raise CohortError(f"{collection.path}: has no image. {message}", cure=cure)
    return rows, [warning("no-id", message, cure)]


def _images(root: Path) -> dict[int, list[SourceImage]]:
    """Return the images by the number of their id, which is the folder's name or ends the file's.

    Raises:
        CohortError: there are none, or one has no id.
    """
    images: dict[int, list[SourceImage]] = {}
    for path in sorted(root.glob(f"{_SUBJECTS}/*/*/*/*")):
        if not suffix(path) or path.name.startswith("."):
            continue
        place = path.relative_to(root)
        match = re.fullmatch(r"I(\d+)", place.parts[3]) or re.search(r"_I(\d+)$", stem(path))
        if match is None:
            raise CohortError(
                f"{path}: neither its folder nor its name has an image id such as I45108.",
                cure="Keep the folders as they were downloaded: SUBJECT/DESCRIPTION/DATE/IMAGE-ID/.",
            )
        maps, findings = source_maps.tissue_maps(root, path)
        image = SourceImage(
            path=path,
            source=place.as_posix(),
            subject=place.parts[0],
            site=place.parts[0][:3],
            tissue_maps=maps,
            findings=findings,
        )
        images.setdefault(int(match[1]), []).append(image)
    if not images:
        foreign = foreign_files.unread_formats([root], root)
        raise CohortError(
            " ".join([f"{root}: holds no NIfTI images.", *(finding.message for finding in foreign)]),
            cure="Download NIfTI, or convert DICOM in place: "
            f"find {typed(root)} -mindepth 4 -maxdepth 4 -type d -exec dcm2niix -z y -o {{}} {{}} \\;",
        )
    return images


def _scan(image: SourceImage, number: int, row: Row, collection: TextTable, label: str) -> _Scan:
    column = collection.need(("Group",) if label == _LABEL else (label,), "the label")
    subject = row[collection.need(("Subject",), "the subject")]
    acquired = collection.need(("Acq Date",), "the date of the scan")
    day = adni_diagnoses.day_of(row[acquired])
    data = known(person(row, collection, column))
    data["findings"] = (*image.findings, *data.get("findings", ()))
    image = replace(image, session=day.isoformat() if day is not None else None, **data)
    if subject is None or id_key(subject) != id_key(image.subject):
        message = (
            f"is of {image.subject} by its folder, and of {subject or 'nobody'} in {collection.path.name}."
        )
        image = image.found(bad("other-subject", message, "Download the image and the table again."))
    in_folder = adni_diagnoses.day_of(image.source.split("/")[2][:10])
    if day is not None and in_folder not in (None, day):
        message = f"was scanned on {in_folder} by its folder; {day} of {collection.path.name} was taken."
        image = image.found(warning("other-day", message, "Look which of them is right."))
    if label == _LABEL and image.label is not None and image.label not in GROUPS:
        message = f"has the group {image.label!r}, which is not one of {', '.join(GROUPS)}."
        image = image.found(bad("unknown-label", message, "Correct the table, or remove the image."))
    return _Scan(image, number, day)


def _chosen(scans: Sequence[_Scan], visits: str, left_out: _LeftOut) -> list[_Scan]:
    """Return the first scan of each subject, or of each day; of one day the one with the lowest id.

    Without a date it is not known whether a scan is the first: it is left out.
    """
    taken: dict[tuple[str, date | None], _Scan] = {}
    for scan in scans:
        if scan.day is None:
            left_out.setdefault("its Acq Date in the table is not a date", []).append(scan.image.source)
    dated = [scan for scan in scans if scan.day is not None]
    for scan in sorted(dated, key=lambda scan: (scan.image.subject, scan.day, scan.number)):
        first = taken.setdefault((scan.image.subject, scan.day if visits == "all" else None), scan)
        if first is not scan:
            why = "a further scan of a day" if first.day == scan.day else "not the first scan of its subject"
            left_out.setdefault(why, []).append(scan.image.source)
    return list(taken.values())


def _divided(scans: Sequence[_Scan], diagnoses: Diagnoses, within: int, left_out: _LeftOut) -> list[_Scan]:
    """Return the scans with sMCI and pMCI in place of MCI, without those that are neither.

    Nobody is sMCI who had another diagnosis on a day that is not known.
    """
    divided: list[_Scan] = []
    for scan in scans:
        group = scan.image.label
        if group in GROUPS and scan.day is not None:
            rid = str(adni_diagnoses.rid_of(scan.image.subject))
            label, why = adni_diagnoses.outcome(group, diagnoses.visits.get(rid, ()), scan.day, within)
            if label == "sMCI" and diagnoses.without_day.get(rid, set()) - {MCI}:
                label, why = None, "MCI, but another diagnosis has no readable date"
            if label is None:
                left_out.setdefault(why, []).append(scan.image.source)
                continue
            scan = replace(scan, image=replace(scan.image, label=label))
        divided.append(scan)
    return divided


def _without_visits(root: Path, scans: Sequence[_Scan], diagnoses: Diagnoses) -> list[Finding]:
    """Return a warning for subjects that the table of diagnoses has no visit of.

    Raises:
        CohortError: it has one of none.
    """
    subjects = list(dict.fromkeys(scan.image.subject for scan in scans))
    without = [name for name in subjects if adni_diagnoses.rid_of(name) not in diagnoses.visits]
    if not without:
        return []
    ids = first_three(diagnoses.visits)
    if len(without) == len(subjects):
        raise CohortError(
            f"{root}: none of its {len(subjects)} subjects ({first_three(subjects)}) has a visit in "
            f"{diagnoses.path}, whose RIDs are {ids}.",
            cure="The RID is the last number of a subject: 295 of 002_S_0295. Give ADNI's own table.",
        )
    message = (
        f"{len(without)} subjects have no visit in {diagnoses.path.name} (its RIDs are {ids}), so that AD, "
        f"CN and SMC are not compared with a diagnosis: {first_three(without)}."
    )
    return [warning("no-visit", message, "Give the whole table, as ADNI publishes it.")]


def _cell(row: Row, table: TextTable, name: str) -> str | None:
    column = table.find((name,))
    return row[column] if column is not None else None


def _reason(why: str, sources: Sequence[str]) -> Finding:
    subjects = first_three(dict.fromkeys(source.split("/")[0] for source in sources))
    count = f"{len(sources)} image{'s are' if len(sources) > 1 else ' is'} left out"
    return note("left-out", f"{count}, {why}: {subjects}.")


def _second(number: int, first: SourceImage) -> Finding:
    message = f"is a second image with the id I{number}; the first is {first.source}."
    return bad("duplicate-image", message, "Keep one of them.")


def _no_row(number: int, collection: TextTable) -> Finding:
    message = f"its image id I{number} is not in {collection.path.name}."
    return warning("no-row", message, "Give the table of the collection that it was downloaded with.")


def _without_image(
    rows: Mapping[int, Row], images: Mapping[int, Sequence[SourceImage]], collection: TextTable
) -> list[Finding]:
    missing = [f"I{number}" for number in rows if number not in images]
    if not missing:
        return []
    message = f"{len(missing)} rows of {collection.path.name} have no image: {first_three(missing)}."
    return [warning("no-image", message, "Ignore this if it is intended.")]


KIND = SourceKind("adni", is_adni, find, frozenset({"table", "adni"}), is_written_by_users=False)
