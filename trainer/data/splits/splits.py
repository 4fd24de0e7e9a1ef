"""Split subjects into training, validation and test: by subject, and balanced.

A subject's place depends on the names and traits of the cohort and on the seed, not on the order of the
volumes, so importing the same cohort in another order gives the same splits. All scans of a subject stay
together.
"""

from __future__ import annotations

import collections
import difflib
import hashlib
import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.config import SplitConfig
from trainer.data.shards.index import Volume
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
    (`stratification.deal`); who has none counts as a level of its own. A subject's scans stay together: it
    counts as the label and the site that it has most often, and the age of its first scan.

    Args:
        volumes: of the shard set.
        classes: the classes to tell apart; volumes with another label, or none, are left out. None for
            regression and segmentation: all volumes are divided, whatever their label.
        config: shares, folds, seed, what to stratify by.
        targets: for regression, the target of each volume, by row; volumes with None or NaN are left out.
            Bands of the target take the label's part in `config.stratify`.

    Raises:
        CohortError: no volume to divide, too few subjects for the splits; fewer than two classes, or a class
            that no volume has, or that has too few subjects to be in every split.
    """
    if classes is not None:
        _check_labels(volumes, classes)
    rows = [row for row, volume in enumerate(volumes) if classes is None or volume.label in classes]
    if targets is not None:
        rows = [row for row in rows if _known(targets[row]) is not None]
    if not rows:
        raise CohortError(
            f"none of {len(volumes)} volumes has a target." if len(volumes) else "there are no volumes.",
            cure="Import the images again with a table that has it for some of them.",
        )
    scans: dict[str, list[int]] = {}
    for row in rows:
        scans.setdefault(volumes[row].subject, []).append(row)
    strata = {"all subjects": list(scans)} if classes is None else _by_label(volumes, scans, classes)
    _check_enough(strata, config, classes is not None)
    traits = _traits(volumes, scans, config, classes, targets)

    held_out = _held_out(list(strata.values()), traits, config)
    rest = [[s for s in subjects if s not in held_out] for subjects in strata.values()]
    sizes = []
    for subjects, remaining in zip(strata.values(), rest, strict=True):
        taken = min(_count(config.validation, len(subjects)), len(remaining) - 1)
        sizes.append([len(remaining) - taken, taken])
    place = deal(rest, sizes, traits, f"{config.seed}/validation/{config.fold}")

    found: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for row in rows:
        subject = volumes[row].subject
        found["test" if subject in held_out else ("train", "validation")[place[subject]]].append(row)
    result = Split(**{name: tuple(numbers) for name, numbers in found.items()})
    check_disjoint(result, volumes)
    if classes is not None:
        _check_classes(result, volumes, classes)
    return result


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
    needed = max(split_count, config.folds or 0)
    for label, subjects in strata.items():
        if len(subjects) < needed:
            what = f"{config.folds} folds" if config.folds else f"{split_count} splits"
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
        columns.append(bands(means, max(1, min(_TARGET_BANDS, len(scans) // (config.folds or 5)))))
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


def _check_classes(result: Split, volumes: Sequence[Volume], labels: Sequence[str]) -> None:
    for name in ("train", "validation", "test"):
        rows = getattr(result, name)
        missing = set(labels) - {volumes[row].label for row in rows}
        if missing and (rows or name == "train"):
            raise CohortError(
                f"the {name} split has no volume with label {min(missing)!r}.",
                cure="Add subjects of that label, change data.split, or leave the label out (data.classes).",
            )


# Distribute subjects over parts so that the parts are alike in label, site, sex and age.
#
# A subject has several traits at once, and few subjects share all of them, so that dividing every
# combination by itself would leave most to chance. Instead subjects are dealt like cards, in an order that a
# hash decides, and then exchanged in pairs while that makes the parts more alike: while the squared
# differences fall between how many of each level (such as women) a part has and how many its size entitles
# it to. Levels are counted in each stratum (label) and over all. An exchange is within a stratum, so that
# the label always comes first.


# All arithmetic is on whole numbers, counts in 2^-20, so that every machine comes to the same exchanges.
_ONE = 1 << 20

# Of a level in its stratum, and over all: alike, they would let an imbalance in one stratum stand because
# another stratum makes up for it.
_WEIGHTS = np.array([2, 1])

# Exchanges are sought among so many kinds of subjects on either side, those whose leaving helps most.
_MOST_TRIED = 200


def deal(
    strata: Sequence[Sequence[str]],
    sizes: Sequence[Sequence[int]],
    traits: Mapping[str, Sequence[Hashable]],
    salt: str,
) -> dict[str, int]:
    """Return the part of each subject: a pure function of the subjects' names, their traits and `salt`.

    Args:
        strata: names of subjects; each subject is in one stratum.
        sizes: for each stratum, how many of its subjects each part takes; they add up to the stratum.
        traits: of each subject, always equally many, such as (site, sex, age band).
        salt: decides between subjects that are otherwise alike.

    Returns:
        Part number, from 0, by subject.
    """
    parts = range(len(sizes[0]))
    place: dict[str, int] = {}
    for subjects, counts in zip(strata, sizes, strict=True):
        cards = [part for part in parts for _ in range(counts[part])]
        place.update(zip(by_hash(subjects, salt), cards, strict=True))
    kinds, lacking = _kinds(strata, sizes, traits, place)
    better = True
    while better:
        better = False
        for (first, second), kind in itertools.product(itertools.combinations(parts, 2), kinds):
            while _exchange(kind, lacking, first, second, place):
                better = True
    return place


@dataclass(frozen=True)
class _Kinds:
    """Subjects of one stratum by kind: those of a kind have the same traits and are interchangeable.

    Attributes:
        keys: (kinds, 2 * traits) int64, the levels of each kind: rows of `lacking`.
        members: by kind and part, the names of its subjects.
    """

    keys: np.ndarray
    members: list[list[list[str]]]


def _kinds(
    strata: Sequence[Sequence[str]],
    sizes: Sequence[Sequence[int]],
    traits: Mapping[str, Sequence[Hashable]],
    place: Mapping[str, int],
) -> tuple[list[_Kinds], np.ndarray]:
    """Return the kinds of each stratum, and what each part lacks of each level: (levels, parts) int64."""
    parts = len(sizes[0])
    numbers: dict[tuple[Any, ...], int] = {}
    lacking: list[np.ndarray] = []
    kinds = []
    ordered = list(place)  # by hash, so that the order of the caller's lists has no say
    for stratum, subjects in enumerate(strata):
        there = set(subjects)
        members: dict[tuple[int, ...], list[list[str]]] = {}
        for subject in (s for s in ordered if s in there):
            keys = []
            for trait in enumerate(traits[subject]):
                for key in ((stratum, *trait), (None, *trait)):
                    if key not in numbers:
                        numbers[key] = len(lacking)
                        lacking.append(np.zeros(parts, np.int64))
                    keys.append(numbers[key])
                    lacking[numbers[key]] += np.array(sizes[stratum]) * _ONE // len(subjects)
                    lacking[numbers[key]][place[subject]] -= _ONE
            members.setdefault(tuple(keys), [[] for _ in range(parts)])[place[subject]].append(subject)
        if members:
            kinds.append(_Kinds(np.array(list(members), np.int64), list(members.values())))
    return kinds, np.array(lacking, np.int64).reshape(-1, parts)


def _exchange(kinds: _Kinds, lacking: np.ndarray, first: int, second: int, place: dict[str, int]) -> bool:
    """Make the exchange between two parts that helps most; False where none helps."""
    weights = np.tile(_WEIGHTS, kinds.keys.shape[1] // 2)
    # What one of each kind is worth to the first part, more than to the second.
    gain = (lacking[kinds.keys, first] - lacking[kinds.keys, second]) @ weights
    leaving = [k for k in np.argsort(gain, kind="stable").tolist() if kinds.members[k][first]]
    coming = [k for k in np.argsort(-gain, kind="stable").tolist() if kinds.members[k][second]]
    leaving, coming = leaving[:_MOST_TRIED], coming[:_MOST_TRIED]
    if not leaving or not coming:
        return False
    different = (kinds.keys[leaving][:, None] != kinds.keys[coming][None, :]) @ weights
    # Half the change of the sum of squares.
    change = gain[leaving][:, None] - gain[coming][None, :] + 2 * _ONE * different
    best = np.unravel_index(int(change.argmin()), change.shape)
    if change[best] >= 0:
        return False
    away, here = leaving[best[0]], coming[best[1]]
    for kind, old, new in ((away, first, second), (here, second, first)):
        subject = kinds.members[kind][old].pop()
        kinds.members[kind][new].append(subject)
        place[subject] = new
        lacking[kinds.keys[kind], old] += _ONE
        lacking[kinds.keys[kind], new] -= _ONE
    return True


def by_hash(subjects: Iterable[str], salt: str) -> list[str]:
    """Return the subjects in an order that depends on their names and `salt` alone."""
    return sorted(subjects, key=lambda subject: hashlib.sha256(f"{salt}/{subject}".encode()).digest())


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
