"""List images, their subjects and labels: of a BIDS folder, ADNI's archive, a folder or a table of images.

Nothing is opened here but tables. What is wrong with one image (no label, twice the same session) goes with
that image as a finding; what makes the whole source unusable is raised.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from trainer.data.images.findings import Finding, bad
from trainer.data.sources import source_adni, source_bids, source_files, tables
from trainer.data.sources.bids_names import run_of
from trainer.data.sources.file_names import first_three, is_text, shown
from trainer.data.sources.listing import Listing, SourceImage
from trainer.data.sources.map_request import MapRequest
from trainer.data.sources.source_adni import AdniRequest
from trainer.errors import CohortError, ConfigError

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
) -> Listing:
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

    Raises:
        CohortError: nothing there, no images, no table of labels or no such column, one class only, labels
            that differ by case only, a file name that is not UTF-8.
        ConfigError: a run is asked for, and the source is no BIDS folder; `adni`, and it is not ADNI's.
    """
    if not source.exists():
        raise CohortError(f"{source}: there is no such file or folder.", cure=_HOW_TO)
    table = tables.read(labels) if labels is not None else None
    if run is not None and not source_bids.is_bids(source):
        raise ConfigError(
            f"--run {run}: {source} is not a BIDS folder, and only BIDS file names have runs.",
            cure="Leave out --run, and keep one image of each subject and session.",
        )
    in_bids = source_bids.is_bids(source)
    in_adni = not in_bids and source_adni.is_adni(source)
    if adni is not None and not in_adni:
        raise ConfigError(
            f"--diagnoses, --within, --visits: {source} is not in the layout of ADNI's archive, "
            "SUBJECT/DESCRIPTION/DATE/IMAGE-ID/.",
            cure="Leave them out, or give the folder that holds those of the subjects. docs/how-to/adni.md",
        )
    if source.is_file():
        listing = source_files.in_table(source, label, contrasts, maps)
    elif in_bids:
        listing = source_bids.find(source, label, table, contrasts or (contrast,), maps, run)
    elif in_adni and not contrasts and maps is None:
        listing = source_adni.find(source, label, table, adni or AdniRequest())
    elif contrasts or maps:
        raise CohortError(
            f"{source}: is a folder of images, where it is unknown which files belong together.",
            cure="For several contrasts or label maps give a BIDS folder, or a table of images. " + _HOW_TO,
        )
    else:
        listing = source_files.in_folder(source, label, table)
    return _checked(listing, classes)


def _checked(listing: Listing, classes: Sequence[str] | None) -> Listing:
    """Find missing and unknown labels and entries that are there twice."""
    if not listing.images:
        raise CohortError(f"{listing.name}: holds no images.", cure=_HOW_TO)
    _check_names(listing)
    if listing.maps is None or classes:
        listing = _labelled(listing, classes)
    seen: dict[tuple[str, str | None], SourceImage] = {}
    images = []
    for image in listing.images:
        visit = (image.subject, image.session)
        if visit in seen:
            image = replace(image, findings=(*image.findings, _twice(image, seen[visit])))
        else:
            seen[visit] = image
        images.append(image)
    return replace(listing, images=tuple(images))


def _check_names(listing: Listing) -> None:
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


def _labelled(listing: Listing, classes: Sequence[str] | None) -> Listing:
    """Find missing and unknown labels.

    Raises:
        CohortError: there are no labels, not one of a class asked for, or one class only.
    """
    counts = Counter(image.label for image in listing.images if image.label is not None)
    if not counts:
        cure = f"Fill in the column {listing.label_name!r}, or name another with --label."
        raise CohortError(f"{listing.name}: no image has a label ({listing.label_name}).", cure=cure)
    _check_classes(listing, counts, classes or ())
    if classes is None:  # who names the classes has said which spellings are meant
        _check_spellings(listing, counts)
    images = []
    for image in listing.images:
        findings = _label_findings(image, listing.label_name, classes)
        images.append(replace(image, findings=(*image.findings, *findings)))
    usable = {
        image.label
        for image in images
        if not any(f.code in ("missing-label", "unknown-label") for f in image.findings)
    }
    if len(usable) < 2:
        only = f"only one class, {next(iter(usable))!r}" if usable else "none of the classes asked for"
        found = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
        raise CohortError(
            f"{listing.name}: has {only}, in {listing.label_name!r}; its labels are {found}.",
            cure="A classifier needs two classes: add images, or name another column with --label.",
        )
    return replace(listing, images=tuple(images))


def _check_spellings(listing: Listing, counts: Counter[str]) -> None:
    """Raise for labels that differ by case or blanks only: one misspelt class or two is ambiguous."""
    alike: dict[str, list[str]] = {}
    for label, _ in counts.most_common():
        plain = " ".join(unicodedata.normalize("NFKC", label).casefold().split())
        alike.setdefault(plain, []).append(label)
    doubtful = [labels for labels in alike.values() if len(labels) > 1]
    if doubtful:
        groups = "; ".join(", ".join(f"{name!r} ({counts[name]})" for name in names) for names in doubtful)
        raise CohortError(
            f"{listing.name}: labels in {listing.label_name!r} differ by case or blanks only: {groups}.",
            cure="If they are one class, use one spelling in the table or the folders' names. If not, name "
            f"all classes: --classes {','.join(sorted(counts))}. With --on-error skip, images of a spelling "
            "that --classes leaves out are left out.",
        )


def _check_classes(listing: Listing, counts: Collection[str], classes: Sequence[str]) -> None:
    """Raise for a requested class that no image has: a typing error would leave out all its images."""
    labels = {label.lower(): label for label in counts}
    for name in classes:
        if name not in counts:
            close = difflib.get_close_matches(name.lower(), labels, n=1)
            hint = f" Did you mean {labels[close[0]]!r}?" if close else ""
            raise CohortError(
                f"{listing.name}: no image has the class {name!r} in {listing.label_name!r}.{hint}",
                cure=f"Its labels are {', '.join(sorted(counts))}.",
            )


def _label_findings(image: SourceImage, name: str, classes: Sequence[str] | None) -> list[Finding]:
    if image.label is None:
        return [bad("missing-label", f"has no label ({name}).", "Fill it in, or remove the image.")]
    if classes is None or image.label in classes:
        return []
    by_lower = {name.lower(): name for name in classes}
    close = difflib.get_close_matches(image.label.lower(), by_lower, n=1)
    hint = f" Did you mean {by_lower[close[0]]!r}?" if close else ""
    message = f"has the label {image.label!r}, which is not one of {', '.join(classes)}.{hint}"
    return [bad("unknown-label", message, "Correct the label, or add it to --classes.")]


def _twice(image: SourceImage, first: SourceImage) -> Finding:
    visit = f", session {image.session}" if image.session else ""
    message = f"is a second image of subject {image.subject}{visit}; the first is {first.source}."
    cure = "Keep one of them, or give each visit its own session."
    runs = [n for n in map(run_of, (first.path, image.path)) if n is not None]
    if runs and run_of(first.path) != run_of(image.path):
        cure = f"Choose a run, such as --run {runs[0]}, or keep one of them."
    return bad("duplicate-subject", message, cure)
