"""Read batches in threads and return them as tensors, in order, without a copy.

Why in this way: docs/decisions/0004-loader.md.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.data.shards.thread_memory import aligned
from trainer.errors import CingulumError

# Shape and type of one part of a sample.
Part = tuple[tuple[int, ...], type]

# `fill(number, places)` makes sample `number`: it writes each part into its place, an array of the part's
# shape and type, () where the part is a single number. It writes every value, since memory is used again.
Fill = Callable[[int, Sequence[np.ndarray]], None]

# Says what to raise when reading takes too long; None while all is well.
Overdue = Callable[[], CingulumError | None]

# From the parts of a batch to what is yielded.
Arrange = Callable[[Sequence[Any]], Any]

# How often a reader that waits for a batch checks whether it is overdue.
LOOK_EVERY_S = 1.0


def signature(batch: int, *parts: Part) -> tuple[tf.TensorSpec, ...]:
    """Return the signature of a batch of samples of these parts."""
    return tuple(tf.TensorSpec((batch, *shape), kind) for shape, kind in parts)


class Batches:
    """Batches of the samples 0, 1, 2, ..., made in threads and returned in this order, some of them ahead.

    It may be iterated over repeatedly, and by several iterators at once. Tensors lie in memory that is reused
    after its last user has released it.

    The threads are Python's, and daemons: a process that ends does not wait for a read that hangs. They start
    here and not with the first batch, which may be asked for in a thread of TensorFlow's: it takes subnormal
    numbers for 0, and a thread inherits that.

    Args:
        fill: makes a sample. Several threads call it at once.
        batches: number of batches.
        spec: of a batch: see `signature`.
        threads: that make samples; they start now, and end when this is no longer used.
        ahead: number of batches that are begun before they are requested.
        ahead_bytes: limit on the bytes of these batches; None for no limit.
        overdue: called about every second while a batch is awaited; an error that it returns is raised.
        arrange: makes what is yielded from the parts of a batch; by default a tuple of them.

    Attributes:
        spec: of a batch, its parts one after another.
        arrange: as it was given.
    """

    def __init__(
        self,
        fill: Fill,
        batches: int,
        spec: Sequence[tf.TensorSpec],
        *,
        threads: int,
        ahead: int,
        ahead_bytes: int | None = None,
        overdue: Overdue | None = None,
        arrange: Arrange = tuple,
    ) -> None:
        batch_bytes = sum(prod(part.shape) * part.dtype.size for part in spec)
        if ahead_bytes is not None:
            ahead = min(ahead, ahead_bytes // max(1, batch_bytes))
        self.spec = tuple(spec)
        self.arrange = arrange
        self._fill = fill
        self._batches = batches
        self._samples = spec[0].shape[0]
        self._ahead = ahead
        self._overdue = overdue
        # One is in use, one is awaited, and one is released some time after its last use.
        self._buffers = [_Buffers(part.shape, part.dtype.as_numpy_dtype, ahead + 3) for part in spec]
        self._lock = threading.Lock()
        self._begun: dict[int, _Batch] = {}
        self._tasks: _Tasks = queue.SimpleQueue()
        for number in range(threads):
            threading.Thread(target=_work, args=(self._tasks,), name=f"reader-{number}", daemon=True).start()
        weakref.finalize(self, _end_work, self._tasks, threads).atexit = False

    def __len__(self) -> int:
        """Return the number of batches."""
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        """Yield each batch, arranged, as tensors on the host.

        Raises:
            CingulumError: a sample could not be made, or takes too long.
        """
        for number in range(self._batches):
            # No name for them: this generator must not hold the memory.
            yield self.arrange([_tensor(array) for array in self.arrays(number)])

    def arrays(self, number: int) -> list[np.ndarray]:
        """Return the parts of batch `number`, and begin the batches after it.

        Raises:
            CingulumError: a sample could not be made, or takes too long.
        """
        window = range(number, min(number + self._ahead + 1, self._batches))
        with self._lock:
            # Batches that an abandoned iteration has begun are not needed.
            for key in [key for key in self._begun if key not in window]:
                self._begun.pop(key).is_wanted = False
            for key in window:
                if key not in self._begun:
                    self._begun[key] = self._begin(key)
            batch = self._begun.pop(number)
        self._wait_for(batch)
        return [buffers.lend(a) for buffers, a in zip(self._buffers, batch.arrays, strict=True)]

    def _begin(self, number: int) -> _Batch:
        batch = _Batch([buffers.take() for buffers in self._buffers], self._samples)
        for place in range(self._samples):
            self._tasks.put((batch, self._fill, number * self._samples + place, place))
        return batch

    def _wait_for(self, batch: _Batch) -> None:
        while not batch.is_made.wait(LOOK_EVERY_S):
            error = self._overdue() if self._overdue is not None else None
            if error is not None:
                raise error
        if batch.failures:
            raise batch.failures[min(batch.failures)]


class _Batch:
    """A batch that is being made.

    Attributes:
        arrays: its parts.
        is_wanted: False to skip the samples that are not made yet.
        is_made: set when every sample is made, or has failed.
        failures: what went wrong, by the sample's place in the batch.
    """

    def __init__(self, arrays: list[np.ndarray], samples: int) -> None:
        self.arrays = arrays
        self.is_wanted = True
        self.is_made = threading.Event()
        self.failures: dict[int, BaseException] = {}
        self._left = samples
        self._lock = threading.Lock()

    def make(self, fill: Fill, number: int, place: int) -> None:
        """Make one of its samples."""
        if self.is_wanted:
            try:
                fill(number, [array[place, ...] for array in self.arrays])
            except BaseException as error:  # raised where the batch is waited for
                self.failures[place] = error
        with self._lock:
            self._left -= 1
            if not self._left:
                self.is_made.set()


def _tensor(array: np.ndarray) -> tf.Tensor:
    """Return the same memory as a tensor on the host; the array is released with its last user."""
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


# A batch, what makes its samples, and which sample goes to which place of it; None ends a thread.
_Tasks = queue.SimpleQueue[tuple[_Batch, Fill, int, int] | None]


def _work(tasks: _Tasks) -> None:
    # Refers to the tasks alone, so that an unused reader is freed, which ends its threads.
    while (task := tasks.get()) is not None:
        batch, fill, number, place = task
        batch.make(fill, number, place)
        del task, batch, fill


def _end_work(tasks: _Tasks, threads: int) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            tasks.get_nowait()
    for _ in range(threads):
        tasks.put(None)


class _Buffers:
    """Arrays of one shape and type, reused once all users of a lent one have released it.

    TensorFlow takes an aligned array over as it is, and holds it as long as any tensor, slice or array of its
    own shares the memory.

    Args:
        shape: of an array.
        dtype: of it.
        most: free arrays to keep.
    """

    def __init__(self, shape: tuple[int, ...], dtype: type, most: int) -> None:
        self._shape, self._dtype = tuple(shape), dtype
        # No lock: an array comes back whenever Python happens to find that it is free, in any thread.
        self._free: deque[np.ndarray] = deque(maxlen=most)

    def take(self) -> np.ndarray:
        """Return a free array; its values are uninitialised."""
        try:
            return self._free.pop()
        except IndexError:
            return aligned(self._shape, self._dtype)

    def lend(self, array: np.ndarray) -> np.ndarray:
        """Lend the same memory; when its last holder releases it, it is free again."""
        lent = array.view()
        weakref.finalize(lent, self._free.append, array).atexit = False
        return lent
