"""A function over many values in several processes, results in order, memory bounded."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import TypeVar

from trainer.errors import CingulumError

Given = TypeVar("Given")
Made = TypeVar("Made")


def default_workers() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0))


def in_order(function: Callable[[Given], Made], values: Iterable[Given], workers: int) -> Iterator[Made]:
    """Yield `function(value)` for every value, in the order of the values, whatever the number of workers.

    At most two results per worker wait to be taken. One worker means this very process.

    Args:
        function: importable by name, since workers are fresh interpreters: a fork would copy open HDF5 files
            and the threads of TensorFlow.

    Raises:
        CingulumError: a worker was killed from outside.
    """
    if workers <= 1:
        yield from map(function, values)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_prepare)
    waiting: deque[Future[Made]] = deque()
    try:
        for value in values:
            waiting.append(pool.submit(function, value))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise CingulumError(
            "A worker process was ended from outside, most likely because memory ran out.",
            cure=f"Use fewer than {workers} with --workers; what was done is kept.",
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare() -> None:
    """Runs first in each worker."""
    # Ctrl-C reaches the whole process group; the parent decides what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Without this a worker whose parent was killed (kill -9) would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
