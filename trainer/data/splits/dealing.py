"""Distribute subjects over parts so that the parts are alike in label, site, sex and age.

A subject has several traits at once, and few subjects share all of them, so that dividing every combination
by itself would leave most to chance. Instead subjects are dealt like cards, in an order that a hash decides,
and then exchanged in pairs while that makes the parts more alike: while the squared differences fall between
how many of each level (such as women) a part has and how many its size entitles it to. Levels are counted in
each stratum (label) and over all. An exchange is within a stratum, so that the label always comes first.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
