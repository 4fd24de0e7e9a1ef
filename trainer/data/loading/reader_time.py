"""Measure the time of reading threads, so that a slowdown by augmentation is reported."""

from __future__ import annotations

import threading
import time

# Waiting for input below this share of an epoch is nothing to speak of.
MOST_WAITED = 0.02


class ReaderTime:
    """Seconds of work of the reading threads, summed over all of them; threads may add at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = self._reported = (0.0, 0.0)

    @staticmethod
    def now() -> float:
        """Return seconds on a monotonic clock."""
        return time.perf_counter()

    def add(self, reader_s: float, augment_s: float = 0.0) -> None:
        """Add a sample: the seconds it took in all, and the seconds of these spent in augmentation."""
        with self._lock:
            self._seconds = (self._seconds[0] + reader_s, self._seconds[1] + augment_s)

    @property
    def seconds(self) -> tuple[float, float]:
        """Return all seconds so far, and those of augmentation."""
        return self._seconds

    def verdict(self, input_wait_s: float, epoch_s: float) -> str | None:
        """Return `input_verdict` for the seconds since the last call: those of an epoch."""
        before, self._reported = self._reported, self._seconds
        reader_s, augment_s = (now - then for now, then in zip(self._reported, before, strict=True))
        return input_verdict(input_wait_s, epoch_s, reader_s, augment_s)


def input_verdict(input_wait_s: float, epoch_s: float, reader_s: float, augment_s: float) -> str | None:
    """Return a warning where steps wait for input because of augmentation; None otherwise.

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
