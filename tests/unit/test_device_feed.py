"""Batches that are copied to a device ahead of their use; here that device is the processor."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainer.data.loading import device_feed


def batches(count: int, read: list[int]) -> Iterator[Any]:
    for number in range(count):
        read.append(number)
        yield (tf.fill((2, 3), float(number)), tf.ones((2, 1))), tf.fill((2,), number), tf.ones(2)


def feeders() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "device-feed"]


def test_batches_come_in_order_and_whole() -> None:
    found = list(device_feed.fed(batches(5, []), "CPU:0"))
    assert [int(y[0]) for _, y, _ in found] == list(range(5))
    for number, ((x, _), _, w) in enumerate(found):
        np.testing.assert_array_equal(x, np.full((2, 3), number))
        assert w.device.endswith("CPU:0")


def test_one_batch_is_ready_while_another_is_used() -> None:
    read: list[int] = []
    fed = device_feed.fed(batches(9, read), "CPU:0")
    next(fed)
    # The next one is ready, the one after it waits for its place.
    waited = threading.Event()
    for _ in range(100):
        if len(read) == 3:
            break
        waited.wait(0.05)
    assert read == [0, 1, 2]
    fed.close()


def test_what_cannot_be_read_is_raised_in_its_turn() -> None:
    def damaged() -> Iterator[Any]:
        yield from batches(2, [])
        raise ValueError("volume 3 is damaged")

    fed = device_feed.fed(damaged(), "CPU:0")
    assert [int(next(fed)[1][0]), int(next(fed)[1][0])] == [0, 1]
    with pytest.raises(ValueError, match="volume 3"):
        next(fed)


def test_an_iterator_that_is_left_ends_its_thread() -> None:
    before = len(feeders())
    fed = device_feed.fed(batches(1000, []), "CPU:0")
    next(fed)
    mine = feeders()[before:]
    fed.close()
    for one in mine:
        one.join(10)
        assert not one.is_alive()


def test_on_processors_volumes_are_where_they_are_needed() -> None:
    assert device_feed.device() is None
