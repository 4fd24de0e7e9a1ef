"""Noise on every voxel: Gaussian, or Rician as in magnitude images.

Gudbjartsson and Patz, The Rician distribution of noisy MRI data (Magnetic Resonance in Medicine 34, 1995).
Rician noise depends on how far the signal is from none at all. A standardised volume has lost its zero; the
background stands for it, since air gives no signal. For skull-stripped images this holds exactly, for others
up to what their own noise floor was.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainer.config.augment import NoiseConfig
from trainer.data.augment.change import Change
from trainer.data.augment.grid import Grid
from trainer.data.augment.streams import Key, Stream


@dataclass(frozen=True)
class Gaussian(Change):
    """Noise that is added.

    Attributes:
        deviation: its standard deviation, in units of the normalised volume.
        voxels: whose random numbers it is made of.
    """

    deviation: float
    voxels: Key = field(repr=False)

    def applied(self, channel: np.ndarray, background: float) -> np.ndarray:
        """Add noise, float32 (D, H, W)."""
        made = self.voxels.open().normals(channel.shape)
        made *= np.float32(self.deviation)
        made += channel
        return made


@dataclass(frozen=True)
class Rician(Gaussian):
    """Noise in both parts of a complex signal, of which the magnitude is seen: sqrt((s + n1)^2 + n2^2)."""

    def applied(self, channel: np.ndarray, background: float) -> np.ndarray:
        """Add noise, float32 (D, H, W); nothing is darker than the background."""
        real, imaginary = self.voxels.open().normals((2, *channel.shape))
        real *= np.float32(self.deviation)
        imaginary *= np.float32(self.deviation)
        real += channel
        real -= np.float32(background)
        # Not np.hypot, which minds overflow and takes several times as long.
        np.square(real, out=real)
        np.square(imaginary, out=imaginary)
        real += imaginary
        np.sqrt(real, out=real)
        real += np.float32(background)
        return real


def draw_gaussian(stream: Stream, config: NoiseConfig, grid: Grid) -> Gaussian:
    """Draw the standard deviation."""
    return Gaussian(stream.uniform(0, config.deviation), _of_voxels(stream))


def draw_rician(stream: Stream, config: NoiseConfig, grid: Grid) -> Rician:
    """Draw the standard deviation."""
    return Rician(stream.uniform(0, config.deviation), _of_voxels(stream))


def _of_voxels(stream: Stream) -> Key:
    return stream.key._replace(name=f"{stream.key.name} of voxels")
