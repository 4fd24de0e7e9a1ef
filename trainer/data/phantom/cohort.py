"""Make a whole cohort of phantoms in one folder; stopped and called again, it resumes."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainer import atomic
from trainer.data.phantom import bids, disease, image, people, template
from trainer.data.phantom.disease import DEFAULT, PATTERNS
from trainer.data.phantom.image import CONTRASTS
from trainer.data.phantom.people import DIAGNOSES, Person
from trainer.data.phantom.template import Template
from trainer.data.workers import default_workers, held_back, in_order
from trainer.errors import InputError

SMALLEST, LARGEST = 16, 256
"""Voxels along an edge: below, a ventricle is thinner than a voxel; above, the template
has no more detail.
"""

LARGEST_GAP = 5.0
"""Beyond it ventricles would fill the head."""


@dataclass(frozen=True)
class Outcome:
    """Result of `make_cohort`: subjects in the cohort, and how many of them were made in this call."""

    subjects: int
    made: int


def make_cohort(
    out: str | os.PathLike[str],
    subjects: int,
    size: int = 96,
    gap: float = 1.5,
    seed: int = 0,
    workers: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    groups: Sequence[str] = DIAGNOSES,
    contrasts: Sequence[str] = ("T1w",),
    pattern: str = DEFAULT,
    sites: str = "fair",
) -> Outcome:
    """Write a BIDS folder of synthetic brains; complete it where an earlier call was stopped.

    The files depend on subjects, size, gap, seed, groups, contrasts and pattern, and on nothing else; a
    further contrast leaves the other images as they are. `participants.tsv` comes last, so a cohort cut
    short is never taken for a whole one.

    Args:
        out: folder to make or to complete.
        subjects: how many people; diagnoses rotate through `groups`.
        size: voxels along each edge, 16 to 256; a voxel is 212/size mm.
        gap: scale of the disease effect, 0 (none) to 5; at 1.5 a linear model on tissue volumes tells AD from
            NC with an AUC near 0.8.
        seed: 0 or more.
        workers: processes; default: the cores this process may use.
        on_progress: called with (subjects done, subjects) once at the start and after each subject.
        groups: which of `people.DIAGNOSES` take part.
        contrasts: images of each person: T1w, or T1w and T2w.
        pattern: where age and disease take tissue: one of `PATTERNS`.
        sites: who is scanned where: one of `people.SITE_CHOICES`.

    Raises:
        InputError: an impossible argument; a folder that holds something else or cannot be written.
        CingulumError: the template is missing, or a worker died.
    """
    folder = Path(out)
    workers = default_workers() if workers is None else workers
    _check(subjects, size, gap, seed, workers, groups)
    _check_contrasts(contrasts)
    if pattern not in PATTERNS:
        raise InputError(f"unknown --disease {pattern!r}", cure=f"give --disease {' or '.join(PATTERNS)}")
    if sites not in people.SITE_CHOICES:
        raise InputError(
            f"unknown --sites {sites!r}", cure=f"give --sites {' or '.join(people.SITE_CHOICES)}"
        )
    parameters: dict[str, Any] = {
        "recipe": bids.RECIPE,
        "subjects": int(subjects),
        "size": int(size),
        "gap": float(gap),
        "seed": int(seed),
        "groups": list(groups),
        "contrasts": list(contrasts),
        "disease": pattern,
        **({"sites": sites} if sites != "fair" else {}),
    }
    claimed = _claimed(folder, parameters)
    participants = [people.draw(seed, number, groups, sites) for number in range(subjects)]
    missing = [person for person in participants if not _is_made(folder, person, contrasts)]
    if on_progress:
        on_progress(subjects - len(missing), subjects)
    if claimed and not missing and (folder / "participants.tsv").is_file():
        return Outcome(subjects, 0)

    average = template.build(size)
    bids.describe(folder, parameters)
    bids.write_region(folder, average, disease.region_of_disease(average, pattern))
    truths = [disease.truth(person, seed, gap, pattern) for person in participants]
    bids.write_truth(folder, participants, truths, PATTERNS[pattern].regions)
    if missing:
        make = partial(_make, folder, average, seed, gap, tuple(contrasts), pattern)
        made = in_order(make, missing, min(workers, len(missing)))
        for done, _ in enumerate(made, subjects - len(missing) + 1):
            if on_progress:
                on_progress(done, subjects)
    bids.write_participants(folder, participants)
    return Outcome(subjects, len(missing))


def _make(
    out: Path,
    average: Template,
    seed: int,
    gap: float,
    contrasts: tuple[str, ...],
    pattern: str,
    person: Person,
) -> None:
    phantom = image.make(average, person, seed, gap, contrasts, pattern)
    with held_back(signal.SIGTERM):  # what ends a worker waits until the file is whole
        bids.write_subject(out, person, phantom, average.affine)


def _check(subjects: int, size: int, gap: float, seed: int, workers: int, groups: Sequence[str]) -> None:
    if subjects < 1:
        raise InputError(f"--subjects {subjects} is less than 1", cure="give --subjects 1 or more")
    if not SMALLEST <= size <= LARGEST:
        raise InputError(
            f"--size {size} is out of range", cure=f"give a --size of {SMALLEST} to {LARGEST} voxels"
        )
    if not (math.isfinite(gap) and 0 <= gap <= LARGEST_GAP):
        raise InputError(
            f"--gap {gap:g} is out of range",
            cure=f"give a --gap of 0 (no difference) to {LARGEST_GAP:g}; 1.5 is usual",
        )
    if seed < 0:
        raise InputError(f"--seed {seed} is negative", cure="give a --seed of 0 or more")
    if workers < 1:
        raise InputError(
            f"--workers {workers} is less than 1", cure="give --workers 1 or more, or leave it out"
        )
    unknown = [group for group in groups if group not in DIAGNOSES]
    if unknown or not groups or len(set(groups)) < len(groups):
        what = f"unknown group {unknown[0]!r}" if unknown else "groups are missing or given twice"
        raise InputError(what, cure=f"give --groups as one or more of {','.join(DIAGNOSES)}, each once")


def _check_contrasts(contrasts: Sequence[str]) -> None:
    unknown = [contrast for contrast in contrasts if contrast not in CONTRASTS]
    if unknown or tuple(contrasts[:1]) != CONTRASTS[:1] or len(set(contrasts)) < len(contrasts):
        what = (
            f"unknown contrast {unknown[0]!r}"
            if unknown
            else "the first contrast is not T1w, or one is given twice"
        )
        raise InputError(what, cure="give --contrasts T1w or --contrasts T1w,T2w")


def _claimed(folder: Path, parameters: dict[str, Any]) -> bool:
    """Return whether the folder already holds this cohort, or a part of it; False where it is free.

    Raises:
        InputError: it holds something else, or is no folder.
    """
    try:
        # A first write that was cut short leaves its temporary file, which is no content.
        begun = atomic.beside(folder / "dataset_description.json")
        content = [entry for entry in folder.iterdir() if entry != begun]
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InputError(
            f"cannot use {folder} as a folder: {error.strerror}", cure="choose another OUT"
        ) from error
    if not content:
        return False
    theirs = bids.parameters_of(folder)
    if theirs is None:
        raise InputError(
            f"{folder} is not empty and does not hold a phantom cohort",
            cure="choose a new folder, or empty this one",
        )
    if theirs != parameters:
        different = ", ".join(
            f"{key} {theirs.get(key)} there, {parameters.get(key)} here"
            for key in sorted(theirs.keys() | parameters)
            if theirs.get(key) != parameters.get(key)
        )
        raise InputError(
            f"{folder} holds a phantom cohort made with other parameters ({different})",
            cure="choose a new folder, or remove this one",
        )
    return True


def _is_made(folder: Path, person: Person, contrasts: Sequence[str]) -> bool:
    return all((folder / path).is_file() for path in bids.subject_files(person, contrasts).values())
