"""Resample along the axes of an image, by one operator that interpolates and smooths; cut out the cube."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import nibabel
import numpy as np
from scipy import ndimage, sparse

from trainer.data.images import foreground, geometry


def resampled_length(stored: int, voxel: float, spacing: float) -> int:
    """Return the number of voxels of `spacing` mm that cover an axis of `stored` voxels of `voxel` mm."""
    return max(1, round(stored * voxel / spacing))


def weights(stored: int, voxel: float, spacing: float) -> sparse.csr_array:
    """Return interpolation weights (resampled, stored), float32, from one regular axis to another.

    Both axes share their centre and cover the same length. The kernel is a triangle as wide as the larger
    of the two voxels: linear interpolation when the new voxels are smaller; when they are larger, a weighted
    mean that keeps fine detail from aliasing. Each row sums to 1, so a constant stays what it is.
    """
    resampled = resampled_length(stored, voxel, spacing)
    width = max(1.0, spacing / voxel)  # in stored voxels
    centres = (np.arange(resampled) - (resampled - 1) / 2) * (spacing / voxel) + (stored - 1) / 2
    reach = int(np.ceil(width))
    taps = np.floor(centres)[:, None].astype(np.int64) + np.arange(-reach, reach + 2)
    strength = np.maximum(0.0, 1.0 - np.abs(taps - centres[:, None]) / width)
    strength[(taps < 0) | (taps >= stored)] = 0.0
    strength /= strength.sum(axis=1, keepdims=True)
    rows = np.repeat(np.arange(resampled), taps.shape[1])
    used = strength.ravel() > 0
    entries = (strength.ravel()[used].astype(np.float32), (rows[used], taps.ravel()[used]))
    return sparse.csr_array(entries, shape=(resampled, stored))


def resample(data: np.ndarray, voxel: tuple[float, float, float], spacing: float) -> np.ndarray:
    """Return (X, Y, Z) float32, voxels of `voxel` mm, resampled to cubes of `spacing` mm.

    Sparse products rather than a dense matrix library: they add in a fixed order, so the bytes do not
    depend on the number of threads.
    """
    return resample_part(data, (0, 0, 0), data.shape, voxel, spacing)


def resample_part(
    part: np.ndarray,
    start: tuple[int, ...],
    shape: tuple[int, ...],
    voxel: tuple[float, float, float],
    spacing: float,
) -> np.ndarray:
    """Return the result of `resample` for an image of `shape` that is 0 outside `part`.

    The same bytes in less time, where most of an image is 0: one of many labels.
    """
    for first, stored, size in zip(start, shape, voxel, strict=True):
        length = part.shape[0]
        # The product takes the first axis; moving it to the end brings the next one to the front.
        of_part = weights(stored, size, spacing)[:, first : first + length]
        flat = of_part @ np.ascontiguousarray(part).reshape(length, -1)
        part = np.moveaxis(flat.reshape(-1, *part.shape[1:]), 0, -1)
    return np.ascontiguousarray(part)


def resampled_affine(
    affine: np.ndarray,
    stored: tuple[int, ...],
    resampled: tuple[int, ...],
    voxel: tuple[float, float, float],
    spacing: float,
) -> np.ndarray:
    """Return the affine of the result of `resample`, (4, 4) float64."""
    step = np.array([spacing / size for size in voxel])
    new = np.eye(4)
    new[:3, :3] = affine[:3, :3] * step
    first = (np.array(stored) - 1) / 2 - (np.array(resampled) - 1) / 2 * step
    new[:3, 3] = affine[:3, :3] @ first + affine[:3, 3]
    return new


def onto(data: np.ndarray, own: np.ndarray, shape: tuple[int, ...], affine: np.ndarray) -> np.ndarray:
    """Return (X, Y, Z) data with the affine `own`, interpolated linearly onto another grid, as float32.

    NaN where the grid lies outside the image. Where both grids are the same, nothing changes.

    Args:
        data: without NaN.
        own: (4, 4), the affine of the data.
        shape: (X, Y, Z) of the grid.
        affine: (4, 4) of the grid.
    """
    there = np.linalg.inv(own) @ affine
    # Rounded and with a margin of one voxel: headers that differ in their last digits are the same grid, and
    # must not push whole faces out of the image.
    step, first = np.round(there[:3, :3], 6), np.round(there[:3, 3], 4) + 1
    padded = np.pad(data, 1, mode="edge")
    aligned = ndimage.affine_transform(padded, step, first, tuple(shape), np.float32, order=1)
    # An image ends half a voxel beyond the middle of its last one.
    seen = np.pad(np.ones_like(data), 1)
    aligned[ndimage.affine_transform(seen, step, first, tuple(shape), order=1) < 0.5] = np.nan
    return aligned


def placed_on(
    data: np.ndarray, affine: np.ndarray, spacing: float, shape: tuple[int, ...], grid: np.ndarray
) -> np.ndarray:
    """Return data on another grid of cubic voxels, (X, Y, Z) float32; NaN outside of them.

    First along their own axes to voxels of `spacing` mm, which keeps fine detail from aliasing, then linearly
    onto the grid.

    Args:
        data: (X, Y, Z), without NaN.
        affine: (4, 4) of the data.
        spacing: edge of the grid's voxels in mm.
        shape: (X, Y, Z) of the grid.
        grid: (4, 4) of the grid.
    """
    x, y, z = (float(edge) for edge in nibabel.affines.voxel_sizes(affine))
    resampled = resample(data, (x, y, z), spacing)
    own = resampled_affine(affine, data.shape, resampled.shape, (x, y, z), spacing)
    return onto(resampled, own, shape, grid)


def upright(data: np.ndarray, affine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (X, Y, Z) data and affine on axes at right angles: sheared ones are interpolated by the affine.

    NaN outside a sheared image; any other is returned as it is.
    """
    if not geometry.is_sheared(affine):
        return data, affine
    x, y, z = data.shape
    shape, new = geometry.upright_grid((x, y, z), affine)
    return onto(data, affine, shape, new), new


def filled(data: np.ndarray) -> np.ndarray:
    """Fill with its lowest value what is NaN: what lies outside an image that was brought onto a grid."""
    return np.where(np.isfinite(data), data, np.nanmin(data))


@dataclass(frozen=True)
class Registered:
    """A cube in another space than its image's.

    Attributes:
        world: (4, 4) from mm of the image to mm of that space.
        cube: (4, 4) of the cube, voxel indices to mm of that space.
    """

    world: np.ndarray
    cube: np.ndarray


@dataclass(frozen=True)
class Cut:
    """From an image whose axes run in RAS+ to the cube cut out of it.

    Attributes:
        shape: (X, Y, Z) of the image.
        affine: (4, 4) of the image, voxel indices to millimetres; may be sheared.
        spacing: edge of the cube's voxels, in mm.
        start: first index of the cube in the image, upright and resampled to `spacing`.
        size: edge of the cube, in voxels.
        registered: where the cube lies instead, of an image that was moved to another space.
    """

    shape: tuple[int, int, int]
    affine: np.ndarray
    spacing: float
    start: tuple[int, int, int]
    size: int
    registered: Registered | None = None

    @cached_property
    def _upright(self) -> tuple[tuple[int, int, int], np.ndarray]:
        """Shape and affine of the image on axes at right angles."""
        if not geometry.is_sheared(self.affine):
            return self.shape, self.affine
        return geometry.upright_grid(self.shape, self.affine)

    @property
    def scan_affine(self) -> np.ndarray:
        """Return (4, 4) of the cube, voxel indices to millimetres of the image's space."""
        if self.registered is None:
            return self.cube_affine
        return np.asarray(np.linalg.inv(self.registered.world) @ self.registered.cube)

    @property
    def voxel(self) -> tuple[float, float, float]:
        """Return the voxel size of the image, made upright, in mm."""
        x, y, z = (float(size) for size in nibabel.affines.voxel_sizes(self._upright[1]))
        return x, y, z

    @property
    def grid_affine(self) -> np.ndarray:
        """Return (4, 4) of the whole image resampled to `spacing`, voxel indices to millimetres."""
        shape, affine = self._upright
        resampled = tuple(
            resampled_length(stored, voxel, self.spacing)
            for stored, voxel in zip(shape, self.voxel, strict=True)
        )
        return resampled_affine(affine, shape, resampled, self.voxel, self.spacing)

    @property
    def cube_affine(self) -> np.ndarray:
        """Return (4, 4) of the cube, voxel indices to millimetres of its space."""
        if self.registered is not None:
            return self.registered.cube.copy()
        affine = self.grid_affine
        affine[:3, 3] += affine[:3, :3] @ np.array(self.start, dtype=np.float64)
        return affine

    def of(self, part: np.ndarray, first: tuple[int, ...] = (0, 0, 0)) -> np.ndarray:
        """Return the cube, (size, size, size), of (X, Y, Z) float32 data on the image's grid; 0 outside.

        Args:
            part: the data, or that part of them beyond which they are 0.
            first: index of its first voxel.
        """
        shape, _ = self._upright
        if self.registered is not None:
            placed = self.registered.world @ self.affine
            x, y, z = (float(size) for size in nibabel.affines.voxel_sizes(placed))
            resampled = resample_part(part, first, self.shape, (x, y, z), self.spacing)
            own = resampled_affine(placed, self.shape, resampled.shape, (x, y, z), self.spacing)
            return np.nan_to_num(onto(resampled, own, (self.size,) * 3, self.registered.cube), copy=False)
        if shape is not self.shape:
            whole = np.zeros(self.shape, np.float32)
            whole[tuple(slice(f, f + n) for f, n in zip(first, part.shape, strict=True))] = part
            part, first = np.nan_to_num(upright(whole, self.affine)[0], copy=False), (0, 0, 0)
        resampled = resample_part(part, first, shape, self.voxel, self.spacing)
        return foreground.crop(resampled, self.start, self.size, 0.0)
