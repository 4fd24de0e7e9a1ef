"""Processes that time a job, whose module in trainer/bench is the program, and the turns they take."""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cingulum.bench.processes import Process
from jobs.local import mpirun

# Repeats without which no interval says anything.
FEWEST = 8

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


def process(job: Any, group: str, name: str, environment: Mapping[str, str] | None = None) -> Process:
    """Return one process that is no rank.

    Args:
        job: a dataclass.
        group, name: as `Process` has them.
        environment: of the process.
    """
    return Process(group, name, _command(job), {**_QUIET, **(environment or {})})


def ranks(
    job: Any,
    group: str,
    number: int,
    environment: Mapping[str, str] | None = None,
    hosts: Mapping[str, int] | None = None,
) -> Process:
    """Return ranks under mpirun.

    Args:
        job: a dataclass.
        group: as `Process` has it.
        number: of ranks.
        environment: of the ranks.
        hosts: ranks that fit on each host, by name; default: this host.
    """
    # By `env`, not by our own environment: mpirun hands that down to the ranks of this host only.
    settings = [f"{name}={value}" for name, value in (environment or {}).items()]
    line, additions = mpirun.command(number, ["env", *settings, *_command(job)], hosts=hosts)
    return Process(group, f"{number} ranks", line, {**_QUIET, **additions})


def in_turn(
    ways: Sequence[Callable[[], None]],
    repeats: int,
    progress: Callable[[int, int], None],
    enough: Callable[[], bool] = lambda: False,
) -> int:
    """Measure each way once in each repeat, in another sequence each time.

    Args:
        ways: to measure.
        repeats: how often, at most.
        progress: told how many of how many measurements are done.
        enough: asked after each repeat but the first ones, `FEWEST`: whether no more are needed.

    Returns:
        How many repeats there were.
    """
    order = list(ways)
    rng = random.Random(0)  # noqa: S311  a sequence, no secret
    for repeat in range(repeats):
        rng.shuffle(order)
        for number, way in enumerate(order):
            progress(repeat * len(order) + number, repeats * len(order))
            way()
        if repeat + 1 >= FEWEST and enough():
            repeats = repeat + 1
            break
    progress(repeats * len(order), repeats * len(order))
    return repeats


def _command(job: Any) -> list[str]:
    return [sys.executable, "-m", type(job).__module__, json.dumps(dataclasses.asdict(job))]
