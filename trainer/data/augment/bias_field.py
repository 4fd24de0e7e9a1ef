"""The shading of a receive coil: intensities times the exponential of a smooth polynomial.

A low-order polynomial in the logarithm, as Van Leemput et al. (IEEE TMI 18, 1999) model it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.config.augment import BiasFieldConfig
from trainer.data.augment.change import Change
from trainer.data.augment.grid import Grid
from trainer.data.augment.streams import Stream

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

    def told(self) -> dict[str, Any]:
        """Describe what was drawn."""
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


def draw(stream: Stream, config: BiasFieldConfig, grid: Grid) -> BiasField:
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
