"""Batches as a data set of tf.data, for what asks for one, such as `keras.Model.fit`.

Training, evaluation and prediction take batches as they are: tf.data's own way of handing one out costs
about half a millisecond of the processor (docs/decisions/0033-without-tf-data.md).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from trainer.data.batch_reader import Batches
from trainer.errors import CingulumError

# What went wrong in a reading thread, until `input_errors` raises it: TensorFlow passes on only its text.
_failures: list[CingulumError] = []


@contextlib.contextmanager
def input_errors() -> Iterator[None]:
    """A context to take elements in: a damaged shard raises its own ShardError, not TensorFlow's wrapping.

    Raises:
        ShardError: a volume that a data set of this package reads is damaged.
    """
    try:
        yield
    except tf.errors.OpError:
        if _failures:
            failure = _failures[0]
            _failures.clear()
            raise failure from None
        raise


def dataset(batches: Batches) -> tf.data.Dataset:
    """The same elements in the same order, without a copy; iterate inside `input_errors`.

    Threads of tf.data never run our code but to wait for a batch: docs/decisions/0004-loader-threads.md.
    """
    arrays_of = _arrays_of(weakref.ref(batches))

    def element(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
        tensors = tf.numpy_function(arrays_of, [number], [part.dtype for part in batches.spec])
        parts = [tf.ensure_shape(t, part.shape) for t, part in zip(tensors, batches.spec, strict=True)]
        return batches.arrange(parts)

    options = tf.data.Options()
    # Tuning would start more threads than a rank has cores.
    options.autotune.enabled = False
    made = tf.data.Dataset.range(len(batches)).map(element).with_options(options)
    made.batches = batches
    return made


def _arrays_of(batches: weakref.ref[Batches]) -> Callable[[np.int64], list[np.ndarray]]:
    # TensorFlow keeps a Python function for ever, but reading must end with the data set.
    def arrays_of(number: np.int64) -> list[np.ndarray]:
        alive = batches()
        if alive is None:
            raise RuntimeError("a batch of a data set that is no longer there")
        try:
            return alive.arrays(int(number))
        except CingulumError as error:
            _failures.append(error)
            raise

    return arrays_of
