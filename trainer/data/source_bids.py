"""Images of a BIDS folder (bids-specification.readthedocs.io): participants.tsv and sub-*/[ses-*/]anat/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.data import tables
from trainer.data.findings import Finding, warning
from trainer.data.listing import SUBJECT_COLUMNS, Listing, SourceImage, known, person
from trainer.data.reading import stem, suffix
from trainer.data.tables import Table
from trainer.errors import CohortError

# BIDS derivatives, "Common file level metadata fields": labels of probabilistic segmentations.
TISSUES = {"GM": "grey", "WM": "white", "CSF": "csf"}


def is_bids(folder: Path) -> bool:
    """Whether a folder says it is BIDS, or looks like it."""
    if (folder / "participants.tsv").exists() or (folder / "dataset_description.json").exists():
        return True
    return any(
        anat.is_dir() for pattern in ("sub-*/anat", "sub-*/ses-*/anat") for anat in folder.glob(pattern)
    )


def find(root: Path, label: str, labels: Table | None, contrast: str) -> Listing:
    """List the images `sub-*/[ses-*/]anat/*_<contrast>` with what participants.tsv and sessions files say.

    Raises:
        CohortError: no participants.tsv and no table of labels, no such column, no image of that contrast.
    """
    participants = root / "participants.tsv"
    people_table = tables.read(participants) if participants.is_file() else None
    if people_table is None and labels is None:
        cure = (
            f"Write {participants} (columns participant_id and {label}), or give a table with --labels FILE."
        )
        raise CohortError(
            f"{root}: has no participants.tsv, so nothing tells the label of its images.", cure=cure
        )
    sessions = sorted(root.glob("sub-*/sub-*_sessions.tsv"))
    in_sessions = any(tables.read(path).find([label]) for path in sessions[:1])
    if labels is not None:
        labels.need([label], "the label")
    elif people_table is not None and not in_sessions:
        people_table.need([label], "the label")
    people = _by_subject(people_table, label) | _by_subject(
        labels, label, over=_by_subject(people_table, label)
    )
    visits = {_bare(path.parent.name): tables.read(path) for path in sessions}

    images = [
        _described(_image(root, path), people, visits, label)
        for path in sorted(_paths(root, contrast), key=lambda p: p.as_posix())
    ]
    if not images:
        others = sorted({stem(p).rsplit("_", 1)[-1] for p in root.glob("sub-*/**/anat/*") if suffix(p)})
        hint = (
            f"Choose another contrast with --contrast: there are {', '.join(others)}."
            if others
            else "Images lie in sub-*/[ses-*/]anat/."
        )
        raise CohortError(f"{root}: holds no image sub-*/[ses-*/]anat/*_{contrast}.nii.gz.", cure=hint)
    return Listing("bids", _name(root), label, tuple(images), tuple(_unseen(people, images, contrast)))


def _name(root: Path) -> str:
    """What the data set calls itself; the folder's name where it says nothing."""
    try:
        described = json.loads((root / "dataset_description.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return root.resolve().name
    name = described.get("Name") if isinstance(described, dict) else None
    return name if isinstance(name, str) and name.strip() else root.resolve().name


def _paths(root: Path, contrast: str) -> Iterator[Path]:
    for pattern in ("sub-*/anat", "sub-*/ses-*/anat"):
        for anat in root.glob(pattern):
            # Not glob("*_T1w*"): links whose target is missing must be listed, so that they are reported.
            yield from (
                p
                for p in anat.iterdir()
                if suffix(p) and stem(p).endswith(f"_{contrast}") and not p.name.startswith(".")
            )


def _image(root: Path, path: Path) -> SourceImage:
    parts = path.relative_to(root).parts
    session = _bare(parts[1]) if parts[1].startswith("ses-") else None
    return SourceImage(
        path=path,
        source=path.relative_to(root).as_posix(),
        subject=_bare(parts[0]),
        session=session,
        tissue_maps=tuple(_tissue_maps(root, path.relative_to(root).parent)),
    )


def _tissue_maps(root: Path, anat: Path) -> Iterator[tuple[str, Path]]:
    for code, tissue in TISSUES.items():
        found = sorted((root / "derivatives").glob(f"*/{anat.as_posix()}/*_label-{code}_probseg.nii*"))
        if found:
            yield tissue, found[0]


def _bare(name: str) -> str:
    """`sub-01` and `ses-01` without the key."""
    return name.split("-", 1)[1] if name.startswith(("sub-", "ses-")) else name


def _by_subject(
    table: Table | None, label: str, over: dict[str, dict[str, Any]] | None = None
) -> dict[str, dict[str, Any]]:
    """What a table says of each subject, laid over what another said."""
    if table is None:
        return {}
    column = table.need(SUBJECT_COLUMNS, "the subject")
    labelled = table.find([label])
    people: dict[str, dict[str, Any]] = {}
    for row in table.rows:
        if row[column] is None:
            continue
        subject = _bare(str(row[column]))
        if subject in people:
            raise CohortError(
                f"{table.path}: has subject {row[column]!r} twice.", cure="Keep one row per subject."
            )
        people[subject] = (over or {}).get(subject, {}) | known(person(row, table, labelled))
    return people


def _described(
    image: SourceImage, people: dict[str, dict[str, Any]], visits: dict[str, Table], label: str
) -> SourceImage:
    said = dict(people.get(image.subject, {}))
    if image.subject not in people:
        said["findings"] = (
            warning(
                "no-participant", "its subject is not in the table of participants.", "Add a row for it."
            ),
        )
    visit = visits.get(image.subject)
    if visit is not None and image.session is not None:
        column = visit.need(("session_id", "session"), "the session")
        for row in visit.rows:
            if row[column] is not None and _bare(str(row[column])) == image.session:
                said |= known(person(row, visit, visit.find([label])))
    return replace(image, **said)


def _unseen(people: dict[str, dict[str, Any]], images: list[SourceImage], contrast: str) -> Iterator[Finding]:
    missing = sorted(set(people) - {image.subject for image in images})
    if missing:
        some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        message = f"{len(missing)} subjects of the table have no {contrast} image: {some}."
        yield warning("no-image", message, "Nothing, if that is as it should be.")
