"""The grid of a volume: how many voxels, and how large they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Grid:
    """A volume's grid.

    Attributes:
        shape: (D, H, W).
        voxel_mm: edges of a voxel along D, H, W, in mm.
    """

    shape: tuple[int, int, int]
    voxel_mm: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @property
    def step(self) -> np.ndarray:
        """Edges of a voxel, float64 (3,), in mm."""
        return np.array(self.voxel_mm, np.float64)

    @property
    def centre(self) -> np.ndarray:
        """The middle of the volume, float64 (3,), in voxels."""
        return (np.array(self.shape, np.float64) - 1) / 2
