"""Place of a stored cube in the image it was cut from."""

from __future__ import annotations

from dataclasses import dataclass

import nibabel
import numpy as np

from trainer.data.images import foreground
from trainer.data.images.resampling import resample_part, resampled_affine, resampled_length


@dataclass(frozen=True)
class Cut:
    """From an image whose axes run in RAS+ to the cube cut out of it.

    Attributes:
        shape: (X, Y, Z) of the image.
        affine: (4, 4) of the image, voxel indices to millimetres.
        spacing: edge of the cube's voxels, in mm.
        start: first index of the cube in the image resampled to `spacing`.
        size: edge of the cube, in voxels.
    """

    shape: tuple[int, int, int]
    affine: np.ndarray
    spacing: float
    start: tuple[int, int, int]
    size: int

    @property
    def voxel(self) -> tuple[float, float, float]:
        """Voxel size of the image, in mm."""
        x, y, z = (float(size) for size in nibabel.affines.voxel_sizes(self.affine))
        return x, y, z

    @property
    def grid_affine(self) -> np.ndarray:
        """Return (4, 4) of the whole image resampled to `spacing`, voxel indices to millimetres."""
        resampled = tuple(
            resampled_length(stored, voxel, self.spacing)
            for stored, voxel in zip(self.shape, self.voxel, strict=True)
        )
        return resampled_affine(self.affine, self.shape, resampled, self.voxel, self.spacing)

    @property
    def cube_affine(self) -> np.ndarray:
        """Return (4, 4) of the cube, voxel indices to millimetres."""
        affine = self.grid_affine
        affine[:3, 3] += affine[:3, :3] @ np.array(self.start, dtype=np.float64)
        return affine

    def of(self, part: np.ndarray, first: tuple[int, ...] = (0, 0, 0)) -> np.ndarray:
        """Return the cube, (size, size, size), of (X, Y, Z) float32 data on the image's grid; 0 outside.

        Args:
            part: the data, or that part of them beyond which they are 0.
            first: index of its first voxel.
        """
        resampled = resample_part(part, first, self.shape, self.voxel, self.spacing)
        return foreground.crop(resampled, self.start, self.size, 0.0)
