"""Times a few all-reduces before the first step: what the links between the ranks can do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np

from trainer.planning.links import Timed
from trainer.ranks.world import World

# Bytes of each all-reduce. The largest is as large as a bucket of gradients is by default; the first two are
# always timed, since it takes two to tell latency from rate.
SIZES = (2**12, 2**16, 2**20, 2**22)
REPEATS = 5
# A further size is left out where its repeats would take longer than this at the rate seen so far.
MOST_S = 0.5


def measure(world: World) -> list[Timed]:
    """Return the median seconds of each size on the slowest rank; a collective, the same on every rank.

    Zeros are added up; neither weights nor random numbers are touched. The first repeat of a size, which
    waits for the last rank to come, is left out.

    Args:
        world: of two ranks or more.
    """
    import tensorflow as tf

    timings: list[Timed] = []
    for size in SIZES:
        if (REPEATS + 1) * expected(timings, size) > MOST_S:
            break
        zeros = tf.constant(np.zeros(size // 4, np.float32))
        took = []
        for _ in range(REPEATS + 1):
            began = time.perf_counter()
            world.grouped_allreduce([zeros], "sum", name=f"link_probe_{size}")[0].numpy()
            took.append(time.perf_counter() - began)
        # Every rank goes on, or ends, by the same number.
        timings.append(Timed(size, max(world.allgather_object(statistics.median(took[1:])))))
    return timings


def expected(timings: Sequence[Timed], size: int) -> float:
    """Return the seconds of an all-reduce of `size` bytes, by the last two that were timed; 0 before."""
    if len(timings) < 2:
        return 0.0
    before, last = timings[-2:]
    per_byte = max(0.0, last.seconds - before.seconds) / (last.size - before.size)
    return last.seconds + per_byte * (size - last.size)
