"""Smoothing by a Gaussian with a width per axis."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from trainer.config.augment import BlurConfig
from trainer.data.augment.change import Change
from trainer.data.augment.grid import Grid
from trainer.data.augment.streams import Stream

# A kernel ends at this many standard deviations, and a narrower one than this many voxels does nothing.
_REACH = 3.0
_LEAST = 0.1


@dataclass(frozen=True)
class Blur(Change):
    """Widths of the Gaussian.

    Attributes:
        sigma: standard deviation along D, H, W, in mm.
        voxel_mm: edges of a voxel along D, H, W, in mm.
    """

    sigma: tuple[float, ...]
    voxel_mm: tuple[float, ...] = field(repr=False)

    def applied(self, channel: np.ndarray, background: float) -> np.ndarray:
        """Smooth a channel, float32 (D, H, W), with replicated edges."""
        for axis, (sigma, step) in enumerate(zip(self.sigma, self.voxel_mm, strict=True)):
            if sigma / step > _LEAST:
                channel = _smoothed(channel, axis, sigma / step)
        return channel


def kernel(sigma: float) -> np.ndarray:
    """Return the Gaussian from its middle on, float32 (reach + 1,); with its mirror image it sums to 1."""
    taps = np.exp(-0.5 * (np.arange(math.ceil(_REACH * sigma) + 1) / sigma) ** 2)
    return (taps / (2 * taps.sum() - taps[0])).astype(np.float32)


def _smoothed(channel: np.ndarray, axis: int, sigma: float) -> np.ndarray:
    taps = kernel(sigma)
    reach, size = len(taps) - 1, channel.shape[axis]
    repeated = np.clip(np.arange(-reach, size + reach), 0, size - 1)
    wide = channel.take(repeated, axis=axis, mode="clip")

    def moved(by: int) -> np.ndarray:
        return wide[(slice(None),) * axis + (slice(reach + by, reach + by + size),)]

    made = moved(0) * taps[0]
    for distance in range(1, reach + 1):
        both = moved(-distance) + moved(distance)
        both *= taps[distance]
        made += both
    return made


def draw(stream: Stream, config: BlurConfig, grid: Grid) -> Blur:
    """Draw a width for each axis."""
    return Blur(tuple(stream.uniforms(0, config.sigma, 3).tolist()), grid.voxel_mm)
