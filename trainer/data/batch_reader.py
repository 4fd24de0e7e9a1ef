"""Batches made in threads of our own and handed out by tf.data, in their order."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.errors import CingulumError

# Shape and type of one part of a sample.
Part = tuple[tuple[int, ...], type]

# A batch is waited for in slices, to look whether a read hangs.
_SLICE_S = 0.5

# What went wrong in a reading thread, until `input_errors` raises it: TensorFlow passes on only its text.
_failures: list[CingulumError] = []


@contextlib.contextmanager
def input_errors() -> Iterator[None]:
    """A context to take batches in: a damaged shard raises its own ShardError, not TensorFlow's wrapping.

    Raises:
        ShardError: a volume that a dataset of this package reads is damaged.
    """
    try:
        yield
    except tf.errors.OpError:
        if _failures:
            failure = _failures[0]
            _failures.clear()
            raise failure from None
        raise


def signature(batch: int, *parts: Part) -> tuple[tf.TensorSpec, ...]:
    """What a batch of samples of these parts looks like."""
    return tuple(tf.TensorSpec((batch, *shape), kind) for shape, kind in parts)


def dataset(
    sample: Callable[[int], tuple[Any, ...]],
    batches: int,
    spec: tuple[tf.TensorSpec, ...],
    threads: int,
    ahead: int,
    overdue: Callable[[], CingulumError | None] | None = None,
) -> tf.data.Dataset:
    """Batches of `sample(0)`, `sample(1)`, ..., made in threads and handed out in this order.

    What `overdue` returns while a batch is waited for is raised.
    """
    reader = _Reader(sample, batches, spec, threads, ahead, overdue)

    def batch(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
        tensors = tf.numpy_function(reader.batch, [number], [part.dtype for part in spec])
        return tuple(tf.ensure_shape(t, part.shape) for t, part in zip(tensors, spec, strict=True))

    options = tf.data.Options()
    # Tuning would start more threads than a rank has cores.
    options.autotune.enabled = False
    return tf.data.Dataset.range(batches).map(batch).with_options(options)


class _Reader:
    """Makes batches in threads of its own, some of them ahead of the one asked for.

    The threads are Python's, not tf.data's, with which a process that ends in the middle of an epoch may wait
    for ever: docs/decisions/0004-loader-threads.md.
    """

    def __init__(
        self,
        sample: Callable[[int], tuple[Any, ...]],
        batches: int,
        spec: tuple[tf.TensorSpec, ...],
        threads: int,
        ahead: int,
        overdue: Callable[[], CingulumError | None] | None,
    ) -> None:
        self._sample = sample
        self._batches = batches
        self._spec = spec
        self._ahead = ahead
        self._overdue = overdue or (lambda: None)
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "reader")
        self._lock = threading.Lock()
        self._begun: dict[int, tuple[list[np.ndarray], list[concurrent.futures.Future[None]]]] = {}

    def batch(self, number: np.int64) -> list[np.ndarray]:
        """Batch `number`; the ones after it are begun."""
        wanted = range(int(number), min(int(number) + self._ahead + 1, self._batches))
        with self._lock:
            # What an iteration that was given up had begun is of no use.
            self._begun = {key: begun for key, begun in self._begun.items() if key in wanted}
            for key in wanted:
                if key not in self._begun:
                    self._begun[key] = self._begin(key)
            arrays, samples = self._begun.pop(int(number))
        try:
            for made in samples:
                while not concurrent.futures.wait([made], timeout=_SLICE_S).done:
                    late = self._overdue()
                    if late is not None:
                        raise late
                made.result()
        except CingulumError as error:
            _failures.append(error)
            raise
        return arrays

    def _begin(self, number: int) -> tuple[list[np.ndarray], list[concurrent.futures.Future[None]]]:
        size = self._spec[0].shape[0]
        arrays = [np.empty(part.shape, part.dtype.as_numpy_dtype) for part in self._spec]

        def fill(place: int) -> None:
            for array, value in zip(arrays, self._sample(number * size + place), strict=True):
                array[place] = value

        return arrays, [self._pool.submit(fill, place) for place in range(size)]
