"""What augmentation costs, counted where it is done, so that it never slows training unseen."""

from __future__ import annotations

import threading
import time

import numpy as np

from trainer.config import AugmentConfig
from trainer.data.augment.drawing import draw

# Waiting for input below this share of an epoch is nothing to speak of.
MOST_WAITED = 0.02


class Augmenter:
    """The augmentation of one run or dataset, with a count of the time spent; threads may call it at once.

    Args:
        config: which changes, and how large.
        seed: of the run.
        voxel_mm: edges of a voxel along D, H, W, in mm.

    Attributes:
        is_idle: whether it never changes anything.
    """

    def __init__(
        self, config: AugmentConfig, seed: int, voxel_mm: tuple[float, float, float] = (1.0, 1.0, 1.0)
    ) -> None:
        self.is_idle = config.is_idle
        self._config, self._seed, self._voxel_mm = config, seed, voxel_mm
        self._lock = threading.Lock()
        self._seconds, self._volumes = 0.0, 0

    def __call__(
        self, volume: np.ndarray, epoch: int, sample: int, label_map: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Change a sample: see `trainer.data.augment.augment`."""
        if self.is_idle:
            return volume, label_map
        began = time.perf_counter()
        drawn = draw(self._config, self._seed, epoch, sample, volume.shape, self._voxel_mm)
        changed = drawn.applied(volume, label_map)
        spent = time.perf_counter() - began
        with self._lock:
            self._seconds += spent
            self._volumes += 1
        return changed

    @property
    def seconds(self) -> float:
        """Seconds spent so far, added up over all threads."""
        return self._seconds

    @property
    def volumes(self) -> int:
        """Samples changed so far."""
        return self._volumes


def input_verdict(input_wait_s: float, epoch_s: float, reader_s: float, augment_s: float) -> str | None:
    """A warning where steps wait for input and augmentation is why; None where there is nothing to say.

    Args:
        input_wait_s: seconds for which an epoch's steps waited for their batches.
        epoch_s: seconds that these steps took, waiting included.
        reader_s: seconds for which the reading threads were at work, augmentation included, over all threads.
        augment_s: seconds of these spent in augmentation.

    Returns:
        What was found and the cure, where the wait is more than 2 % of the time and augmentation more than
        half of the threads' work.
    """
    if epoch_s <= 0 or reader_s <= 0:
        return None
    waited, share = input_wait_s / epoch_s, augment_s / reader_s
    if waited <= MOST_WAITED or share <= 0.5:
        return None
    return (
        f"steps waited for input during {waited:.1%} of the epoch, and {share:.0%} of the reading threads' "
        "time went into augmentation. Set data.reader_threads higher where cores are free, or choose cheaper "
        "changes in data.augment: motion, elastic and affine cost most (docs/how-to/augment.md)."
    )
