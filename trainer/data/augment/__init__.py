"""Random changes of a training volume: a pure function of the run's seed, the epoch and the volume."""

from __future__ import annotations

import numpy as np

from trainer.config import AugmentConfig
from trainer.data.augment.drawing import Drawn, draw

__all__ = ["Drawn", "augment", "draw"]


def augment(
    volume: np.ndarray,
    config: AugmentConfig,
    seed: int,
    epoch: int,
    sample: int,
    label_map: np.ndarray | None = None,
    *,
    voxel_mm: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the volume as augmented in this epoch, and its label map moved with it.

    Changes of place are the same for all channels and the label map; changes of intensity are drawn for each
    channel. What comes in from outside is the channel's least value, and class 0 of the label map.

    Args:
        volume: float32 (D, H, W, C), normalised, axes RAS (D runs from left to right).
        config: which changes, and how large.
        seed: of the run.
        epoch: from 0.
        sample: its row number in the shard set, or another number for a volume that comes several times.
        label_map: uint8 (D, H, W), or None.
        voxel_mm: edges of a voxel along D, H, W, in mm.

    Returns:
        float32 (D, H, W, C), and uint8 (D, H, W) or None; the inputs themselves are left as they are, and
        returned where nothing is changed.
    """
    return draw(config, seed, epoch, sample, volume.shape, voxel_mm).applied(volume, label_map)
