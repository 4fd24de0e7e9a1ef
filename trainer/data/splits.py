"""Which subjects train, which choose the best epoch, which are held out: by subject, stratified by label.

A subject's place depends on its name and the seed, not on the order of the volumes, so importing the same
cohort in another order gives the same splits. All scans of a subject stay together.
"""

from __future__ import annotations

import collections
import difflib
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.config import SplitConfig
from trainer.data.index import Volume
from trainer.errors import CohortError


@dataclass(frozen=True)
class Split:
    """Rows of `ShardSet.volumes`, ascending, for each purpose."""

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]


def split(volumes: Sequence[Volume], labels: Sequence[str], config: SplitConfig) -> Split:
    """Divide the volumes whose label is one of `labels`.

    A subject whose scans have different labels counts, for the stratification, as the one it has most often.

    Args:
        volumes: of the shard set.
        labels: the classes to tell apart; volumes with another label, or none, are left out.
        config: shares, folds, seed.

    Raises:
        CohortError: fewer than two classes, a class that no volume has, or a class with too few subjects to
            be in every split.
    """
    _check_labels(volumes, labels)
    strata = _subjects_by_label(volumes, labels)
    wanted = 1 + (config.validation > 0) + (config.folds is not None or config.test > 0)
    needed = max(wanted, config.folds or 0)
    for label, subjects in strata.items():
        if len(subjects) < needed:
            what = f"{config.folds} folds" if config.folds else f"{wanted} splits"
            raise CohortError(
                f"label {label!r} has {len(subjects)} subjects, too few for {what} that each need one.",
                cure="Leave the label out (data.classes), add subjects, or make fewer splits (data.split).",
            )
    place = {}
    dealt = 0
    for subjects in strata.values():
        held_out = _held_out(subjects, config, dealt)
        dealt += len(subjects)
        rest = _by_hash([s for s in subjects if s not in held_out], f"{config.seed}/validation/{config.fold}")
        chosen = set(rest[: min(_count(config.validation, len(subjects)), len(rest) - 1)])
        for subject in subjects:
            place[subject] = "test" if subject in held_out else "validation" if subject in chosen else "train"
    rows: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for row, volume in enumerate(volumes):
        if volume.label in labels:
            rows[place[volume.subject]].append(row)
    result = Split(**{name: tuple(numbers) for name, numbers in rows.items()})
    check_disjoint(result, volumes)
    _check_classes(result, volumes, labels)
    return result


def check_disjoint(split: Split, volumes: Sequence[Volume]) -> None:
    """Make sure that no subject is in two splits.

    Raises:
        CohortError: one is; it is named.
    """
    seen: dict[str, str] = {}
    for name in ("train", "validation", "test"):
        for row in getattr(split, name):
            subject = volumes[row].subject
            if seen.setdefault(subject, name) != name:
                raise CohortError(
                    f"subject {subject!r} is in two splits, {seen[subject]} and {name}.",
                    cure="All scans of a subject belong in one split; trainer.data.splits.split sees to it.",
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
            f"classes {list(labels)}: at least two different ones are needed to tell apart.",
            cure=f"The set has: {', '.join(there)}. Choose with data.classes.",
        )


def _subjects_by_label(volumes: Sequence[Volume], labels: Sequence[str]) -> dict[str, list[str]]:
    counts: dict[str, collections.Counter[str]] = {}
    for volume in volumes:
        if volume.label is not None and volume.label in labels:
            counts.setdefault(volume.subject, collections.Counter())[volume.label] += 1
    strata: dict[str, list[str]] = {label: [] for label in labels}
    for subject in counts:
        most = max(labels, key=lambda label: counts[subject][label])
        strata[most].append(subject)
    return strata


def _held_out(subjects: list[str], config: SplitConfig, dealt: int) -> set[str]:
    """The test subjects of one stratum; `dealt` subjects of other strata came before."""
    mixed = _by_hash(subjects, f"{config.seed}/test")
    if config.folds is None:
        # Small classes: one subject is left for training, one for validation.
        most = len(subjects) - 1 - (config.validation > 0)
        return set(mixed[: min(_count(config.test, len(subjects)), most)])
    # Dealt like cards, going on from stratum to stratum, so that folds differ by one subject at most.
    return {s for i, s in enumerate(mixed) if (dealt + i) % config.folds == config.fold}


def _by_hash(subjects: list[str], salt: str) -> list[str]:
    return sorted(subjects, key=lambda subject: hashlib.sha256(f"{salt}/{subject}".encode()).digest())


def _count(share: float, subjects: int) -> int:
    """Subjects that a share comes to: rounded, but one at least unless the share is 0."""
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
