"""A volume in 16^3 numbers that are stable when a scan is shifted, cropped, re-sampled or re-scaled.

Where the head lies and how large it is says little about whose it is, and outweighs everything else in a
plain comparison. So the box in which the volume is sampled is that of its own foreground: centred on it, and
as wide along each axis as it is spread. What is smooth over the head is taken away, because a scanner's bias
field is. docs/decisions/0006-leak-check.md has the measurements.
"""

from __future__ import annotations

import numpy as np
import scipy

from trainer.data.images.foreground import otsu

EDGE = 16
"""Samples along each edge."""

SMALLEST = 16
"""Voxels along a volume's shortest edge: smaller ones hold too little to tell heads apart."""

_SPAN = 2.0  # half the box, in standard deviations of the foreground's voxels along the axis
_SMOOTH = 2.0  # samples: what is smoother is taken away
_FINE_ENOUGH = 48  # voxels along the shortest edge, below which a volume is not reduced further


def miniature(volume: np.ndarray) -> np.ndarray:
    """Return the characteristic numbers of a volume.

    Args:
        volume: (D, H, W, C), of which the first channel counts.

    Returns:
        float32 (EDGE ** 3,) of mean 0 and norm 1; all 0 for a volume in which nothing stands out.
    """
    reduced = _reduced(volume[..., 0].astype(np.float32))
    inside = reduced > otsu(reduced) if np.ptp(reduced) > 0 else np.zeros(reduced.shape, bool)
    if not inside.any():
        return np.zeros(EDGE**3, np.float32)
    axes, steps = [], []
    for axis in range(3):
        centre, spread = _extent(inside, axis)
        axes.append(centre + spread * np.linspace(-_SPAN, _SPAN, EDGE))
        steps.append(2 * _SPAN * spread / (EDGE - 1))
    smooth = scipy.ndimage.gaussian_filter(reduced, [step / 2 for step in steps], truncate=3)
    where = np.meshgrid(*axes, indexing="ij")
    samples = scipy.ndimage.map_coordinates(smooth, where, order=1, mode="nearest")
    detail = (samples - scipy.ndimage.gaussian_filter(samples, _SMOOTH)).ravel()
    detail -= detail.mean()
    norm = float(np.linalg.norm(detail))
    return (detail / norm if norm > 0 else detail).astype(np.float32)


def _reduced(volume: np.ndarray) -> np.ndarray:
    """Return means over blocks, so that what follows costs about the same whatever the volume's size."""
    factor = max(1, min(volume.shape) // _FINE_ENOUGH)
    if factor == 1:
        return volume
    d, h, w = (size // factor for size in volume.shape)
    blocks = volume[: d * factor, : h * factor, : w * factor]
    return blocks.reshape(d, factor, h, factor, w, factor).mean(axis=(1, 3, 5))


def _extent(inside: np.ndarray, axis: int) -> tuple[float, float]:
    """Return mean and standard deviation of the True voxels' place along an axis, the latter at least 0.5."""
    profile = inside.sum(axis=tuple(a for a in range(3) if a != axis), dtype=np.float64)
    place = np.arange(len(profile))
    centre = float((profile * place).sum() / profile.sum())
    return centre, max(0.5, float(np.sqrt((profile * (place - centre) ** 2).sum() / profile.sum())))
