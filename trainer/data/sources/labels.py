"""Labels of a cohort: which are missing, unknown, spelled in two ways, or differ between sessions."""

from __future__ import annotations

import difflib
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Literal

from trainer.data.images.findings import Finding, bad, note, status, warning
from trainer.data.sources.file_names import first_three
from trainer.data.sources.joins import as_number, id_key, id_order
from trainer.data.sources.listing import AGE_COLUMNS, SourceImage, SourceListing
from trainer.errors import CohortError

LabelChange = Literal["keep", "first", "error"]
"""What is done with a subject whose sessions have different labels; `keep` is the default (decision 64)."""

_BASELINE = frozenset({"bl", "baseline"})  # the first session of studies that count months from it
_SEX_WORDS = {"male": "m", "man": "m", "female": "f", "woman": "f", "w": "f"}


def labelled(listing: SourceListing, classes: Sequence[str] | None) -> SourceListing:
    """Find missing and unknown labels.

    Raises:
        CohortError: there are no labels, not one of a class asked for, or one class only.
    """
    counts = Counter(image.label for image in listing.images if image.label is not None)
    if not counts:
        cure = f"Fill in the column {listing.label_name!r}, or name another with --label."
        why = _unlabelled(listing.images)
        raise CohortError(f"{listing.name}: no image has a label ({listing.label_name}).{why}", cure=cure)
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
        counted = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
        raise CohortError(
            f"{listing.name}: has {only}, in {listing.label_name!r}; its labels are {counted}."
            f"{_unlabelled(images)}",
            cure="A classifier needs two classes: add images, or name another column with --label.",
        )
    return replace(listing, images=tuple(images))


def missing_label(name: str, why: str = "") -> Finding:
    """Return the finding of an image without a label, and why it has none."""
    return bad(
        "missing-label",
        f"has no label ({name}){': ' if why else ''}{why}.",
        "Fill it in, or remove the image.",
    )


def same_spelling(listing: SourceListing, classes: Sequence[str] | None) -> SourceListing:
    """Return the listing with one spelling of each label that is a number, of each sex and of each site.

    Tables of one study write `1` and, beside an empty cell, `1.0`. The shortest spelling is taken, or that of
    `classes`; a value that has only one spelling keeps it.
    """
    findings = list(listing.findings)
    images = list(listing.images)
    for field, what, key in (
        ("label", listing.label_name, _number_key),
        ("sex", "sex", _sex_key),
        ("site", "site", _text_key),
    ):
        counts = Counter(value for image in images if (value := getattr(image, field)) is not None)
        stated = classes if field == "label" and classes is not None else ()
        spelling = _one_spelling(counts, key, stated)
        if not spelling:
            continue
        images = [replace(image, **{field: spelling.get(v := getattr(image, field), v)}) for image in images]
        changed = ", ".join(f"{old!r} ({counts[old]}) as {new!r}" for old, new in list(spelling.items())[:3])
        more = ", ..." if len(spelling) > 3 else "."
        findings.append(note("spelling", f"{what} is spelled in several ways; it is taken {changed}{more}"))
    return replace(listing, images=tuple(images), findings=tuple(findings))


def _one_spelling(
    counts: Counter[str], key: Callable[[str], str | None], stated: Sequence[str]
) -> dict[str, str]:
    """Return the spelling to take of each value that has another one."""
    alike: dict[str, list[str]] = {}
    for value in (*counts, *stated):
        if (plain := key(value)) is not None:
            alike.setdefault(plain, []).append(value)
    spelling: dict[str, str] = {}
    for values in alike.values():
        meant = [value for value in dict.fromkeys(values) if value in stated]
        if len(meant) > 1:
            continue
        taken = meant[0] if meant else min(values, key=lambda value: (len(value), -counts[value], value))
        spelling |= {value: taken for value in values if value != taken}
    return spelling


def _number_key(text: str) -> str | None:
    number = as_number(text)
    return None if number is None else str(number.normalize())


def _text_key(text: str) -> str:
    return _number_key(text) or _plain(text)


def _sex_key(text: str) -> str:
    plain = _text_key(text)
    return _SEX_WORDS.get(plain, plain)


def with_label_changes(listing: SourceListing, rule: LabelChange) -> SourceListing:
    """Return the listing with the subjects whose sessions have different labels counted and named.

    Args:
        listing: images that are bad are not counted.
        rule: `keep` leaves each session its own label, `first` gives all sessions with a label that of the
            subject's first one.

    Raises:
        CohortError: `error`, and there is such a subject; `first`, and the sessions of one have no order.
    """
    scans: dict[str, list[SourceImage]] = {}
    for image in listing.images:
        if image.label is not None and status(image.findings) != "bad":
            scans.setdefault(image.subject, []).append(image)
    changing = {
        subject: sorted(images, key=lambda image: _session_order(image.session))
        for subject, images in scans.items()
        if len({image.label for image in images}) > 1
    }
    if not changing:
        return listing
    changes = {
        subject: [f"{image.label} at {image.session or 'no session'}" for image in images]
        for subject, images in changing.items()
    }
    some = "; ".join(f"{subject} ({_shortened(seen)})" for subject, seen in list(changes.items())[:3])
    what = (
        f"{len(changes)} of {len(scans)} subjects have sessions of different labels ({listing.label_name}): "
        f"{some}{'; ...' if len(changes) > 3 else ''}"
    )
    if rule == "error":
        raise CohortError(
            f"{listing.name}: {what}.",
            cure="Correct the tables; or --label-change keep leaves each session its own label, "
            "--label-change first gives all of them that of the first.",
        )
    images = listing.images
    if rule == "first":
        for subject, subjects_images in changing.items():
            _check_order(listing.name, subject, [image.session for image in subjects_images])
        first = {subject: subjects_images[0] for subject, subjects_images in changing.items()}
        images = tuple(_as_first(image, first.get(image.subject)) for image in images)
    outcomes = {
        "keep": "Each session keeps its own.",
        "first": "All sessions of a subject got the label of its first.",
    }
    cure = "--label-change keep|first|error: keep each, take the subject's first, or refuse."
    finding = warning("label-change", f"{what}. {outcomes[rule]}", cure)
    return replace(listing, images=images, findings=(*listing.findings, finding), label_changes=changes)


def _shortened(seen: Sequence[str]) -> str:
    return ", ".join(seen) if len(seen) <= 4 else ", ".join([*seen[:2], "...", seen[-1]])


def _as_first(image: SourceImage, first: SourceImage | None) -> SourceImage:
    if first is None or image.label in (None, first.label):
        return image
    message = f"has the label {image.label!r} in the tables; that of its subject's first session was taken."
    return replace(image, label=first.label).found(note("label-change", message))


def _session_order(session: str | None) -> tuple[bool, tuple[tuple[str, int, str], ...]]:
    first = session is None or session.strip().lower() in _BASELINE
    return not first, () if first else id_order(str(session))


def _check_order(cohort: str, subject: str, sessions: Sequence[str | None]) -> None:
    """Check that the sessions differ by numbers alone, so that one of them is the first.

    Raises:
        CohortError: they do not.
    """
    counted = [str(session) for session in sessions if _session_order(session)[0]]
    prefixes = {tuple(prefix for prefix, _ in id_key(session)) for session in counted}
    if len(prefixes) > 1 or len(sessions) - len(counted) > 1:
        raise CohortError(
            f"{cohort}: which session of subject {subject} is the first is unknown: "
            f"{', '.join(session or 'no session' for session in sessions)}.",
            cure="Number the sessions (ses-1, ses-2; M00, M12; dates), or take --label-change keep.",
        )


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _check_spellings(listing: SourceListing, counts: Counter[str]) -> None:
    """Raise for labels that differ by case or blanks only: one misspelt class or two is ambiguous."""
    alike: dict[str, list[str]] = {}
    for label, _ in counts.most_common():
        alike.setdefault(_plain(label), []).append(label)
    doubtful = [labels for labels in alike.values() if len(labels) > 1]
    if doubtful:
        groups = "; ".join(", ".join(f"{name!r} ({counts[name]})" for name in names) for names in doubtful)
        raise CohortError(
            f"{listing.name}: labels in {listing.label_name!r} differ by case or blanks only: {groups}.",
            cure="If they are one class, use one spelling in the table or the folders' names. If not, name "
            f"all classes: --classes {','.join(sorted(counts))}. With --on-error skip, images of a spelling "
            "that --classes leaves out are left out.",
        )


def _check_classes(listing: SourceListing, counts: Collection[str], classes: Sequence[str]) -> None:
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
        explained = any(finding.code == "missing-label" for finding in image.findings)
        return [] if explained else [missing_label(name)]
    if classes is None or image.label in classes:
        return []
    by_lower = {name.lower(): name for name in classes}
    close = difflib.get_close_matches(image.label.lower(), by_lower, n=1)
    hint = f" Did you mean {by_lower[close[0]]!r}?" if close else ""
    message = f"has the label {image.label!r}, which is not one of {', '.join(classes)}.{hint}"
    return [bad("unknown-label", message, "Correct the label, or add it to --classes.")]


def doubtful_values(listing: SourceListing) -> list[Finding]:
    """Return findings on ages, sexes, sites and tissue maps that are missing, or that sessions contradict.

    A subject of two sexes may be two people, and one age for all sessions is wrong for most of them. Bad
    images do not count.
    """
    images = [image for image in listing.images if status(image.findings) != "bad"]
    findings = []
    for field, what in (
        ("age", "age"), ("sex", "sex"), ("site", "site"), ("tissue_maps", "tissue maps"),
    ):  # fmt: skip
        without = [image for image in images if getattr(image, field) in (None, ())]
        if without and len(without) < len(images):
            names = first_three(f"{i.subject} {i.session}" if i.session else i.subject for i in without)
            message = f"{len(without)} of {len(images)} images have no {what}: {names}."
            findings.append(warning("missing-value", message, "Fill it in where it is known."))
    from_table = listing.has_tables and any(i.label or i.sex or i.site for i in images)
    if from_table and all(image.age is None for image in images):
        cells = f"no column {' or '.join(AGE_COLUMNS)}, or empty cells only"
        findings.append(note("missing-value", f"no image has an age: the tables have {cells}."))
    scans: dict[str, list[SourceImage]] = {}
    for image in images:
        scans.setdefault(image.subject, []).append(image)
    sexes = {subject: {image.sex for image in own} - {None} for subject, own in scans.items()}
    two = [f"{name} ({', '.join(sorted(map(str, both)))})" for name, both in sexes.items() if len(both) > 1]
    if two:
        message = f"{len(two)} subjects have sessions of different sexes: {first_three(two)}."
        cure = "Correct the tables: rows of two people may be mixed up."
        findings.append(warning("two-sexes", message, cure))
    ages = {subject: {image.age for image in own} for subject, own in scans.items() if len(own) > 1}
    same = [subject for subject, values in ages.items() if len(values) == 1 and values != {None}]
    if same:
        message = f"{len(same)} subjects have one age for all their sessions: {first_three(same)}."
        cure = "Write the age at each session to a table of sessions, if years lie between them."
        findings.append(warning("one-age", message, cure))
    return findings


def _unlabelled(images: Sequence[SourceImage]) -> str:
    """Return how many images have no label, and why the first has none; empty where all have one."""
    reasons = [f.message for image in images for f in image.findings if f.code == "missing-label"]
    if not reasons:
        return ""
    count = f"{len(reasons)} images have" if len(reasons) > 1 else "1 image has"
    names = first_three(image.source for image in images if image.label is None)
    return f" {count} none ({names}); the first {reasons[0]}"
