"""On phantoms: how much of a map lies where the disease really changed the brain.

The measure: the share of a map's absolute values, within the brain, that falls on changed voxels. A map that
knows nothing, the same everywhere, has the share of the brain that these voxels take: chance.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from trainer.data.images import reading
from trainer.data.importing.examination import source_sha256
from trainer.data.phantom import bids
from trainer.errors import InputError
from trainer.metrics.subjects import Subjects, mean_left_out

CHANGED_MM = 0.5
"""Voxels that the disease moved by more than this count as changed."""

_BRAIN_SHARE = 0.5  # of a voxel filled by grey matter, white matter or CSF
_SUBJECT = re.compile(r"sub-[A-Za-z0-9]+")


@dataclass(frozen=True)
class PhantomTruth:
    """One phantom's answer sheet on the grid of a stored volume.

    Attributes:
        brain: (D, H, W) bool.
        changed: (D, H, W) bool, within the brain, where the disease moved more than `CHANGED_MM`; of a
            subject of NC, where AD would have.
    """

    brain: np.ndarray
    changed: np.ndarray

    @property
    def chance(self) -> float:
        """Share of the brain that is changed: what a map that is the same everywhere has."""
        return float(self.changed.sum() / self.brain.sum())

    def share(self, values: np.ndarray) -> float | None:
        """Return share of a map (D, H, W) on changed voxels; None for a map that is 0 in the whole brain."""
        size = np.abs(values.astype(np.float64))
        total = size[self.brain].sum()
        return float(size[self.changed].sum() / total) if total > 0 else None


def check_cohort(cohort: Path) -> None:
    """Check that a folder is a phantom cohort with displacement maps.

    Raises:
        InputError: not a phantom cohort, or without displacement maps.
    """
    if bids.parameters_of(cohort) is None:
        raise InputError(
            f"{cohort}: is not a phantom cohort; what the disease changed is known of phantoms only.",
            cure="Give the folder that `cingulum phantom` made.",
            path=cohort,
        )
    if not any(cohort.glob(bids.displacement_file("sub-*"))):
        raise InputError(
            f"{cohort}: has no maps of what the disease moved: it was made by an older cingulum.",
            cure="Run its `cingulum phantom` command again (its README says it): the maps are added.",
            path=cohort,
        )


def check_image(cohort: Path, source: str, sha256: str) -> None:
    """Check that a volume was made from the cohort's own image, whose space its maps share, if it is there.

    Raises:
        InputError: it was made from another file of that name, such as the subject's raw scan.
    """
    named = _SUBJECT.match(Path(source).name)
    own = cohort / f"{named[0]}/anat/{Path(source).name}" if named else cohort
    if own.is_file() and source_sha256(own) != sha256:
        raise InputError(
            f"{cohort}: its image of {Path(source).name} is not the one that was explained (a raw scan?).",
            cure="Explain volumes that were imported from the cohort's own folder.",
            path=cohort,
        )


def truth(cohort: Path, source: str, shape: tuple[int, ...], affine: np.ndarray) -> PhantomTruth:
    """Return the voxels that the disease changed in one phantom, on the grid of its stored volume.

    Args:
        cohort: folder of the cohort.
        source: path of the subject's image; its name says who it is.
        shape: (D, H, W) of the stored volume.
        affine: (4, 4) of the stored volume, voxel to mm.

    Raises:
        InputError: the cohort has no such subject, or the disease changed nothing (a gap of 0).
        ImageError: a map cannot be read.
    """
    named = _SUBJECT.match(Path(source).name)
    if named is None or not (cohort / bids.displacement_file(named[0])).is_file():
        raise InputError(
            f"{cohort}: has no subject for the image {source}.",
            cure="Give the cohort that the images were taken from.",
            path=cohort,
        )
    name = named[0]
    tissue = f"derivatives/tissue/{name}/anat/{name}_label-"
    filled = sum(
        _on_grid(cohort / f"{tissue}{kind}_probseg.nii.gz", shape, affine) for kind in ("GM", "WM", "CSF")
    )
    moved = _on_grid(cohort / bids.displacement_file(name), shape, affine)
    brain = np.asarray(filled > _BRAIN_SHARE)
    changed = brain & (moved > CHANGED_MM)
    if not changed.any():
        raise InputError(
            f"{cohort}: the disease moved nothing in {name} by more than {CHANGED_MM} mm.",
            cure="Take a cohort with a larger --gap, such as 2, and leave mild stages out.",
            path=cohort,
        )
    return PhantomTruth(brain, changed)


def _on_grid(path: Path, shape: tuple[int, ...], affine: np.ndarray) -> np.ndarray:
    """An image resampled linearly to a grid, 0 outside."""
    image = reading.read(path)
    return onto(image.data, image.affine, shape, affine)


def onto(data: np.ndarray, stored: np.ndarray, shape: tuple[int, ...], affine: np.ndarray) -> np.ndarray:
    """Return values (X, Y, Z) with the affine `stored`, at the voxels of a grid with `affine`: linear, 0
    outside.
    """
    matrix = np.linalg.inv(stored) @ affine
    return ndimage.affine_transform(
        data, matrix[:3, :3], offset=matrix[:3, 3], output_shape=shape, order=1, mode="constant"
    )


@dataclass(frozen=True)
class RegionShares:
    """One scan's figures: each the share of something on changed voxels, 0 to 1; `subject` is who was
    scanned.
    """

    subject: str
    trained: float | None
    randomised: float | None
    chance: float


def pooled(shares: Sequence[RegionShares]) -> dict[str, Any]:
    """Return means over scans with 95 % intervals by subject (see `trainer.metrics.subjects`).

    Returns:
        For `trained`, `randomised`, `chance`, and the paired differences `above_chance` (trained less chance)
        and `above_randomised`: {mean, interval (None for too few)}; `n` scans, `subjects` (how many), and
        `empty`: scans left out because a map was 0 everywhere.
    """
    used = [s for s in shares if s.trained is not None and s.randomised is not None]
    people = Subjects.named([s.subject for s in used])
    figures: dict[str, Any] = {
        "n": len(used),
        "subjects": people.count,
        "empty": len(shares) - len(used),
    }
    if not used:
        return figures
    table = np.array([(s.trained, s.randomised, s.chance) for s in used], np.float64)
    trained, random, chance = table.T
    columns = {
        "trained": trained,
        "randomised": random,
        "chance": chance,
        "above_chance": trained - chance,
        "above_randomised": trained - random,
    }
    for name, values in columns.items():
        without = mean_left_out(people, values)
        figures[name] = {"mean": without.value, "interval": without.interval("any")}
    return figures
