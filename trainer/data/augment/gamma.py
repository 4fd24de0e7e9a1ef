"""Another contrast: intensities between the least and the greatest are raised to a power."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trainer.config.augment import GammaConfig
from trainer.data.augment.change import Change
from trainer.data.augment.grid import Grid
from trainer.data.augment.streams import Stream


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


def draw(stream: Stream, config: GammaConfig, grid: Grid) -> Gamma:
    """Draw the power, uniform on a logarithmic scale."""
    return Gamma(math.exp(stream.uniform(-config.log_gamma, config.log_gamma)))
