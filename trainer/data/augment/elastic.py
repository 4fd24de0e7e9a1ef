"""A smooth displacement of tissue by uniform cubic B-splines.

Rueckert et al., Nonrigid registration using free-form deformations (IEEE TMI 18, 1999), equation 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from trainer.config.augment import ElasticConfig
from trainer.data.augment.change import VolumeGrid
from trainer.data.augment.streams import Stream


@dataclass(frozen=True)
class Elastic:
    """A displacement: the result at x shows what the volume has at x + u(x).

    Attributes:
        spacing: of the control points, in mm.
        largest: displacement along an axis that a control point asks for, in mm; u stays below it.
        control: (gd, gh, gw), number of control points.
        coefficients: float32 (3, gd, gh, gw), in mm along D, H, W.
    """

    spacing: float
    largest: float
    control: tuple[int, ...]
    coefficients: np.ndarray = field(repr=False, compare=False)


def draw(stream: Stream, config: ElasticConfig, grid: VolumeGrid) -> Elastic:
    """Draw the displacement of every control point, uniform within its range along each axis."""
    control = tuple(
        math.floor((size - 1) * step / config.spacing) + 4
        for size, step in zip(grid.shape, grid.voxel_mm, strict=True)
    )
    limit = config.displacement
    drawn = stream.uniforms(-limit, limit, 3 * math.prod(control)).astype(np.float32)
    largest = float(np.abs(drawn).max())
    return Elastic(config.spacing, largest, control, drawn.reshape(3, *control))


def basis(size: int, step: float, spacing: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the four B-splines that reach each voxel of an axis.

    Args:
        size: of the axis, in voxels.
        step: edge of a voxel, in mm.
        spacing: of the control points, in mm; the first lies one spacing before the first voxel.

    Returns:
        The first of its four control points, int (size,), and their weights, float32 (size, 4), sum 1.
    """
    place = np.arange(size) * (step / spacing)
    first = np.floor(place).astype(int)
    t = place - first
    weights = [(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3]
    return first, (np.stack(weights, axis=1) / 6).astype(np.float32)


def planes(coefficients: np.ndarray, grid: VolumeGrid, spacing: float) -> np.ndarray:
    """Interpolate the coefficients along H and W: (3, gd, gh, gw) to (3, gd, H, W) float32."""
    for axis in (2, 3):
        first, weights = basis(grid.shape[axis - 1], grid.voxel_mm[axis - 1], spacing)
        moved = np.moveaxis(coefficients, axis, -1)
        # Four products and sums in a fixed order, not a matrix product, whose order depends on the library.
        made = moved[..., first] * weights[:, 0]
        for tap in range(1, 4):
            made += moved[..., first + tap] * weights[:, tap]
        coefficients = np.moveaxis(made, -1, axis)
    return np.ascontiguousarray(coefficients)
