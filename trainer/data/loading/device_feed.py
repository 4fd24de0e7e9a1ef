"""Batches on the device that trains, the next one copied while this one is used."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf


def device() -> str | None:
    """Return the device that volumes have to be copied to; None where they lie in its memory already."""
    gpus = tf.config.list_logical_devices("GPU")
    return gpus[0].name if gpus else None


def fed(batches: Iterable[Any], to: str) -> Iterator[Any]:
    """Yield the batches, their volumes, weights and other fractional numbers on a device.

    A thread reads and copies one batch ahead, so that a step need not wait for its volumes to arrive. It ends
    with the iterator.

    Args:
        batches: structures of tensors on the host.
        to: name of the device.

    Raises:
        Exception: what reading raises, in its turn.
    """
    ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(maxsize=1)
    is_left = threading.Event()

    def copied(tensor: Any) -> Any:
        if not tf.is_tensor(tensor) or not tensor.dtype.is_floating:
            return tensor  # TensorFlow wants 32-bit integers on the host
        with tf.device(to):
            return tf.identity(tensor)

    def hand_over(batch: Any, error: BaseException | None = None) -> None:
        while not is_left.is_set():
            with contextlib.suppress(queue.Full):
                return ready.put((batch, error), timeout=1.0)

    def feed() -> None:
        try:
            for batch in batches:
                hand_over(tf.nest.map_structure(copied, batch))
                if is_left.is_set():
                    return
            hand_over(None, StopIteration())
        except BaseException as error:  # raised where the batch is waited for
            hand_over(None, error)

    threading.Thread(target=feed, name="device-feed", daemon=True).start()
    try:
        while True:
            batch, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield batch
            del batch  # its memory on the device is free for the one after the next
    finally:
        is_left.set()
