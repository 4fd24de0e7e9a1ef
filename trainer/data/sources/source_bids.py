"""List images of a BIDS folder: participants.tsv and sub-*/[ses-*/]anat/."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.data.images.findings import Finding, bad, warning
from trainer.data.images.reading import stem, suffix
from trainer.data.sources import foreign_files, source_maps, tables
from trainer.data.sources.bids_names import best_match, check_run, of_run, run_of
from trainer.data.sources.listing import SUBJECT_COLUMNS, Listing, SourceFile, SourceImage, known, person
from trainer.data.sources.map_request import MapRequest
from trainer.data.sources.tables import Table
from trainer.errors import CohortError


def is_bids(folder: Path) -> bool:
    """Return whether a folder declares BIDS, or looks like it."""
    if (folder / "participants.tsv").exists() or (folder / "dataset_description.json").exists():
        return True
    return any(
        anat.is_dir() for pattern in ("sub-*/anat", "sub-*/ses-*/anat") for anat in folder.glob(pattern)
    )


def find(
    root: Path,
    label: str,
    labels: Table | None,
    contrasts: Sequence[str],
    maps: MapRequest | None = None,
    run: int | None = None,
) -> Listing:
    """List the images `sub-*/[ses-*/]anat/*_<contrast>` with the data of participants.tsv and sessions files.

    The first contrast's images are the entries; those of the others, and maps, go with them.
    With maps nothing needs a label: they are what there is to learn. `run` chooses among `run-1`, `run-2`.

    Raises:
        CohortError: no participants.tsv and no table of labels, no such column, no image of a contrast or
            of the run.
    """
    contrast = contrasts[0]
    participants = root / "participants.tsv"
    people_table = _participants(root)
    if people_table is None and labels is None and maps is None:
        cure = (
            f"Write {participants} (columns participant_id and {label}), or give a table with --labels FILE."
        )
        raise CohortError(
            f"{root}: has no participants.tsv, so the labels of its images are unknown.", cure=cure
        )
    sessions = sorted(root.glob("sub-*/sub-*_sessions.tsv"))
    in_sessions = any(tables.read(path).find([label]) for path in sessions[:1])
    if labels is not None:
        labels.need([label], "the label")
    elif people_table is not None and not in_sessions and maps is None:
        people_table.need([label], "the label")
    people = _by_subject(people_table, label) | _by_subject(
        labels, label, over=_by_subject(people_table, label)
    )
    visits = {_bare(path.parent.name): tables.read(path) for path in sessions}

    for name in contrasts:
        if not any(_paths(root, name)):
            raise _no_images(root, name)
    if run is not None:
        check_run((path for name in contrasts for path in _paths(root, name)), run, root)
    paths = sorted(_paths(root, contrast), key=lambda p: p.as_posix())
    images: Sequence[SourceImage] = [
        _described(_image(root, path), people, visits, label).found(*findings)
        for path, findings in of_run(paths, run)
    ]
    for name in contrasts[1:]:
        images = [_with_contrast(root, image, name, run) for image in images]
    unseen = (
        *_unseen(people, images, contrast),
        *foreign_files.unread_formats(sorted(root.glob("sub-*")), root),
    )
    recipe = None
    if maps is not None:
        images, recipe = source_maps.of_bids(root, images, maps)
    return Listing("bids", _name(root), label, tuple(images), unseen, recipe)


def _participants(root: Path) -> Table | None:
    """Return participants.tsv, or participants.csv as spreadsheets write it; None without either.

    Raises:
        CohortError: there are both.
    """
    there = [path for path in (root / "participants.tsv", root / "participants.csv") if path.is_file()]
    if len(there) > 1:
        raise CohortError(
            f"{root}: has both participants.tsv and participants.csv, which may differ.",
            cure="Keep one of them.",
        )
    return tables.read(there[0]) if there else None


def _no_images(root: Path, contrast: str) -> CohortError:
    foreign = foreign_files.unread_formats(sorted(root.glob("sub-*")), root)
    others = sorted({stem(p).rsplit("_", 1)[-1] for p in root.glob("sub-*/**/anat/*") if suffix(p)})
    hint = (
        f"Choose another contrast with --contrast: there are {', '.join(others)}."
        if others
        else "Images lie in sub-*/[ses-*/]anat/."
    )
    hint = " ".join([*(f"{finding.message} {finding.cure}" for finding in foreign), hint])
    return CohortError(f"{root}: holds no image sub-*/[ses-*/]anat/*_{contrast}.nii.gz.", cure=hint)


def _with_contrast(root: Path, image: SourceImage, contrast: str, run: int | None) -> SourceImage:
    """Return the image with that of a further contrast, which lies beside it."""
    beside = [path for path in sorted(image.path.parent.iterdir()) if _is_image_of(path, contrast)]
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
        finding = bad("missing-contrast", f"has no {contrast} image beside it.", cure)
    return image.found(finding)


def _is_image_of(path: Path, contrast: str) -> bool:
    return bool(suffix(path)) and stem(path).endswith(f"_{contrast}") and not path.name.startswith(".")


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
            yield from (path for path in anat.iterdir() if _is_image_of(path, contrast))


def _image(root: Path, path: Path) -> SourceImage:
    parts = path.relative_to(root).parts
    session = _bare(parts[1]) if parts[1].startswith("ses-") else None
    return SourceImage(
        path=path,
        source=path.relative_to(root).as_posix(),
        subject=_bare(parts[0]),
        session=session,
        tissue_maps=source_maps.tissue_maps(root, path.relative_to(root).parent),
    )


def _bare(name: str) -> str:
    """Return `sub-01` and `ses-01` without the key."""
    return name.split("-", 1)[1] if name.startswith(("sub-", "ses-")) else name


def _by_subject(
    table: Table | None, label: str, over: dict[str, dict[str, Any]] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the rows of each subject, merged over those of another table."""
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
    if people and image.subject not in people:
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


def _unseen(
    people: dict[str, dict[str, Any]], images: Sequence[SourceImage], contrast: str
) -> Iterator[Finding]:
    missing = sorted(set(people) - {image.subject for image in images})
    if missing:
        some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        message = f"{len(missing)} subjects of the table have no {contrast} image: {some}."
        yield warning("no-image", message, "Ignore this if it is intended.")
