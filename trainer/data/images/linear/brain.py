"""Find the brain of a registered scan: the average one, its border moved to where the scan's tissue ends."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from trainer.data.images import resampling
from trainer.data.images.linear import average_brain
from trainer.data.images.linear.average_brain import FIELD_OF_VIEW

SIZE = 106
"""Voxels along an edge of the grid on which the brain is looked for: 2 mm."""

_SPACING = FIELD_OF_VIEW / SIZE
# A brain's border lies at most so far outside or inside of the average's, in mm.
_OUTSIDE_MM, _INSIDE_MM = 8.0, 10.0
# What joins the brain with what lies around it is thinner than twice this, in mm.
_BRIDGE_MM = 3.0
# Sulci narrower than twice this belong to the brain, in mm.
_SULCUS_MM = 6.0
# Shares of tissue in the average brain above which a voxel counts as that tissue.
_PURE = 0.8


def of_registered(scan: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Return where the brain is, bool (SIZE, SIZE, SIZE), on the grid of the average brain.

    Tissue is what is brighter than halfway from CSF to grey matter and not much brighter than white matter
    (fat, vessels), as the scan shows these where the average brain has them.

    Args:
        scan: (SIZE, SIZE, SIZE) on that grid, corrected for bias; air is 0.
        there: bool, on that grid, where the scan has values.
    """
    average = average_brain.of_size(SIZE)
    template = average.mask > 0.5
    csf = template & (average.grey + average.white < 1 - _PURE)
    kinds = (csf & there, (average.grey > _PURE) & there, (average.white > _PURE) & there)
    dark, grey, white = (float(np.median(scan[kind])) if kind.any() else 0.0 for kind in kinds)
    low, high = (min(dark, grey) + grey) / 2, white + abs(white - grey)
    allowed = _distance(~template) <= _OUTSIDE_MM
    core = _distance(template) > _INSIDE_MM
    tissue = allowed & (scan > low) & (scan < high)
    brain = _largest((_distance(tissue) > _BRIDGE_MM) | core)
    brain = tissue & (_distance(~brain) <= _BRIDGE_MM + _SPACING)
    closed = _distance(_distance(~(brain | core)) <= _SULCUS_MM) > _SULCUS_MM
    return np.asarray(ndimage.binary_fill_holes((closed & allowed) | core), bool)


def on_cube(mask: np.ndarray, size: int, cube: np.ndarray) -> np.ndarray:
    """Return a mask (SIZE, SIZE, SIZE) on a cube of `size`^3 voxels with the affine `cube`, bool."""
    share = mask.astype(np.float32)
    return np.asarray(resampling.onto(share, average_brain.affine_of(SIZE), (size,) * 3, cube) > 0.5)


def outline_on(size: int, cube: np.ndarray) -> np.ndarray:
    """Return the average brain's mask on a cube of `size`^3 voxels with the affine `cube`, bool."""
    return on_cube(average_brain.of_size(SIZE).mask, size, cube)


def dice(mask: np.ndarray, other: np.ndarray) -> float:
    """Return the overlap of two masks: twice the voxels of both over the sum of each (L. Dice, 1945)."""
    total = int(mask.sum()) + int(other.sum())
    return 2 * int((mask & other).sum()) / total if total else 0.0


def _distance(mask: np.ndarray) -> np.ndarray:
    """Return for each voxel of a mask the distance to the nearest one outside of it, in mm; 0 outside."""
    return ndimage.distance_transform_edt(mask) * _SPACING


def _largest(mask: np.ndarray) -> np.ndarray:
    parts, count = ndimage.label(mask)
    if count < 2:
        return mask
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return np.asarray(parts == int(sizes.argmax()))
