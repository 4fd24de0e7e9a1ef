"""The most memory that a process took while it trained."""

from __future__ import annotations

import resource

import tensorflow as tf


class PeakMemory:
    """The most that tensors took, between `begin` and `end`: what is done in between is not counted.

    Attributes:
        tensors: bytes by TensorFlow's allocator; None where it does not count.
    """

    def __init__(self) -> None:
        self.tensors: int | None = None
        self._device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
        self._is_counting = False

    def begin(self) -> None:
        """Count from now on; nothing happens where it counts already."""
        if not self._is_counting:
            self._is_counting = True
            try:
                tf.config.experimental.reset_memory_stats(self._device)
            except ValueError:  # it keeps no statistics
                return

    def end(self) -> None:
        """Take note of the most, and do not count until the next `begin`."""
        if self._is_counting:
            self._is_counting = False
            try:
                most = int(tf.config.experimental.get_memory_info(self._device)["peak"])
            except ValueError:
                return
            self.tensors = max(self.tensors or 0, most) or None

    @property
    def resident(self) -> int:
        """Bytes that the whole process had in memory, where they were most; since its start."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
