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

# Points along each axis at which the largest departure is looked for.
_LOOKED_AT = 9


@dataclass(frozen=True)
class BiasField(Change):
    """The field's logarithm as a polynomial of Legendre's, over -1 to 1 along each axis.

    Attributes:
        strength: largest departure of the logarithm from its mean, which is 0.
        coefficients: float64 (order + 1,) * 3; 0 where the degrees sum to more than the order.
    """

    strength: float
    coefficients: np.ndarray = field(repr=False, compare=False)

    def told(self) -> dict[str, Any]:
        """For people."""
        return {"strength": self.strength, "order": len(self.coefficients) - 1}

    def logarithm(self, shape: tuple[int, ...]) -> np.ndarray:
        """float32 (D, H, W); its mean is 0."""
        deep, *others = (legendre(size, len(self.coefficients)) for size in shape)
        return _plus(deep, _planes(self.coefficients, deep, *others))

    def applied(self, channel: np.ndarray, background: float) -> np.ndarray:
        """What is brighter than the background is multiplied by the field, float32 (D, H, W)."""
        made = self.logarithm(channel.shape)
        np.exp(made, out=made)
        made *= channel - np.float32(background)
        made += np.float32(background)
        return made


def legendre(size: int, count: int) -> np.ndarray:
    """The first polynomials at the voxels of an axis, float64 (count, size)."""
    return np.polynomial.legendre.legvander(np.linspace(-1, 1, size), count - 1).T.copy()


def _planes(coefficients: np.ndarray, deep: np.ndarray, high: np.ndarray, wide: np.ndarray) -> np.ndarray:
    """For each polynomial along D, what it is multiplied with, float32 (count, H, W); the mean is 0."""
    means = np.einsum("ijk,i,j,k", coefficients, *(axis.mean(axis=1) for axis in (deep, high, wide)))
    planes = np.einsum("ijw,jh->ihw", np.einsum("ijk,kw->ijw", coefficients, wide), high)
    planes[0] -= means
    return planes.astype(np.float32)


def _plus(deep: np.ndarray, planes: np.ndarray) -> np.ndarray:
    """The sum over i of deep[i, d] planes[i, h, w], float32 (D, H, W), in a fixed order."""
    share = deep.astype(np.float32)[:, :, None, None]
    made = np.broadcast_to(planes[0], (deep.shape[1], *planes.shape[1:])).copy()
    for d, plane in enumerate(made):
        for one, weight in zip(planes[1:], share[1:, d, 0, 0], strict=True):
            plane += one * weight
    return made


def draw(stream: Stream, config: BiasFieldConfig, grid: Grid) -> BiasField:
    """Draw the polynomial and how strong it is, from 0 to the configured strength."""
    count = config.order + 1
    degrees = np.indices((count, count, count)).sum(axis=0)
    coefficients = stream.uniforms(-1, 1, count**3).reshape(count, count, count)
    coefficients[(degrees == 0) | (degrees > config.order)] = 0
    strength = stream.uniform(0, config.strength)
    looked_at = tuple(min(size, _LOOKED_AT) for size in grid.shape)
    largest = float(np.abs(BiasField(1.0, coefficients).logarithm(looked_at)).max())
    return BiasField(strength, coefficients * (strength / largest if largest > 0 else 0.0))
