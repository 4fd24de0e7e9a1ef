"""How ranks that are timed block by block talk with `Contestant` of cingulum/bench/processes.py."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def answer(world: Any, block: Callable[[], Any]) -> None:
    """Warm up, write the ranks' process ids, and time a block for each line `go` that rank 0 reads.

    Args:
        world: all ranks; rank 0 writes `ready [PID, ...]`, and `done [...]` for each block.
        block: trains one block; returns what `done` has of this rank.
    """
    block()
    _say(world, "ready", os.getpid())
    while world.broadcast_object(world.is_main and sys.stdin.readline() == "go\n"):
        _say(world, "done", block())


def seconds_of(learner: Any, batches: Iterable[tuple[Any, Any, Any]]) -> list[float]:
    """Train a step on each batch; returns the seconds of each."""
    seconds = []
    for batch in batches:
        started = time.perf_counter()
        np.asarray(learner.train_step(*batch))
        seconds.append(time.perf_counter() - started)
    return seconds


def _say(world: Any, word: str, mine: Any) -> None:
    everyones = world.allgather_object(mine)
    if world.is_main:
        sys.stdout.write(f"{word} {json.dumps(everyones)}\n")
        sys.stdout.flush()
