"""List images of a BIDS folder: participants.tsv and sub-*/[ses-*/]anat/."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trainer.data.images.findings import Finding, bad, warning
from trainer.data.images.reading import suffix
from trainer.data.sources import foreign_files, source_maps, tables
from trainer.data.sources.bids_names import (
    best_match,
    bids_suffix,
    check_run,
    is_image_of,
    name_findings,
    not_taken,
    of_run,
    run_of,
)
from trainer.data.sources.file_names import first_three
from trainer.data.sources.joins import (
    IdKey,
    SubjectRows,
    check_distinct,
    id_key,
    lines_without_id,
    not_joined,
)
from trainer.data.sources.labels import missing_label
from trainer.data.sources.listing import SourceFile, SourceImage, SourceListing, person_in_tables
from trainer.data.sources.source_kind import SourceKind, SourceRequest
from trainer.data.sources.tables import Row, TextTable
from trainer.errors import CohortError


def is_bids(folder: Path) -> bool:
    """Return whether a folder declares BIDS, or looks like it."""
    if (folder / "participants.tsv").exists() or (folder / "dataset_description.json").exists():
        return True
    return any(
        anat.is_dir() for pattern in ("sub-*/anat", "sub-*/ses-*/anat") for anat in folder.glob(pattern)
    )


def find(root: Path, request: SourceRequest) -> SourceListing:
    """List the images `sub-*/[ses-*/]anat/*_<contrast>` with the data of participants.tsv and sessions files.

    The first contrast's images are the entries; those of the others, and maps, go with them.
    With maps nothing needs a label: they are what there is to learn. `run` chooses among `run-1`, `run-2`.

    Raises:
        CohortError: no participants.tsv and no table of labels, no such column, no image of a contrast or
            of the run.
    """
    label, labels, maps, run = request.label, request.table, request.maps, request.run
    contrasts = request.contrasts or (request.contrast,)
    contrast = contrasts[0]
    people = _participants(root)
    sessions = _sessions(root)
    first = SubjectRows(labels) if labels is not None else None
    if maps is None:
        _check_labels(root, label, first, list(sessions.values()), people)
    for name in contrasts:
        if not any(_paths(root, name)):
            raise _no_images(root, name)
    if run is not None:
        check_run((path for name in contrasts for path in _paths(root, name)), run, root)
    _check_folders(root)
    paths = sorted(_paths(root, contrast), key=lambda p: p.as_posix())
    images: Sequence[SourceImage] = [
        _image(root, path).found(*findings) for path, findings in of_run(paths, run)
    ]
    by_session = first is None and any(rows.table.find([label]) for rows in sessions.values())
    if maps is None and not by_session:
        _check_joined(root, images, first or people)
    images = [_described(image, first, sessions, people, label, maps is None) for image in images]
    for name in contrasts[1:]:
        images = [_with_contrast(root, image, name, run) for image in images]
    unseen = (
        *_without_image(root, images, [table for table in (first, people) if table], sessions, contrast),
        *_mixed(images, first, sessions, label),
        *not_taken(root, (path for name in contrasts for path in _paths(root, name)), contrasts),
        *foreign_files.unread_formats(sorted(root.glob("sub-*")), root),
    )
    recipe = None
    if maps is not None:
        images, recipe = source_maps.of_bids(root, images, maps)
    return SourceListing("bids", _name(root), label, tuple(images), unseen, recipe, request.contrast)


def _check_labels(
    root: Path,
    label: str,
    labels: SubjectRows | None,
    sessions: Sequence[SubjectRows],
    people: SubjectRows | None,
) -> None:
    """Check that a table has the column of the labels.

    Raises:
        CohortError: there is no such table, or none has the column.
    """
    if labels is not None:
        labels.table.need([label], "the label")
    elif any(rows.table.find([label]) for rows in sessions):
        return
    elif people is not None:
        people.table.need([label], "the label")
    else:
        raise CohortError(
            f"{root}: has no participants.tsv, so the labels of its images are unknown.",
            cure=f"Write {root / 'participants.tsv'} (columns participant_id and {label}), or give a table "
            "with --labels FILE.",
        )


def _sessions(root: Path) -> dict[str, SubjectRows]:
    """Return the rows of each sub-*/sub-*_sessions.tsv, by the subject of its folder.

    Raises:
        CohortError: a folder has two, or that of another subject; a session has two rows.
    """
    tables_of: dict[str, SubjectRows] = {}
    for path in sorted(root.glob("sub-*/sub-*_sessions.tsv")):
        subject, named = _bare(path.parent.name), _bare(path.name.removesuffix("_sessions.tsv"))
        if id_key(subject) != id_key(named):
            raise CohortError(
                f"{path}: is of subject {named} by its name, and of subject {subject} by its folder.",
                cure="Move it to the folder of its subject, or rename it; look which of them is right.",
            )
        if subject in tables_of:
            raise CohortError(
                f"{path}: is a second table of the sessions of {path.parent.name}, beside "
                f"{tables_of[subject].table.path.name}.",
                cure="Keep one of them.",
            )
        tables_of[subject] = SubjectRows(tables.read(path), subject)
    return tables_of


def _check_folders(root: Path) -> None:
    """Check that no two folders are of one subject, or of one session of a subject.

    Raises:
        CohortError: two are; both are named.
    """
    folders = [path for path in sorted(root.glob("sub-*")) if path.is_dir()]
    check_distinct({path.name: "folder" for path in folders}, "subject", str(root))
    for folder in folders:
        sessions = {path.name: "folder" for path in sorted(folder.glob("ses-*")) if path.is_dir()}
        check_distinct(sessions, "session", str(folder))


def _check_joined(root: Path, images: Sequence[SourceImage], rows: SubjectRows | None) -> None:
    """Check that the table of subjects has one of those of the images.

    Raises:
        CohortError: it has none.
    """
    if rows is not None and not any(image.subject in rows for image in images):
        raise not_joined(str(root), (f"sub-{image.subject}" for image in images), rows.table, rows.rows.ids)


def _participants(root: Path) -> SubjectRows | None:
    """Return the rows of participants.tsv, or of participants.csv as spreadsheets write it; None without.

    Raises:
        CohortError: there are both, or a subject has two rows.
    """
    there = [path for path in (root / "participants.tsv", root / "participants.csv") if path.is_file()]
    if len(there) > 1:
        raise CohortError(
            f"{root}: has both participants.tsv and participants.csv, which may differ.",
            cure="Keep one of them.",
        )
    return SubjectRows(tables.read(there[0])) if there else None


def _no_images(root: Path, contrast: str) -> CohortError:
    foreign = foreign_files.unread_formats(sorted(root.glob("sub-*")), root)
    foreign += not_taken(root, (), (contrast,))
    others = sorted({bids_suffix(p) for p in root.glob("sub-*/**/anat/*") if suffix(p)} - {contrast})
    hint = (
        f"Choose another contrast with --contrast: there are {', '.join(others)}."
        if others
        else "Images lie in sub-*/[ses-*/]anat/."
    )
    hint = " ".join([*(f"{finding.message} {finding.cure}" for finding in foreign), hint])
    return CohortError(f"{root}: holds no image sub-*/[ses-*/]anat/*_{contrast}.nii.gz.", cure=hint)


def _with_contrast(root: Path, image: SourceImage, contrast: str, run: int | None) -> SourceImage:
    """Return the image with that of a further contrast, which lies beside it."""
    beside = [path for path in sorted(image.path.parent.iterdir()) if is_image_of(path, contrast)]
    if run is not None:
        beside = [path for path in beside if run_of(path) in (None, run)]
    best = best_match(image.path, beside)
    if len(best) == 1:
        file = SourceFile(contrast, best[0], best[0].relative_to(root).as_posix())
        return replace(image, contrasts=(*image.contrasts, file))
    if best:
        names = ", ".join(path.name for path in best)
        message, cure = f"has several {contrast} images that fit: {names}.", "Keep one of them."
        runs = sorted({n for n in map(run_of, best) if n is not None})
        if len(runs) > 1:
            cure = f"Choose a run, such as --run {runs[0]}, or keep one of them."
        finding = bad("ambiguous-contrast", message, cure)
    else:
        cure = "Add it, leave the subject out with --on-error skip, or import fewer --contrasts."
        others = f"; not of it are {first_three(path.name for path in beside)}" if beside else ""
        finding = bad("missing-contrast", f"has no {contrast} image beside it{others}.", cure)
    return image.found(finding)


def _name(root: Path) -> str:
    """Return the name that the data set states; the folder's name where it states none."""
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
            yield from (path for path in anat.iterdir() if is_image_of(path, contrast))


def _image(root: Path, path: Path) -> SourceImage:
    parts = path.relative_to(root).parts
    session = _bare(parts[1]) if parts[1].startswith("ses-") else None
    maps, findings = source_maps.tissue_maps(root, path)
    return SourceImage(
        path=path,
        source=path.relative_to(root).as_posix(),
        subject=_bare(parts[0]),
        session=session,
        tissue_maps=maps,
        findings=(*name_findings(path, _bare(parts[0]), session), *findings),
    )


def _bare(name: str) -> str:
    """Return `sub-01` and `ses-01` without the key."""
    return name.split("-", 1)[1] if name.startswith(("sub-", "ses-")) else name


def _described(
    image: SourceImage,
    labels: SubjectRows | None,
    sessions: Mapping[str, SubjectRows],
    people: SubjectRows | None,
    label: str,
    must_have_label: bool,
) -> SourceImage:
    """Return the image with the data of its rows: those of --labels, of its session, of its subject.

    The first table that has the column of a value decides, whatever its cell holds: the value of a table
    further back would be that of another session, or one that --labels corrects.
    """
    joined: list[tuple[TextTable, Row | None]] = []
    why = f"no table of its subject has a column {label!r}"
    for rows in (people, sessions.get(image.subject), labels):
        if rows is None:
            continue
        row, missing = rows.match(image.subject, image.session)
        joined.insert(0, (rows.table, row))
        column = rows.table.find([label])
        if column is not None:
            why = missing or f"its cell in {rows.table.path.name} is empty"
    data = person_in_tables(joined, label)
    findings = [*data.pop("findings")]
    at_large = [rows for rows in (labels, people) if rows is not None]
    if at_large and not any(image.subject in rows for rows in at_large):
        names = " or ".join(rows.table.path.name for rows in at_large)
        message = (
            f"its subject {image.subject} is not in {names}, whose ids are {at_large[0].rows.first_ids}."
        )
        findings.append(warning("no-participant", message, "Add a row for it."))
    if must_have_label and data["label"] is None:
        findings.append(missing_label(label, why))
    return replace(image, **data).found(*findings)


def _without_image(
    root: Path,
    images: Sequence[SourceImage],
    tables_of_all: Sequence[SubjectRows],
    sessions: Mapping[str, SubjectRows],
    contrast: str,
) -> Iterator[Finding]:
    """Return warnings for subjects and sessions without an image, and for rows that name no subject."""
    visits = [(image.subject, image.session) for image in images]
    for rows in (*tables_of_all, *sessions.values()):
        yield from lines_without_id(rows.table, rows.rows.without_id, rows.rows.columns[0])
    subjects: dict[IdKey, str] = {}
    missing: list[str] = []
    for rows in (*tables_of_all, *sessions.values()):
        without, further = rows.without_image(visits)
        for subject in without:
            subjects.setdefault(id_key(subject), subject)
        missing += further
    imaged = {id_key(subject) for subject, _ in visits}
    folders = [path.name for path in sorted(root.glob("sub-*")) if path.is_dir()]
    folders = [name for name in folders if id_key(name) not in imaged and id_key(name) not in subjects]
    for names, what in (
        (subjects.values(), "subjects of the table"),
        (folders, "folders of subjects"),
        (dict.fromkeys(missing), "sessions of the tables"),
    ):
        if names:
            message = f"{len(names)} {what} have no {contrast} image: {first_three(names)}."
            yield warning("no-image", message, "Ignore this if it is intended.")


def _mixed(
    images: Sequence[SourceImage], labels: SubjectRows | None, sessions: Mapping[str, SubjectRows], label: str
) -> Iterator[Finding]:
    """Return a warning where some subjects have a label for each session and others one for all."""
    by_session = {subject for subject, rows in sessions.items() if rows.table.find([label])}
    rest = dict.fromkeys(
        image.subject for image in images if image.subject not in by_session and image.label is not None
    )
    if labels is None and by_session and rest:
        message = (
            f"{len(rest)} subjects have the label of participants.tsv for all their sessions, since their "
            f"sessions have no table with {label!r}, which others have: {first_three(rest)}."
        )
        yield warning("label-source", message, "Write it to their sub-*_sessions.tsv, too, or ignore this.")


KIND = SourceKind("bids", is_bids, find, frozenset({"table", "contrasts", "maps", "run"}))
