"""Artefacts of a scan, made in k-space: motion of the head, and ghosts of a periodic motion.

Motion: Shaw et al., MRI k-space motion artefact augmentation (MIDL 2019). The lines of k-space are acquired
block by block, each while the head is in another position. Lines along one phase-encode axis are spliced, so
a Fourier transform along this axis alone gives what the three-dimensional one would.
Ghosting: as RandomGhosting of TorchIO (Pérez-García et al., Computer Methods and Programs in Biomedicine
208, 2021): every n-th line of k-space is weakened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from trainer.config.augment import AffineConfig, GhostingConfig, MotionConfig
from trainer.data.augment import affine
from trainer.data.augment.affine import Affine
from trainer.data.augment.change import Change, VolumeGrid, of_channels
from trainer.data.augment.streams import Stream
from trainer.data.augment.warping import warp


@dataclass(frozen=True)
class Motion(Change):
    """Positions of the head while lines were acquired.

    Attributes:
        axis: phase-encode axis, 0 to 2.
        starts: line, in the order of acquisition, with which each movement begins; rising.
        positions: where the head was from the first line on and after each movement: one more than
            `starts`. While the centre of k-space is acquired it is at rest, so that label maps stay right.
        grid: of the volume.
    """

    axis: int
    starts: tuple[int, ...]
    positions: tuple[Affine, ...]
    grid: VolumeGrid

    def to_json(self) -> dict[str, Any]:
        """Return what was drawn: positions as angles in degrees and shifts in mm."""
        moves = [{"rotate": p.rotate, "translate": p.translate} for p in self.positions]
        return {"axis": self.axis, "starts": self.starts, "positions": moves}

    def applied(self, channel: np.ndarray, background: float) -> np.ndarray:
        """Return the magnitude of the image of the spliced lines, float32 (D, H, W)."""
        signal = channel - np.float32(background)
        lines = channel.shape[self.axis]
        acquired = (
            np.arange(lines) + lines // 2
        ) % lines  # place of each frequency in the order of acquisition
        block = np.searchsorted(np.array(self.starts), acquired, side="right")
        spliced: np.ndarray | None = None
        for number, position in enumerate(self.positions):
            chosen = np.flatnonzero(block == number)
            if not len(chosen):
                continue
            seen = signal
            if position != Affine():
                seen = warp([signal], None, self.grid, position, None, [0.0])[0][0]
            half = scipy.fft.rfft(np.moveaxis(seen, self.axis, 0), axis=0)
            if spliced is None:
                spliced = np.empty((lines, *half.shape[1:]), half.dtype)
            high = chosen < len(half)
            spliced[chosen[high]] = half[chosen[high]]
            # A real image has the conjugate at the negative frequency.
            spliced[chosen[~high]] = half[lines - chosen[~high]].conj()
        image = scipy.fft.ifft(spliced, axis=0, overwrite_x=True)
        made = np.sqrt(np.square(image.real) + np.square(image.imag))
        made += np.float32(background)
        return np.ascontiguousarray(np.moveaxis(made, 0, self.axis), np.float32)


@of_channels("motion")
def draw_motion(stream: Stream, config: MotionConfig, grid: VolumeGrid) -> Motion:
    """Draw the axis, when the head moves, and where to."""
    axis = stream.whole(0, 2)
    lines = grid.shape[axis]
    starts = tuple(sorted(stream.whole(0, lines - 1) for _ in range(config.movements)))
    rigid = AffineConfig(rotate=config.rotate, scale=0.0, translate=config.translate)
    positions = [affine.draw(stream, rigid) for _ in range(config.movements + 1)]
    positions[int(np.searchsorted(starts, lines // 2, side="right"))] = Affine()
    return Motion(axis, starts, tuple(positions), grid)


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
        seen = scipy.fft.rfft(np.moveaxis(channel, self.axis, 0) - np.float32(background), axis=0)
        frequency = np.arange(len(seen))
        weak = (frequency % self.ghosts == 0) & (frequency > self.centre * lines / 2)
        seen[weak] *= np.float32(1 - self.intensity)
        made = scipy.fft.irfft(seen, n=lines, axis=0, overwrite_x=True)
        np.abs(made, out=made)
        made += np.float32(background)
        return np.ascontiguousarray(np.moveaxis(made, 0, self.axis))


@of_channels("ghosting")
def draw_ghosting(stream: Stream, config: GhostingConfig, grid: VolumeGrid) -> Ghosting:
    """Draw axis, number of copies and intensity."""
    axis, ghosts = stream.whole(0, 2), stream.whole(2, config.ghosts)
    return Ghosting(axis, ghosts, stream.uniform(0, config.intensity), config.centre)
