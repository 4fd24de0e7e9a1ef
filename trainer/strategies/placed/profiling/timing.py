"""Seconds of a computation within a graph: warm-up dropped, medians and spread.

A step runs thousands of operations in one graph. One call of a `tf.function` costs about as much as twenty
small operations, so a computation is repeated in a loop within the graph, and the call is shared by all.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

# What one timed call should take at least, by the number of computations within it.
CALL_S = 0.015
MOST_LOOPS = 10_000
# Every computation is measured in each round, so that a moment in which the machine is busy spoils no median.
ROUNDS = 3
REPEATS = 2
# Those that take longer have one repeat in each round.
SLOW_S = 0.1


class Spread(NamedTuple):
    """Median of repeats, and how far the fastest and the slowest lie apart; seconds."""

    median: float
    spread: float


# Computes so many times with these arguments; returns when it is done.
Loop = Callable[[int, Sequence[Any]], object]


class Stopwatch:
    """Times some computations, in turn, in several rounds.

    Args:
        loops: of each computation.
        arguments: makes the tensors that all of them take; they are kept for one round only.

    Attributes:
        found: seconds of one computation of each loop; an entry for each repeat.
    """

    def __init__(self, loops: Sequence[Loop], arguments: Callable[[], Sequence[Any]]) -> None:
        self._loops, self._arguments = loops, arguments
        self._counts: list[int] = []
        self.found: list[list[float]] = []

    def round(self) -> None:
        """Do the repeats of one round; the first calls, which trace and lay out memory, are dropped."""
        arguments = self._arguments()
        self._counts = self._counts or [_count(one, arguments) for one in self._loops]
        for one in self._loops:
            one(1, arguments)
        spent = 0.0
        for _ in range(REPEATS):
            began = time.perf_counter()
            self.found.append(
                [seconds(*one, arguments) for one in zip(self._loops, self._counts, strict=True)]
            )
            spent += time.perf_counter() - began
            if spent > SLOW_S:
                return


@contextlib.contextmanager
def as_in_a_step() -> Iterator[None]:
    """Trace in this context without TensorFlow's remapper, which merges operations.

    It fails, with a line on standard error, where a convolution of padded values and its gradient are in one
    graph ("Mutation::Apply error: fanout ... exist for missing node"), so that nothing is merged in a step.
    Merged in the forward pass alone, the two could not be subtracted from each other.
    """
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"remapping": False})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"remapping": before.get("remapping", True)})


def loop(work: Callable[..., Sequence[Any]]) -> Loop:
    """Return a function that computes `work(*arguments)` `count` times, one after the other, in one graph.

    Args:
        work: takes tensors and returns tensors, all of which are computed every time.
    """

    @tf.function(autograph=False, jit_compile=False)
    def times(count: Any, *given: Any) -> Any:
        def once(number: Any, seen: Any) -> tuple[Any, Any]:
            # The graph's optimizer removes what no data depends on: take a number of every output.
            found = [_first(x) for x in work(*(tf.identity(x) for x in given))]
            return number + 1, seen + tf.add_n(found)

        start = (tf.constant(0), tf.constant(0.0))
        return tf.while_loop(lambda number, _: number < count, once, start, parallel_iterations=1)[1]

    return lambda count, arguments: times(tf.constant(count), *arguments).numpy()


def _first(x: Any) -> Any:
    return tf.cast(tf.reshape(x, [-1])[0], tf.float32)


def _count(repeat: Loop, arguments: Sequence[Any]) -> int:
    """How often to compute in one call, so that it takes long enough; the first call is not timed."""
    repeat(1, arguments)
    count = 1
    while (took := seconds(repeat, count, arguments) * count) < CALL_S / 2 and count < MOST_LOOPS:
        count = min(MOST_LOOPS, math.ceil(count * min(10.0, CALL_S / took)))
    return count


def seconds(repeat: Loop, count: int, arguments: Sequence[Any]) -> float:
    """Return the seconds of one computation: the mean of `count` in one call."""
    began = time.perf_counter()
    repeat(count, arguments)
    return (time.perf_counter() - began) / count


def spread(values: Sequence[float]) -> Spread:
    """Return median and spread of seconds; a difference below 0 is noise, and 0."""
    whole = [max(0.0, value) for value in values]
    return Spread(statistics.median(whole), max(whole) - min(whole))
