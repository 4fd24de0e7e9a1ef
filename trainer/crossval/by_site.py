"""Figures of each site, and whether sites differ: a network that holds at one scanner may fail at another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trainer.crossval.held_out import HeldOut
from trainer.metrics.segmentation import mean_dice
from trainer.metrics.subgroups import UNKNOWN
from trainer.metrics.subjects import LEAST, Subjects

# Sites drawn anew among subjects, so often.
_DRAWN = 1999
# What of a subject is compared between sites, by task.
COMPARED = {"classification": "accuracy", "regression": "absolute error", "segmentation": "dice"}


def at(scans: HeldOut, places: np.ndarray) -> HeldOut:
    """Return the scans at some places of the arrays."""
    return replace(
        scans,
        rows=scans.rows[places],
        subjects=scans.subjects[places],
        true=scans.true[places],
        values=scans.values[:, places],
        folds=scans.folds[:, places],
        lines=tuple(tuple(of_seed[place] for place in places.tolist()) for of_seed in scans.lines),
    )


def parts(sites: Sequence[str | None]) -> dict[str, np.ndarray]:
    """Return the places of the scans of each site, sorted by name; those without one come last."""
    named = np.array([site or UNKNOWN for site in sites])
    order = sorted(set(named.tolist()), key=lambda site: (site == UNKNOWN, site))
    return {site: np.flatnonzero(named == site) for site in order}


def differ(scans: HeldOut, sites: Sequence[str | None]) -> dict[str, Any]:
    """Return how often sites at random would differ as much: `figure` (see `COMPARED`) and `p`.

    A subject is worth the mean over its scans and all seeds, less the mean of its class. The statistic is the
    variance between sites, each weighing as many subjects as it has; subjects exchange their sites within a
    class. Sites with fewer than `LEAST` subjects, and subjects of no site, are left out; p is None where
    fewer than two remain, or each class is at one site only.

    Args:
        scans: held out.
        sites: of each, None where unknown.
    """
    subjects = Subjects.named(scans.subjects.tolist())
    first = np.unique(subjects.home, return_index=True)[1]
    each = _scores(scans)
    finite = np.isfinite(each)
    counts = subjects.sums(finite.astype(np.float64))
    scores = subjects.sums(np.where(finite, each, 0.0)) / np.maximum(counts, 1)
    named = np.array([site or UNKNOWN for site in sites])[first]
    names, sizes = np.unique(named[counts > 0], return_counts=True)
    kept = (counts > 0) & np.isin(named, names[(sizes >= LEAST) & (names != UNKNOWN)])
    scores, numbers = scores[kept], np.unique(named[kept], return_inverse=True)[1]
    classes = scans.true[first][kept] if scans.task == "classification" else np.zeros(len(scores))
    strata = [np.flatnonzero(classes == k) for k in np.unique(classes)]
    answer: dict[str, Any] = {"figure": COMPARED[scans.task], "p": None}
    if not any(len(set(numbers[inside].tolist())) > 1 for inside in strata):
        return answer
    for inside in strata:
        scores[inside] -= scores[inside].mean()
    random = np.random.default_rng(0)
    seen, as_large = _between(scores, numbers), 0
    for _ in range(_DRAWN):
        drawn = numbers.copy()
        for inside in strata:
            drawn[inside] = random.permutation(numbers[inside])
        as_large += _between(scores, drawn) >= seen - 1e-12
    return {**answer, "p": (1 + as_large) / (1 + _DRAWN)}


def _scores(scans: HeldOut) -> np.ndarray:
    """Return how good or bad each scan's predictions are, mean over seeds: float64 (N,)."""
    if scans.task == "classification":
        return np.asarray(np.mean([values.argmax(axis=1) == scans.true for values in scans.values], axis=0))
    if scans.task == "regression":
        return np.asarray(np.abs(scans.values[:, :, 0] - scans.true).mean(axis=0))
    each = [
        mean_dice({n: values[:, k] for k, n in enumerate(scans.columns) if n.startswith("dice_")})
        for values in scans.values
    ]
    return np.asarray(np.mean(each, axis=0))


def _between(scores: np.ndarray, numbers: np.ndarray) -> float:
    """Return the variance between groups, each weighing as many as it has."""
    counts = np.bincount(numbers)
    means = np.bincount(numbers, scores) / np.maximum(counts, 1)
    return float((counts * (means - scores.mean()) ** 2).sum() / len(scores))
