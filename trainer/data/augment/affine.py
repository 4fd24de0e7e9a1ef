"""Rotation, scaling, shear and translation about the middle of a volume, in millimetres."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trainer.config.augment import AffineConfig
from trainer.data.augment.change import VolumeGrid
from trainer.data.augment.streams import Stream

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Affine:
    """Movement of tissue: y = R S H (x - c) + c + t, in mm.

    Attributes:
        rotate: angles about the axes D, H, W in degrees; R turns about W first, about D last.
        factors: S, of size along each axis.
        shear: H is the unit matrix with these at (D, H), (D, W), (H, W).
        translate: t, in mm along D, H, W.
    """

    rotate: Triple = (0.0, 0.0, 0.0)
    factors: Triple = (1.0, 1.0, 1.0)
    shear: Triple = (0.0, 0.0, 0.0)
    translate: Triple = (0.0, 0.0, 0.0)

    @property
    def matrix(self) -> np.ndarray:
        """Return R S H, float64 (3, 3)."""
        sheared = np.eye(3)
        sheared[[0, 0, 1], [1, 2, 2]] = self.shear
        return rotation(self.rotate) @ np.diag(self.factors) @ sheared

    def sampling(self, grid: VolumeGrid) -> tuple[np.ndarray, np.ndarray]:
        """Return where each voxel of the result is sampled.

        Returns:
            A, float64 (3, 3), and b, float64 (3,), in voxels: the result at o is the volume at A o + b.
        """
        back = np.diag(1 / grid.step) @ np.linalg.inv(self.matrix) @ np.diag(grid.step)
        return back, grid.centre - back @ (grid.centre + np.array(self.translate) / grid.step)


def draw(stream: Stream, config: AffineConfig) -> Affine:
    """Draw an affine change; every number uniform within its range, sizes on a logarithmic scale."""
    rotate, factors, shear, translate = (stream.uniforms(-1, 1, 3) for _ in range(4))
    return Affine(
        _triple(rotate * config.rotate),
        _triple(np.exp(factors * math.log1p(config.scale))),
        _triple(shear * config.shear),
        _triple(translate * config.translate),
    )


def rotation(degrees: Triple) -> np.ndarray:
    """Return right-handed turns about the third axis, then the second, then the first; float64 (3, 3)."""
    turned = np.eye(3)
    for axis, angle in enumerate(np.deg2rad(degrees)):
        first, second = (axis + 1) % 3, (axis + 2) % 3
        about = np.eye(3)
        about[[first, second], [first, second]] = math.cos(angle)
        about[first, second], about[second, first] = -math.sin(angle), math.sin(angle)
        turned = turned @ about
    return turned


def _triple(values: np.ndarray) -> Triple:
    first, second, third = (float(value) for value in values)
    return first, second, third
