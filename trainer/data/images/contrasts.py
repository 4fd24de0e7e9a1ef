"""Align a further contrast of the same head to the grid of the first, by the affines.

Images of one session are presumed registered: nothing is moved but what their affines tell. What the affines
place apart is refused, because a network would learn from channels that show different places.
"""

from __future__ import annotations

import numpy as np

from trainer.data.images import foreground, quality
from trainer.data.images.findings import Finding, bad, warning
from trainer.data.images.reading import Image
from trainer.data.images.resampling import filled, placed_on

# Share of the first contrast's foreground that must lie within a further one; under the second value a
# person should look.
LEAST_COVERED = 0.5
FULLY_COVERED = 0.98
# How far apart the middles of the two foregrounds may lie. Two contrasts of one head differ by a few mm,
# since Otsu's threshold takes in other tissues; heads that lie apart in the scanner by centimetres.
FARTHEST_MM = 20.0

_REGISTER = (
    "Register it to the first contrast and write it on that grid (flirt, antsRegistration, SPM coregister), "
    "or correct the header."
)


def align(image: Image, shape: tuple[int, ...], affine: np.ndarray, spacing: float) -> np.ndarray:
    """Resample an image onto another grid of cubic voxels.

    First along its own axes to voxels of `spacing` mm, as the first contrast is (which keeps fine detail from
    aliasing), then linearly onto the grid. Where both grids are the same, that second step changes nothing.

    Args:
        image: read and checked, without NaN.
        shape: (X, Y, Z) of the grid.
        affine: (4, 4) of the grid, voxel indices to millimetres.
        spacing: edge of the grid's voxels, in mm.

    Returns:
        (X, Y, Z) float32; NaN where the grid lies outside the image.
    """
    return placed_on(*quality.to_canonical(image), spacing, shape, affine)


def judge(aligned: np.ndarray, inside: np.ndarray, cube: tuple[slice, ...], spacing: float) -> list[Finding]:
    """Compare the places that a further contrast and the first show.

    Args:
        aligned: what `align` made.
        inside: the first contrast's foreground, bool, on the same grid.
        cube: the part of the grid that is kept: foregrounds are compared there, without the neck.
        spacing: edge of a voxel in mm.
    """
    there = np.isfinite(aligned)
    covered = float((there & inside).sum()) / float(inside.sum())
    if covered < LEAST_COVERED:
        message = (
            f"shows {100 * covered:.0f} % of the first contrast's foreground: the affines place them apart."
        )
        return [bad("contrasts-apart", message, _REGISTER)]
    own = foreground.mask(filled(aligned))
    here = there[cube]
    apart = spacing * float(np.linalg.norm(_middle(inside[cube] & here) - _middle(own[cube] & here)))
    if np.isnan(apart):
        message = "is empty where the first contrast has its foreground."
        return [bad("contrasts-apart", message, _REGISTER)]
    if apart > FARTHEST_MM:
        message = f"lies {apart:.0f} mm from the first contrast (middles of their foregrounds)."
        return [bad("contrasts-apart", message, _REGISTER)]
    if covered < FULLY_COVERED:
        message = f"covers {100 * covered:.0f} % of the first contrast's foreground."
        return [warning("partly-covered", message, "If it is a slab, use a scan of the whole brain.")]
    return []


def _middle(foreground_of_one: np.ndarray) -> np.ndarray:
    places = np.argwhere(foreground_of_one)
    return places.mean(axis=0) if len(places) else np.full(3, np.nan)
