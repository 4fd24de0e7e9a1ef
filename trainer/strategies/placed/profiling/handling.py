"""What a rank does itself for the messages that it sends and receives: joining and cutting boxes, and calls.

Every rank sends to the next one, and receives from the one before; both are timed apart, and what is received
is there by then. So the seconds of links are not in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from trainer.planning.profile import ProfiledHandling
from trainer.ranks.exchange import Compiled, Parcel, open_exchange
from trainer.ranks.world import World

# Elements of float32 of a message, and how many of that size travel in a round.
SIZES = ((1024, 16), (2**19, 4))
ROUNDS = 7
# A message that has not come by then is waited for, and its round says more of the link.
_MOST_S = 5.0
_TAG = 1


def measure(world: World) -> ProfiledHandling | None:
    """Return what messages cost all ranks; a collective.

    Args:
        world: started with `Members(messages=True)`, or of one rank.

    Returns:
        None on one rank, and where messages go through Python, which waits and handles at once.
    """
    if world.links is None or world.size == 1:
        return None
    exchange = open_exchange(world)
    try:
        if not isinstance(exchange, Compiled):
            return None
        small, large = (_seconds(world, exchange, size, count) for size, count in SIZES)
    finally:
        world.barrier()
        exchange.close()
    byte_s = max(0.0, large - small) / (4 * (SIZES[1][0] - SIZES[0][0]))
    everyones = world.allgather_object((max(0.0, small - 4 * SIZES[0][0] * byte_s), byte_s))
    message_s, each = zip(*everyones, strict=True)
    return ProfiledHandling(message_s=message_s, byte_s=each)


def _seconds(world: World, exchange: Compiled, size: int, count: int) -> float:
    """Return seconds of sending or receiving a message of so many numbers: the median of some rounds."""
    before, after = ((world.rank + step) % world.size for step in (-1, 1))
    leaving, coming = (Parcel(rank, _TAG, size, tf.float32) for rank in (after, before))
    halves = [tf.zeros(size // 2), tf.zeros(size // 2)]

    @tf.function(autograph=False)
    def send() -> Any:
        last: list[Any] = []
        for _ in range(count):
            with tf.control_dependencies(last):
                last = [exchange.move([tf.concat(halves, 0)], [leaving], [])[1]]
        with tf.control_dependencies(last):
            return tf.zeros(())

    @tf.function(autograph=False)
    def receive() -> Any:
        last: list[Any] = []
        for _ in range(count):
            with tf.control_dependencies(last):
                (found,), done = exchange.move([], [], [coming])
            last = [done, *tf.split(found, 2)]
        with tf.control_dependencies(last):
            return tf.zeros(())

    took = []
    for _ in range(1 + ROUNDS):
        took.append(_timed(send))
        limit = time.perf_counter() + _MOST_S
        while exchange.early() < 4 * size * count and time.perf_counter() < limit:
            time.sleep(1e-3)
        took.append(_timed(receive))
        world.barrier()
    return statistics.median(_pairs(took[2:])) / count


def _pairs(took: Sequence[float]) -> list[float]:
    """Return the mean of sending and receiving, by round."""
    return [(one + other) / 2 for one, other in zip(took[::2], took[1::2], strict=True)]


def _timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call().numpy()
    return time.perf_counter() - began
