"""Participants: a pure function of the cohort's seed and the subject's number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DIAGNOSES = ("AD", "NC", "sMCI", "pMCI")
"""Alzheimer's disease, normal cognition, mild impairment that stays stable or that progresses to AD."""

SITES = ("north", "south", "west")

SITE_CHOICES = ("fair", "telling")
"""Who is scanned where: anybody anywhere, or most of a group at a site of their own, which then tells it."""

_AT_THEIR_OWN = 0.8

# New purposes come last: a stream is known by its place.
_STREAMS = ("person", "disease", "anatomy", "image", "T2w")


@dataclass(frozen=True)
class Person:
    """One synthetic participant; `name` is the BIDS label with its prefix, such as `sub-0007`."""

    number: int
    name: str
    age: float
    sex: str
    diagnosis: str
    site: str


def stream(seed: int, number: int, purpose: str) -> np.random.Generator:
    """Return the random numbers of one subject for one purpose: person, disease, anatomy, image or T2w.

    No two subjects share a stream, nor two purposes of one subject; the diagnosis has no part in it, so that
    without a disease effect nothing in an image tells the groups apart.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number, _STREAMS.index(purpose))))


def draw(seed: int, number: int, groups: Sequence[str] = DIAGNOSES, sites: str = "fair") -> Person:
    """Return person `number` (from 0) of the cohort; diagnoses rotate, so groups differ by at most one.

    Args:
        seed: of the cohort.
        number: of the person.
        groups: diagnoses that take part.
        sites: one of `SITE_CHOICES`.
    """
    rng = stream(seed, number, "person")
    age = float(np.clip(rng.normal(73.0, 7.0), 55.0, 90.0))
    sex, site = "FM"[rng.integers(2)], SITES[rng.integers(len(SITES))]
    if sites == "telling" and rng.random() < _AT_THEIR_OWN:
        site = SITES[number % len(groups) % len(SITES)]
    return Person(
        number=number,
        name=f"sub-{number + 1:04d}",
        age=round(age, 1),
        sex=sex,
        site=site,
        diagnosis=groups[number % len(groups)],
    )
