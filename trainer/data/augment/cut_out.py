"""Cut out boxes, so that a network does not rely on one place.

DeVries and Taylor, Improved regularization of convolutional neural networks with cutout (arXiv 1708.04552).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.config.augment import CutOutConfig
from trainer.data.augment.change import VolumeGrid
from trainer.data.augment.streams import Stream

# The foreground's mean in a standardised volume.
FILL = np.float32(0)

# Middles of boxes lie in this part of each axis: a box in the air beside a head teaches nothing.
_MIDDLE = (0.2, 0.8)


@dataclass(frozen=True)
class CutOut:
    """Positions and sizes of the boxes.

    Attributes:
        starts: first voxel of each box along D, H, W.
        edges: voxels of each box along D, H, W. All lie within the volume.
    """

    starts: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, ...], ...]

    def applied(self, volume: np.ndarray, origin: Sequence[int] = (0, 0, 0)) -> np.ndarray:
        """Return a copy of a volume (D, H, W, C) with the boxes overwritten in all channels.

        Args:
            volume: all of it, or the part that begins at `origin`.
            origin: in voxels along D, H, W.
        """
        volume = volume.copy()
        for start, edge in zip(self.starts, self.edges, strict=True):
            box = tuple(
                slice(max(first - begin, 0), max(first + size - begin, 0))
                for first, size, begin in zip(start, edge, origin, strict=True)
            )
            volume[box] = FILL
        return volume


def draw(stream: Stream, config: CutOutConfig, grid: VolumeGrid) -> CutOut:
    """Draw edges from half the size to the size, in whole voxels, and the middle of each box."""
    starts, edges = [], []
    for _ in range(config.boxes):
        longest = [stream.uniform(config.size / 2, config.size) / step for step in grid.voxel_mm]
        edge = tuple(min(max(1, round(e)), n) for e, n in zip(longest, grid.shape, strict=True))
        starts.append(tuple(_start(stream, e, n) for e, n in zip(edge, grid.shape, strict=True)))
        edges.append(edge)
    return CutOut(tuple(starts), tuple(edges))


def _start(stream: Stream, edge: int, size: int) -> int:
    """Return the first voxel of a box along an axis; its middle is in `_MIDDLE`, all of it in the volume."""
    first, last = (min(max(round(share * size - edge / 2), 0), size - edge) for share in _MIDDLE)
    return stream.whole(first, last)
