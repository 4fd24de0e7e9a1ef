"""Differences of one head from the average: size, pose in the scanner, and smooth warps."""

from __future__ import annotations

import functools

import numpy as np

from trainer.data.phantom.people import Person
from trainer.data.phantom.template import FIELD_OF_VIEW, Template

_MALE_LARGER = 0.035  # men's skulls hold about a tenth more: 3.5 % along each axis
_SIZE_SPREAD = 0.03
_AXIS_SPREAD = 0.02
_SHEAR_SPREAD = 0.015
_ROTATION_SPREAD = np.radians(3.5)
_SHIFT_SPREAD_MM = 2.5

# (knots along an edge, spread of a knot's displacement in mm). A cubic B-spline warp is one-to-one while
# displacement over knot spacing stays below 0.403, and the ratios of summed warps add up (Choi and Lee,
# Graphical Models 62, 2000).
_WARPS = ((7, 2.6), (14, 1.0))
_LARGEST_RATIO = 0.18


def coordinates(template: Template, person: Person, rng: np.random.Generator) -> np.ndarray:
    """Return where each voxel of this image lies in the average brain: (3, D, H, W) float32, in voxels."""
    n = template.size
    middle = (n - 1) / 2
    axes = [np.arange(n, dtype=np.float32) - np.float32(middle) for _ in range(3)]
    matrix, shift = _pose(person, rng)
    where = np.empty((3, n, n, n), np.float32)
    for row in range(3):
        constant = np.float32(shift[row] / template.voxel + middle)
        a, b, c = (np.float32(v) for v in matrix[row])
        where[row] = (a * axes[0] + constant)[:, None, None] + (b * axes[1])[:, None] + c * axes[2]
    for knots, spread in _WARPS:
        largest = _LARGEST_RATIO * FIELD_OF_VIEW / knots
        for row in range(3):
            moves = np.clip(rng.normal(0, spread, (knots + 3,) * 3), -largest, largest) / template.voxel
            where[row] += smooth_field(moves.astype(np.float32), n)
    return where


def smooth_field(control: np.ndarray, size: int) -> np.ndarray:
    """Return a cubic B-spline of a (k + 3)^3 control grid over the field of view: (size,)*3 float32."""
    basis = _basis(control.shape[0] - 3, size)
    # einsum without `optimize` never calls BLAS, whose threads could change the last bits.
    field = np.einsum("xi,ijk->xjk", basis, control)
    field = np.einsum("yj,xjk->xyk", basis, field)
    return np.einsum("zk,xyk->xyz", basis, field)


@functools.lru_cache(maxsize=8)
def _basis(spacings: int, size: int) -> np.ndarray:
    """Return (size, spacings + 3) float32: weight of each control point at each voxel centre."""
    position = (np.arange(size) + 0.5) * spacings / size
    cell = np.minimum(position.astype(int), spacings - 1)
    t = position - cell
    weights = np.stack(
        [(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], axis=1
    ) / 6  # fmt: skip
    basis = np.zeros((size, spacings + 3), np.float32)
    np.put_along_axis(basis, cell[:, None] + np.arange(4), weights.astype(np.float32), axis=1)
    return basis


def _pose(person: Person, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the linear part (3, 3) and shift (3,) in mm of the map from this image to the average brain."""
    sex = _MALE_LARGER / 2 if person.sex == "M" else -_MALE_LARGER / 2
    size = np.exp(sex + rng.normal(0, _SIZE_SPREAD) + rng.normal(0, _AXIS_SPREAD, 3))
    shear = np.eye(3)
    shear[np.triu_indices(3, 1)] = rng.normal(0, _SHEAR_SPREAD, 3)
    linear = np.diag(1 / size)
    for axis, angle in enumerate(rng.normal(0, _ROTATION_SPREAD, 3)):
        linear = linear @ _rotation(axis, angle)
    return shear @ linear, rng.normal(0, _SHIFT_SPREAD_MM, 3)


def _rotation(axis: int, angle: float) -> np.ndarray:
    first, second = (axis + 1) % 3, (axis + 2) % 3
    matrix = np.eye(3)
    matrix[first, first] = matrix[second, second] = np.cos(angle)
    matrix[first, second], matrix[second, first] = -np.sin(angle), np.sin(angle)
    return matrix
