"""How ranks that are timed block by block talk with `Contestant` of cingulum/bench/processes.py."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from trainer.bench.watch import ProgressWatch


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
    told: Any = os.getpid()
    while True:
        watch.beat(f"telling the other ranks that it is {word}")
        _say(world, word, told)
        watch.rest()
        if not world.broadcast_object(world.is_main and sys.stdin.readline() == "go\n"):
            return
        watch.beat("training a block")
        word, told = "done", block()


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


def _say(world: Any, word: str, mine: Any) -> None:
    everyones = world.allgather_object(mine)
    if world.is_main:
        sys.stdout.write(f"{word} {json.dumps(everyones)}\n")
        sys.stdout.flush()
