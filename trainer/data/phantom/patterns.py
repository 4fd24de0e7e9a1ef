"""Patterns of tissue loss: by age, birth and disease, in each region.

`regional` is set by published effect sizes, which docs/explanation/phantom.md lists beside what is got;
`diffuse` is what cohorts had before there was a choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.data.phantom.template import REGIONS


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
