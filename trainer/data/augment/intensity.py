"""Changes of the intensities of one channel: blur, bias field, noise, gamma.

Bias field: the logarithm is a low-order polynomial, as Van Leemput et al. (IEEE TMI 18, 1999) model it.
Rician noise: Gudbjartsson and Patz, The Rician distribution of noisy MRI data (Magnetic Resonance in Medicine
34, 1995). It depends on how far the signal is from zero. A standardised volume has lost its zero; the
background stands for it, since air gives no signal. For skull-stripped images this is exact, for others up to
their own noise floor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.config.augment import BiasFieldConfig, BlurConfig, GammaConfig, NoiseConfig
from trainer.data.augment.change import Change, VolumeGrid, of_channels
from trainer.data.augment.streams import Key, Stream

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


@of_channels("blur")
def draw_blur(stream: Stream, config: BlurConfig, grid: VolumeGrid) -> Blur:
    """Draw a width for each axis."""
    return Blur(tuple(stream.uniforms(0, config.sigma, 3).tolist()), grid.voxel_mm)


# Points along each axis at which strength and mean are looked at.
_LOOKED_AT = 17


@dataclass(frozen=True)
class BiasField(Change):
    """The field's logarithm as a polynomial of Legendre's, over -1 to 1 along each axis.

    Attributes:
        strength: largest departure of the logarithm from its mean, 0; both within the ellipsoid that touches
            the volume's faces, since its corners are air.
        coefficients: float64 (order + 1,) * 3; 0 where the degrees sum to more than the order.
    """

    strength: float
    coefficients: np.ndarray = field(repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return what was drawn."""
        return {"strength": self.strength, "order": len(self.coefficients) - 1}

    def logarithm(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return the logarithm of the field, float32 (D, H, W)."""
        deep, high, wide = (legendre(size, len(self.coefficients)) for size in shape)
        # What each polynomial along D is multiplied with; added up in a fixed order.
        planes = np.einsum("ijw,jh->ihw", np.einsum("ijk,kw->ijw", self.coefficients, wide), high)
        planes, share = planes.astype(np.float32), deep.astype(np.float32)
        made = np.broadcast_to(planes[0], shape).copy()
        for d, plane in enumerate(made):
            for one, weight in zip(planes[1:], share[1:, d], strict=True):
                plane += one * weight
        return made

    def applied(self, channel: np.ndarray, background: float) -> np.ndarray:
        """Multiply voxels brighter than the background by the field; float32 (D, H, W)."""
        made = self.logarithm(channel.shape)
        np.exp(made, out=made)
        made *= channel - np.float32(background)
        made += np.float32(background)
        return made


def legendre(size: int, count: int) -> np.ndarray:
    """Return the first polynomials at the voxels of an axis, float64 (count, size); the first is 1."""
    places = np.linspace(-1, 1, size) if size > 1 else np.zeros(1)
    return np.polynomial.legendre.legvander(places, count - 1).T.copy()


@of_channels("bias_field")
def draw_bias_field(stream: Stream, config: BiasFieldConfig, grid: VolumeGrid) -> BiasField:
    """Draw the polynomial and its strength, from 0 to the configured strength."""
    count = config.order + 1
    degrees = np.indices((count, count, count)).sum(axis=0)
    coefficients = stream.uniforms(-1, 1, count**3).reshape(count, count, count)
    coefficients[(degrees == 0) | (degrees > config.order)] = 0
    strength = stream.uniform(0, config.strength)
    place = np.linspace(-1, 1, _LOOKED_AT) ** 2
    inside = place[:, None, None] + place[:, None] + place <= 1
    seen = BiasField(1.0, coefficients).logarithm(inside.shape)[inside].astype(np.float64)
    coefficients[0, 0, 0] = -seen.mean()
    coefficients *= strength / np.abs(seen - seen.mean()).max()
    return BiasField(strength, coefficients)


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


@of_channels("gaussian_noise")
def draw_gaussian(stream: Stream, config: NoiseConfig, grid: VolumeGrid) -> Gaussian:
    """Draw the standard deviation."""
    return Gaussian(stream.uniform(0, config.deviation), _of_voxels(stream))


@of_channels("rician_noise")
def draw_rician(stream: Stream, config: NoiseConfig, grid: VolumeGrid) -> Rician:
    """Draw the standard deviation."""
    return Rician(stream.uniform(0, config.deviation), _of_voxels(stream))


def _of_voxels(stream: Stream) -> Key:
    return stream.key._replace(name=f"{stream.key.name} of voxels")


@dataclass(frozen=True)
class Gamma(Change):
    """The power.

    Attributes:
        gamma: above 1 darkens what is in between, below 1 brightens it.
    """

    gamma: float

    def applied(self, channel: np.ndarray, background: float) -> np.ndarray:
        """Return float32 (D, H, W); the order of intensities, the least and the greatest stay."""
        low = channel.min()
        span = channel.max() - low
        if not span > 0:
            return channel
        made = (channel - low) / span
        np.power(made, np.float32(self.gamma), out=made)
        made *= span
        made += low
        return made


@of_channels("gamma")
def draw_gamma(stream: Stream, config: GammaConfig, grid: VolumeGrid) -> Gamma:
    """Draw the power, uniform on a logarithmic scale."""
    return Gamma(math.exp(stream.uniform(-config.log_gamma, config.log_gamma)))
