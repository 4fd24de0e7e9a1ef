"""Random changes of a training volume: a pure function of the run's seed, the epoch and the volume."""

from __future__ import annotations

import numpy as np

from trainer.config import AugmentConfig

# Keeps these random numbers apart from those of other uses of the same seed.
_STREAM = 0x617567


def augment(
    volume: np.ndarray,
    config: AugmentConfig,
    seed: int,
    epoch: int,
    sample: int,
    label_map: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """The volume as this epoch shows it, and its label map moved with it.

    Args:
        volume: float32 (D, H, W, C), normalised, axes RAS (D runs from left to right).
        config: which changes, and how large.
        seed: of the run.
        epoch: from 0.
        sample: its row number in the shard set, or another number for a volume that comes several times.
        label_map: uint8 (D, H, W), or None.

    Returns:
        float32 (D, H, W, C), and uint8 (D, H, W) or None; the inputs themselves are left as they are.
    """
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence([_STREAM, seed, epoch, sample])))
    # All numbers are drawn whatever the configuration, so that adding one change leaves the others alone.
    mirrored = random.random() < 0.5
    shifts = random.uniform(-1, 1, size=3)
    factor = 1 + config.scale * random.uniform(-1, 1)
    if config.flip and mirrored:
        volume = volume[::-1]
        label_map = None if label_map is None else label_map[::-1]
    if config.shift:
        steps = np.rint(shifts * (config.shift + 0.499)).astype(int)
        volume = _shifted(volume, steps)
        label_map = None if label_map is None else _shifted(label_map, steps)
    if config.scale:
        volume = volume * np.float32(factor)
    if config.noise:
        volume = volume + np.float32(config.noise) * random.standard_normal(volume.shape, np.float32)
    return volume, label_map


def _shifted(volume: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Moved by whole voxels; what comes in repeats the edge, which is background in a cropped brain."""
    sources = [
        np.clip(np.arange(size) - shift, 0, size - 1)
        for size, shift in zip(volume.shape[:3], shifts, strict=True)
    ]
    return volume[np.ix_(*sources)]
