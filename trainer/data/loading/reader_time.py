"""Measure the time of reading threads, so that a slowdown by augmentation is reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

# Waiting for input below this share of an epoch is nothing to speak of.
MOST_WAITED = 0.05


class ReaderTime:
    """Seconds of work of the reading threads, summed over all of them; threads may add at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = self._reported = (0.0, 0.0)
        self._warned_of = 0.0

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

    def verdict(self, input_wait_s: float, epoch_s: float, changes: Sequence[str]) -> str | None:
        """Return `input_verdict` for the seconds since the last call: those of an epoch.

        It is given once, and again where steps wait for twice the share of which was warned before.
        """
        before, self._reported = self._reported, self._seconds
        reader_s, augment_s = (now - then for now, then in zip(self._reported, before, strict=True))
        verdict = input_verdict(input_wait_s, epoch_s, reader_s, augment_s, changes)
        if verdict is None or input_wait_s / epoch_s < 2 * self._warned_of:
            return None
        self._warned_of = input_wait_s / epoch_s
        return verdict


def input_verdict(
    input_wait_s: float, epoch_s: float, reader_s: float, augment_s: float, changes: Sequence[str]
) -> str | None:
    """Return a warning where steps wait for input because of augmentation; None otherwise.

    Args:
        input_wait_s: seconds for which an epoch's steps waited for their batches.
        epoch_s: seconds that these steps took, waiting included.
        reader_s: seconds for which the reading threads were at work, augmentation included, over all threads.
        augment_s: seconds of these spent in augmentation.
        changes: keys of `data.augment` that are on.

    Returns:
        What was found and the cure, where the wait is more than 5 % of the time and augmentation more than
        half of the threads' work.
    """
    if epoch_s <= 0 or reader_s <= 0:
        return None
    waited, share = input_wait_s / epoch_s, augment_s / reader_s
    if waited <= MOST_WAITED or share <= 0.5:
        return None
    return (
        f"steps waited for input during {waited:.1%} of the epoch, and {share:.0%} of the reading threads' "
        f"time went into augmentation ({', '.join(changes)}). Set data.reader_threads higher where cores are "
        "free, or leave out what costs most: `cingulum augment` times each change (docs/how-to/augment.md)."
    )
