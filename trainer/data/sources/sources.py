"""List images, their subjects and labels: of a BIDS folder, an archive such as ADNI's, a folder or a table.

Nothing is opened here but tables. What is wrong with one image (no label, twice the same session) goes with
that image as a finding; what makes the whole source unusable is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainer.data.images.findings import Finding, bad, status
from trainer.data.sources import labels as cohort_labels
from trainer.data.sources import source_adni, source_bids, source_files, source_ixi, source_oasis, tables
from trainer.data.sources.bids_names import run_of
from trainer.data.sources.file_names import first_three, is_text, shown
from trainer.data.sources.joins import check_distinct
from trainer.data.sources.labels import LabelChange
from trainer.data.sources.listing import SourceImage, SourceListing
from trainer.data.sources.map_request import MapRequest
from trainer.data.sources.site_labels import told_by_site
from trainer.data.sources.source_adni import AdniRequest
from trainer.data.sources.source_kind import SourceRequest
from trainer.errors import CingulumError, CohortError, ConfigError

# The first that recognises a source lists it; the last recognises any folder.
KINDS = (
    source_files.TABLE, source_bids.KIND, source_adni.KIND, source_ixi.KIND, source_oasis.KIND,
    source_files.FOLDER,
)  # fmt: skip

_HOW_TO = "docs/how-to/import-your-own-images.md shows the layouts that are read."


def find(
    source: Path,
    label: str,
    *,
    labels: Path | None = None,
    contrast: str = "T1w",
    contrasts: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    maps: MapRequest | None = None,
    run: int | None = None,
    adni: AdniRequest | None = None,
    label_change: LabelChange = "keep",
) -> SourceListing:
    """List the images of a source.

    Args:
        source: a BIDS folder, a folder as ADNI's archive packs it, a folder of images, or a CSV or TSV file
            with a row per image.
        label: name of the column with the class to learn.
        labels: a further table, by subject or image, for folders that have none or not that column.
        contrast: BIDS suffix of the images to take.
        contrasts: suffixes where each entry needs several images, the first in place of `contrast`.
        classes: the labels allowed; others become a finding.
        maps: which label maps to take; with them images need no label, and classes no second one.
        run: which of several runs to take, in a BIDS folder.
        adni: which visits to take and how to divide MCI, in a folder of ADNI's archive.
        label_change: which labels sessions of a subject have that differ in theirs; see `LabelChange`.

    Raises:
        CohortError: nothing there, no images, no table of labels or no such column, no row of it is that of
            an image or two are, one class only, labels that differ by case only, two spellings of one
            subject or session, a file name that is not UTF-8.
        ConfigError: a run is asked for, and the source is no BIDS folder; `adni`, and it is not ADNI's;
            `labels`, and it is a table of images.
    """
    if not source.exists():
        raise CohortError(f"{source}: there is no such file or folder.", cure=_HOW_TO, path=source)
    kind = next(one for one in KINDS if one.recognises(source))
    given = {"table": labels, "run": run, "adni": adni, "contrasts": tuple(contrasts) or None, "maps": maps}
    for option, value in given.items():
        if value is not None and option not in kind.takes:
            raise _refusal(option, value, source)
    table = None
    if labels is not None:
        table = tables.read(labels, leave_odd_lines=not kind.is_written_by_users)
    request = SourceRequest(label, table, contrast, tuple(contrasts), maps, run, adni)
    return _checked(kind.find(source, request), classes, label_change)


def _refusal(option: str, value: object, source: Path) -> CingulumError:
    """Return what is said of an option that this source does not understand."""
    if option == "table":
        return ConfigError(
            f"--labels {value}: {source} is a table of images, which has the labels itself.",
            cure="Leave out --labels, and write the labels to the table of images.",
        )
    if option == "run":
        return ConfigError(
            f"--run {value}: {source} is not a BIDS folder, and only BIDS file names have runs.",
            cure="Leave out --run, and keep one image of each subject and session.",
        )
    if option == "adni":
        return ConfigError(
            f"--diagnoses, --within, --visits: {source} is not in the layout of ADNI's archive, "
            "SUBJECT/DESCRIPTION/DATE/IMAGE-ID/.",
            cure="Leave them out, or give the folder that holds those of the subjects. docs/how-to/adni.md",
        )
    return CohortError(
        f"{source}: is a folder of images, where it is unknown which files belong together.",
        cure="For several contrasts or label maps give a BIDS folder, or a table of images. " + _HOW_TO,
    )


def _checked(
    listing: SourceListing, classes: Sequence[str] | None, label_change: LabelChange
) -> SourceListing:
    """Find missing and unknown labels, entries that are there twice, and what sessions contradict."""
    if not listing.images:
        raise CohortError(f"{listing.name}: holds no images.", cure=_HOW_TO)
    _check_names(listing)
    _check_ids(listing)
    seen: dict[tuple[str, str | None], SourceImage] = {}
    images = []
    for image in listing.images:
        visit = (image.subject, image.session)
        if visit in seen:
            image = image.found(_twice(image, seen[visit]))
        elif status(image.findings) != "bad":  # else it is not known whose image it is, or it is not stored
            seen[visit] = image
        images.append(image)
    listing = cohort_labels.same_spelling(replace(listing, images=tuple(images)), classes)
    listing = cohort_labels.with_label_changes(listing, label_change)
    if listing.maps is None or classes:
        listing = cohort_labels.labelled(listing, classes)
    doubtful = cohort_labels.doubtful_values(listing)
    by_site = told_by_site(listing.images, listing.label_name)
    return replace(listing, findings=(*listing.findings, *doubtful, *by_site))


def _check_ids(listing: SourceListing) -> None:
    """Raise for two spellings of one subject, or of one session of a subject."""
    subjects: dict[str, str] = {}
    sessions: dict[str, dict[str, str]] = {}
    for image in listing.images:
        subjects.setdefault(image.subject, image.source)
        if image.session is not None:
            sessions.setdefault(image.subject, {}).setdefault(image.session, image.source)
    check_distinct(subjects, "subject", listing.name)
    for subject, names in sessions.items():
        check_distinct(names, "session", f"{listing.name}, subject {subject}")


def _check_names(listing: SourceListing) -> None:
    """Raise for file names that no table could hold, before anything is written."""
    names = [listing.name]
    for image in listing.images:
        # Subject, session and label come from these names, or from tables, which are UTF-8.
        names += [image.source, *(file.source for file in image.further)]
        names += [path.name for _, path in image.tissue_maps]
    wrong = [name for name in dict.fromkeys(names) if not is_text(name)]
    if wrong:
        raise CohortError(
            f"{shown(listing.name)}: {len(wrong)} of its names are not UTF-8: {first_three(wrong)}",
            cure="Rename them (convmv -f latin1 -t utf8 -r FOLDER shows the new names) and import again.",
        )


def _twice(image: SourceImage, first: SourceImage) -> Finding:
    visit = f", session {image.session}" if image.session else ""
    message = f"is a second image of subject {image.subject}{visit}; the first is {first.source}."
    cure = "Keep one of them, or give each visit its own session."
    runs = [n for n in map(run_of, (first.path, image.path)) if n is not None]
    if runs and run_of(first.path) != run_of(image.path):
        cure = f"Choose a run, such as --run {runs[0]}, or keep one of them."
    return bad("duplicate-subject", message, cure)
