"""Ghosts of a periodic motion, such as breathing: every n-th line of k-space is weakened.

As RandomGhosting of TorchIO (Pérez-García et al., Computer Methods and Programs in Biomedicine 208, 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import fft

from trainer.config.augment import GhostingConfig
from trainer.data.augment.change import Change
from trainer.data.augment.grid import Grid
from trainer.data.augment.streams import Stream


@dataclass(frozen=True)
class Ghosting(Change):
    """Which lines are weakened, and by how much.

    Attributes:
        axis: phase-encode axis, 0 to 2.
        ghosts: number of copies: every line whose frequency is a multiple of it is weakened.
        intensity: by how much, 0 to 1.
        centre: share of the lines, about the centre, that is left alone.
    """

    axis: int
    ghosts: int
    intensity: float
    centre: float

    def applied(self, channel: np.ndarray, background: float) -> np.ndarray:
        """Return the magnitude of the image with ghosts, float32 (D, H, W)."""
        lines = channel.shape[self.axis]
        seen = fft.rfft(np.moveaxis(channel, self.axis, 0) - np.float32(background), axis=0)
        frequency = np.arange(len(seen))
        weak = (frequency % self.ghosts == 0) & (frequency > self.centre * lines / 2)
        seen[weak] *= np.float32(1 - self.intensity)
        made = fft.irfft(seen, n=lines, axis=0, overwrite_x=True)
        np.abs(made, out=made)
        made += np.float32(background)
        return np.ascontiguousarray(np.moveaxis(made, 0, self.axis))


def draw(stream: Stream, config: GhostingConfig, grid: Grid) -> Ghosting:
    """Draw axis, number of copies and intensity."""
    axis, ghosts = stream.whole(0, 2), stream.whole(2, config.ghosts)
    return Ghosting(axis, ghosts, stream.uniform(0, config.intensity), config.centre)
