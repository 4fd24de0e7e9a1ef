"""How ranks that are timed block by block talk with `Contestant` of cingulum/bench/processes.py."""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from trainer import batch_environment
from trainer.ranks import world as worlds


def answer(world: Any, block: Callable[[], Any], watch: ProgressWatch | None = None) -> None:
    """Warm up, write the ranks' process ids, and time a block for each line `go` that rank 0 reads.

    Args:
        world: all ranks; rank 0 writes `ready [PID, ...]`, and `done [...]` for each block.
        block: trains one block; returns what `done` has of this rank.
        watch: of this rank; it rests while the rank waits for a line. None: nobody watches.
    """
    watch = watch or ProgressWatch()
    watch.beat("training the first block")
    block()
    word: str = "ready"
    content: Any = os.getpid()
    while True:
        watch.beat(f"telling the other ranks that it is {word}")
        _say(world, word, content)
        watch.rest()
        if not world.broadcast_object(world.is_main and sys.stdin.readline() == "go\n"):
            return
        watch.beat("training a block")
        word, content = "done", block()


def seconds_of(
    learner: Any, batches: Iterable[tuple[Any, Any, Any]], watch: ProgressWatch | None = None
) -> list[float]:
    """Train a step on each batch; returns the seconds of each."""
    seconds: list[float] = []
    for batch in batches:
        if watch is not None:
            watch.beat(f"training step {len(seconds) + 1} of a block")
        started = time.perf_counter()
        np.asarray(learner.train_step(*batch))
        seconds.append(time.perf_counter() - started)
    return seconds


def _say(world: Any, word: str, content: Any) -> None:
    everyones = world.allgather_object(content)
    if world.is_main:
        sys.stdout.write(f"{word} {json.dumps(everyones)}\n")
        sys.stdout.flush()


# End a benchmark's ranks when one of them gets nowhere, and say which one, at what, and where it stands.
#
# `trainer.ranks.watchdog` does so in a training. Here ranks are stopped (SIGSTOP) while others are timed, and
# that time must not count: this watch counts seconds of its own thread, which stands still with the rest.


# For one thing, such as a step or the import of TensorFlow, on a machine that others use, too.
LIMIT_S = 240.0
_TICK_S = 1.0
_FRAMES = 4


class ProgressWatch:
    """Watch this process from `__enter__` to `__exit__`.

    Args:
        limit_s: seconds that this process may take from one `beat` to the next.
        tick_s: how often it is looked at.
    """

    def __init__(self, limit_s: float = LIMIT_S, tick_s: float = _TICK_S) -> None:
        self._limit_s, self._tick_s = limit_s, tick_s
        self._last: tuple[str | None, float] = ("starting", 0.0)
        self._ended = threading.Event()
        self._watched = threading.get_ident()

    def beat(self, what: str) -> None:
        """Record progress, and what the rank does next."""
        self._last = (what, 0.0)

    def rest(self) -> None:
        """Say that this process waits to be told what to do, for as long as that takes."""
        self._last = (None, 0.0)

    def __enter__(self) -> ProgressWatch:
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self._tick_s):
            last = self._last
            what, seconds = last[0], last[1] + self._tick_s
            if self._last is last:  # a beat that comes in between counts
                self._last = (what, seconds)
            if what is not None and seconds > self._limit_s:
                self._end(what, seconds)

    def _end(self, what: str, seconds: float) -> None:
        stack = traceback.extract_stack(sys._current_frames()[self._watched])[-_FRAMES:]
        where = " < ".join(
            f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in stack[::-1]
        )
        sys.stderr.write(f"error: {_name()}: no progress for {seconds:.0f} s while {what}, in {where}\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(all_threads=True)
        if worlds.is_known():
            worlds.current().abort(1)
        os._exit(1)


def _name() -> str:
    """Return who this is, which must be known before MPI has started, too."""
    if worlds.is_known():
        return worlds.current().name
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or batch_environment.rank(os.environ) or "0"
    return f"rank {rank} @ {socket.gethostname()}"
