"""Split subjects into training, validation and test: by subject, and balanced.

A subject's place depends on the names and traits of the cohort and on the seed, not on the order of the
volumes, so importing the same cohort in another order gives the same splits. All scans of a subject stay
together.
"""

from __future__ import annotations

import collections
import difflib
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.config import SplitConfig
from trainer.data.shards.index import Volume
from trainer.data.splits.dealing import deal
from trainer.errors import CohortError

AGE_BANDS = 4
"""Quarters of the cohort by age."""

_TARGET_BANDS = 10


@dataclass(frozen=True)
class Split:
    """Rows of `ShardSet.volumes`, ascending, for each split."""

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]


def split(
    volumes: Sequence[Volume],
    classes: Sequence[str] | None,
    config: SplitConfig,
    *,
    targets: Sequence[float | None] | np.ndarray | None = None,
) -> Split:
    """Return the volumes split by subject, balanced in the traits of `config.stratify`.

    The label comes first: each class is divided in the shares asked for, with at least one subject in every
    split, and k folds differ by one subject at most. Site, sex and age are balanced as far as that allows
    (`dealing.deal`); who has none counts as a level of its own. A subject's scans stay together: it
    counts as the label and the site that it has most often, and the age of its first scan.

    Args:
        volumes: of the shard set.
        classes: the classes to tell apart; volumes with another label, or none, are left out. None for
            regression and segmentation: all volumes are divided, whatever their label.
        config: shares, folds, seed, what to stratify by.
        targets: for regression, the target of each volume, by row; volumes with None or NaN are left out.
            Bands of the target take the label's part in `config.stratify`.

    With `config.by` a fold is a site; what it holds out may lack a class.

    Raises:
        CohortError: no volume to divide, too few subjects for the splits; fewer than two classes, or a class
            that no volume has, or that has too few subjects to be in every split; other than as many sites as
            folds.
    """
    rows = _divided(volumes, classes, targets)
    scans = _scans(volumes, rows)
    strata = {"all subjects": list(scans)} if classes is None else _by_label(volumes, scans, classes)
    _check_enough(strata, config, classes is not None)
    traits = _traits(volumes, scans, config, classes, targets)

    if config.by == "site":
        held_out = _at_site(volumes, rows, strata, config)
    else:
        held_out = _held_out(list(strata.values()), traits, config)
    rest = [[s for s in subjects if s not in held_out] for subjects in strata.values()]
    sizes = []
    for subjects, remaining in zip(strata.values(), rest, strict=True):
        whole = subjects if config.by is None else remaining
        taken = max(0, min(_count(config.validation, len(whole)), len(remaining) - 1))
        sizes.append([len(remaining) - taken, taken])
    place = deal(rest, sizes, traits, f"{config.seed}/validation/{config.fold}")

    found: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for row in rows:
        subject = volumes[row].subject
        found["test" if subject in held_out else ("train", "validation")[place[subject]]].append(row)
    result = Split(**{name: tuple(numbers) for name, numbers in found.items()})
    check_disjoint(result, volumes)
    if classes is not None:
        _check_classes(result, volumes, classes, held_out_lacks=config.by is not None)
    return result


def sites(
    volumes: Sequence[Volume],
    classes: Sequence[str] | None,
    targets: Sequence[float | None] | np.ndarray | None = None,
) -> list[str | None]:
    """Return the sites of the subjects that `split` divides, sorted; None, the last, of those without one.

    Raises:
        CohortError: as `split`, for labels and targets.
    """
    return _sorted(site_of(volumes, _divided(volumes, classes, targets)).values())


def site_of(volumes: Sequence[Volume], rows: Sequence[int]) -> dict[str, str | None]:
    """Return the site of each subject of these rows: that of most of its scans."""
    return {
        subject: _usual(volumes[row].site for row in own) for subject, own in _scans(volumes, rows).items()
    }


def _sorted(names: Iterable[str | None]) -> list[str | None]:
    return sorted(set(names), key=lambda name: (name is None, name or ""))


def _divided(
    volumes: Sequence[Volume],
    classes: Sequence[str] | None,
    targets: Sequence[float | None] | np.ndarray | None,
) -> list[int]:
    """Return the rows that have a label or a target.

    Raises:
        CohortError: none has, or the classes are not those of the set.
    """
    if classes is not None:
        _check_labels(volumes, classes)
    rows = [row for row, volume in enumerate(volumes) if classes is None or volume.label in classes]
    rows = rows if targets is None else [row for row in rows if _known(targets[row]) is not None]
    if not rows:
        raise CohortError(
            f"none of {len(volumes)} volumes has a target." if len(volumes) else "there are no volumes.",
            cure="Import the images again with a table that has it for some of them.",
        )
    return rows


def _scans(volumes: Sequence[Volume], rows: Sequence[int]) -> dict[str, list[int]]:
    """Return the rows of each subject."""
    scans: dict[str, list[int]] = {}
    for row in rows:
        scans.setdefault(volumes[row].subject, []).append(row)
    return scans


def _at_site(
    volumes: Sequence[Volume], rows: Sequence[int], strata: Mapping[str, Sequence[str]], config: SplitConfig
) -> set[str]:
    """Return the subjects of the site whose turn it is."""
    home = site_of(volumes, rows)
    there = _sorted(home.values())
    if len(there) != config.folds:
        named = ", ".join(site or "(none)" for site in there[:10]) + ("" if len(there) <= 10 else ", ...")
        raise CohortError(
            f"{config.folds} folds by site, and the subjects are of {len(there)}: {named}.",
            cure=f"Set data.split.folds={len(there)}, or use cingulum crossval --by site."
            if len(there) > 1
            else "Import with a table that has a column site, or leave out data.split.by.",
        )
    held_out = {subject for subject, site in home.items() if site == there[config.fold]}
    for label, subjects in strata.items():
        if held_out.issuperset(subjects):
            raise CohortError(
                f"fold {config.fold} holds out {there[config.fold] or 'those without a site'}, where all "
                f"subjects of label {label!r} are.",
                cure="Leave the label out (data.classes), or divide without data.split.by.",
            )
    return held_out


def check_disjoint(split: Split, volumes: Sequence[Volume]) -> None:
    """Check that no subject is in two splits.

    Raises:
        CohortError: a subject is in two; the message names it.
    """
    seen: dict[str, str] = {}
    for name in ("train", "validation", "test"):
        for row in getattr(split, name):
            subject = volumes[row].subject
            if seen.setdefault(subject, name) != name:
                raise CohortError(
                    f"subject {subject!r} is in two splits, {seen[subject]} and {name}.",
                    cure="All scans of a subject belong in one split; `splits.split` ensures this.",
                )


def _check_labels(volumes: Sequence[Volume], labels: Sequence[str]) -> None:
    there = sorted({volume.label for volume in volumes if volume.label is not None})
    if not there:
        raise CohortError(
            "no volume of the shard set has a label.", cure="Import it again with --label COLUMN."
        )
    for label in labels:
        if label not in there:
            close = difflib.get_close_matches(label, there, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise CohortError(
                f"no volume has the label {label!r}.{hint}", cure=f"The set has: {', '.join(there)}."
            )
    if len(set(labels)) < max(2, len(labels)):
        raise CohortError(
            f"classes {list(labels)}: at least two different ones are needed.",
            cure=f"The set has: {', '.join(there)}. Choose with data.classes.",
        )


def _by_label(
    volumes: Sequence[Volume], scans: Mapping[str, Sequence[int]], classes: Sequence[str]
) -> dict[str, list[str]]:
    """Group subjects by class: the label that most of their scans have."""
    strata: dict[str, list[str]] = {label: [] for label in classes}
    for subject, rows in scans.items():
        counts = collections.Counter(volumes[row].label for row in rows)
        strata[max(classes, key=lambda label: counts[label])].append(subject)
    return strata


def _check_enough(strata: Mapping[str, Sequence[str]], config: SplitConfig, labelled: bool) -> None:
    split_count = 1 + (config.validation > 0) + (config.folds is not None or config.test > 0)
    needed = split_count if config.by else max(split_count, config.folds or 0)
    for label, subjects in strata.items():
        if len(subjects) < needed:
            what = f"{config.folds} folds" if config.folds and not config.by else f"{split_count} splits"
            who = f"label {label!r} has" if labelled else "there are"
            leave_out = "Leave the label out (data.classes), add" if labelled else "Add"
            raise CohortError(
                f"{who} {len(subjects)} subjects, too few for {what} that each need one.",
                cure=f"{leave_out} subjects, or make fewer splits (data.split).",
            )


def _traits(
    volumes: Sequence[Volume],
    scans: Mapping[str, Sequence[int]],
    config: SplitConfig,
    classes: Sequence[str] | None,
    targets: Sequence[float | None] | np.ndarray | None,
) -> dict[str, list[Hashable]]:
    """Return what is to be balanced besides the classes, for each subject."""
    columns: list[Mapping[str, Hashable]] = []
    if "label" in config.stratify and targets is not None:
        means = {
            s: math.fsum(_known(targets[row]) or 0.0 for row in rows) / len(rows) for s, rows in scans.items()
        }
        columns.append(
            bands(means, max(1, min(_TARGET_BANDS, len(scans) // (5 if config.by else config.folds or 5))))
        )
    elif "label" in config.stratify and classes is None:
        columns.append({s: _usual(volumes[row].label for row in rows) for s, rows in scans.items()})
    for trait in ("site", "sex"):
        if trait in config.stratify:
            columns.append(
                {s: _usual(getattr(volumes[row], trait) for row in rows) for s, rows in scans.items()}
            )
    if "age" in config.stratify:
        ages = {s: [_known(volumes[row].age) for row in rows] for s, rows in scans.items()}
        first = {s: min((age for age in those if age is not None), default=None) for s, those in ages.items()}
        columns.append(bands(first, AGE_BANDS))
    return {subject: [column[subject] for column in columns] for subject in scans}


def _usual(values: Iterable[str | None]) -> str | None:
    """Return the value that most scans have; None where none has any."""
    counts = collections.Counter(sorted(value for value in values if value is not None))
    return max(counts, key=counts.__getitem__, default=None)


def _known(value: float | None) -> float | None:
    """Return a finite number, or None."""
    return float(value) if value is not None and math.isfinite(value) else None


def _held_out(
    strata: Sequence[Sequence[str]], traits: Mapping[str, Sequence[Hashable]], config: SplitConfig
) -> set[str]:
    """Return the test subjects."""
    sizes: list[list[int]] = []
    if config.folds is None:
        for subjects in strata:
            # Small classes: one subject is left for training, one for validation.
            most = len(subjects) - 1 - (config.validation > 0)
            taken = min(_count(config.test, len(subjects)), most)
            sizes.append([len(subjects) - taken, taken])
    else:
        # Like cards, going on from stratum to stratum, so that folds differ by one subject at most.
        dealt = 0
        for subjects in strata:
            turns = [(dealt + turn) % config.folds for turn in range(len(subjects))]
            sizes.append([turns.count(fold) for fold in range(config.folds)])
            dealt += len(subjects)
    wanted = 1 if config.folds is None else config.fold
    place = deal(strata, sizes, traits, f"{config.seed}/test")
    return {subject for subject, part in place.items() if part == wanted}


def _count(share: float, subjects: int) -> int:
    """Return the number of subjects of a share: rounded, but one at least unless the share is 0."""
    return max(1, math.floor(share * subjects + 0.5)) if share > 0 else 0


def _check_classes(
    result: Split, volumes: Sequence[Volume], labels: Sequence[str], *, held_out_lacks: bool
) -> None:
    for name in ("train", "validation") if held_out_lacks else ("train", "validation", "test"):
        rows = getattr(result, name)
        missing = set(labels) - {volumes[row].label for row in rows}
        if missing and (rows or name == "train"):
            raise CohortError(
                f"the {name} split has no volume with label {min(missing)!r}.",
                cure="Add subjects of that label, change data.split, or leave the label out (data.classes).",
            )


def bands(values: Mapping[str, float | None], count: int) -> dict[str, int | None]:
    """Return which of `count` equally large bands each subject's value lies in; None where it is unknown.

    Equal values are in the same band.
    """
    known = sorted(value for value in values.values() if value is not None)
    # A band begins at the value of its first subject.
    edges = sorted({known[len(known) * band // count] for band in range(1, count)}) if known else []
    return {
        subject: None if value is None else int(np.searchsorted(edges, value, side="right"))
        for subject, value in values.items()
    }
