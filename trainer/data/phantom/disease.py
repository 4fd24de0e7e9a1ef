"""Tissue loss by age and disease, and the displacement that causes it.

Tissue recedes from the CSF next to it: each point of the image looks up the average brain a little further
toward the CSF. The whole way is composed of small steps, each too small to fold (Arsigny et al., MICCAI 2006:
scaling and squaring), so that the anatomy keeps its topology however severe the disease.

Of the patterns, `regional` is set by published effect sizes (docs/explanation/phantom.md lists them beside
the measured ones); `diffuse` is what cohorts had before there was a choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from trainer.data.phantom.people import Person, stream
from trainer.data.phantom.template import REGIONS, Template


@dataclass(frozen=True)
class Pattern:
    """All values in mm of recession, in the order of `regions`.

    Attributes:
        regions: those of `template.REGIONS` that it moves, which come first there.
        per_decade: lost in ten years.
        disease: lost at stage 1 and gap 1.
        spread: standard deviation between people from birth.
        most: a brain has no more to lose: approached, never reached.
        shared_spread: share of the spread that is common to all regions, so that their correlation is its
            square: people whose ventricles are wide tend to have wide sulci too.
    """

    regions: tuple[str, ...]
    per_decade: np.ndarray
    disease: np.ndarray
    spread: np.ndarray
    most: np.ndarray
    shared_spread: float = 0.5


PATTERNS = {
    "regional": Pattern(
        REGIONS,
        per_decade=np.array([0.4, 2.0, 0.3, 0.3, 1.3]),
        disease=np.array([1.4, 6.8, 2.0, 0.4, 0.2]),
        spread=np.array([1.0, 1.8, 0.7, 0.7, 1.1]),
        most=np.array([4.0, 9.0, 2.5, 1.8, 2.5]),
    ),
    "diffuse": Pattern(
        REGIONS[:4],
        per_decade=np.array([0.90, 0.35, 0.25, 0.35]),
        disease=np.array([1.60, 1.50, 0.50, 0.20]),
        spread=np.array([1.20, 0.65, 0.40, 0.40]),
        most=np.array([5.0, 4.0, 1.8, 1.8]),
    ),
}
DEFAULT = "regional"


_MEAN_AGE = 73.0

_SEVERITY = {"NC": 0.0, "sMCI": 0.3, "pMCI": 0.75, "AD": 1.0}
_SEVERITY_SPREAD = 0.35  # of the logarithm

_LARGEST_STEP = 0.2  # relative stretch of one step; 1 would fold
_FEWEST_DOUBLINGS = 2


@dataclass(frozen=True)
class GroundTruth:
    """Ground truth of one person's brain.

    Attributes:
        stage: 0 in normal cognition, about 1 in AD, log-normally spread within a group.
        recession: mm of tissue lost in each of the pattern's regions; negative where a brain is fuller than
            the average.
    """

    stage: float
    recession: tuple[float, ...]


def truth(
    person: Person, seed: int, gap: float, pattern: str = DEFAULT, *, stage: float | None = None
) -> GroundTruth:
    """Return the effect of age, disease and inborn differences on one person.

    Args:
        pattern: one of `PATTERNS`.
        stage: of the disease, with all else the same; None for the drawn one.
    """
    rng = stream(seed, person.number, "disease")
    drawn = _SEVERITY[person.diagnosis] * math.exp(_SEVERITY_SPREAD * float(rng.standard_normal()))
    stage = drawn if stage is None else stage
    shared = rng.standard_normal()
    takes = PATTERNS[pattern]
    own = rng.standard_normal(len(takes.regions))
    inborn = takes.spread * (takes.shared_spread * shared + math.sqrt(1 - takes.shared_spread**2) * own)
    lost = inborn + takes.per_decade * (person.age - _MEAN_AGE) / 10 + takes.disease * gap * stage
    return GroundTruth(stage, tuple(float(mm) for mm in takes.most * np.tanh(lost / takes.most)))


def otherwise(person: Person, seed: int, gap: float, pattern: str = DEFAULT) -> GroundTruth:
    """Return the truth with the opposite diagnosis: a patient without the disease; for NC, AD of stage 1."""
    return truth(person, seed, gap, pattern, stage=1.0 if person.diagnosis == "NC" else 0.0)


def region_of_disease(template: Template, pattern: str = DEFAULT) -> np.ndarray:
    """Return where disease alone moves tissue, in the average brain: (D, H, W) float32, 1 at its most."""
    takes = PATTERNS[pattern].disease.astype(np.float32)
    moved = np.einsum("r,rdhw->dhw", takes, template.regions[: len(takes)])
    moved = moved * np.sqrt((template.pull**2).sum(axis=0)) * (template.mask > 0.5)
    return moved / moved.max()


def displacement(template: Template, recession: tuple[float, ...]) -> np.ndarray:
    """Return the displacement u, (3, D, H, W) float32 in voxels: tissue at x is the average's at x + u(x)."""
    box = (slice(None), *template.box)
    regions = template.regions[: len(recession)][box]
    weight = np.einsum("r,rdhw->dhw", np.array(recession, np.float32), regions)
    velocity = template.pull[box] * (weight / np.float32(template.voxel))
    doublings = _doublings(velocity)
    step = velocity / np.float32(2**doublings)
    grid = np.stack(np.meshgrid(*(np.arange(n, dtype=np.float32) for n in step.shape[1:]), indexing="ij"))
    for _ in range(doublings):
        there = grid + step
        step = step + np.stack([ndimage.map_coordinates(c, there, order=1, mode="nearest") for c in step])
    whole = np.zeros((3,) + (template.size,) * 3, np.float32)
    whole[box] = step
    return whole


def _doublings(velocity: np.ndarray) -> int:
    """Return how often the first step is doubled: a field that stretches more needs smaller steps."""
    stretch = max(float(np.abs(np.diff(velocity, axis=axis)).max()) for axis in (1, 2, 3)) * 3
    return max(_FEWEST_DOUBLINGS, math.ceil(math.log2(max(stretch, 1e-6) / _LARGEST_STEP)))
