"""How fast a network is that is divided over ranks: beside one rank, and beside what dividing can reach.

The limit is measured, not computed: as many processes as ranks, each of which trains its part of the volume
and exchanges nothing. All kinds are timed in turn, in short blocks, in one run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import statistics
import sys
from collections.abc import Callable
from typing import Any

from cingulum.bench.processes import Contestant, Process
from jobs.launchers import mpirun
from trainer.bench import hardware
from trainer.bench.placement_worker import PlacementJob
from trainer.bench.spreads import ratios, spread

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


def placement(
    job: PlacementJob,
    *,
    ranks: int,
    repeats: int,
    progress: Callable[[int, int], None],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Measure a placement in turn with one rank, with parts alone, and with itself on one rank.

    Args:
        job: what to time; its strategy divides the network.
        ranks: that share a volume.
        repeats: blocks of each kind.
        progress: told how many blocks of how many are done.
        tell: told what is being started.

    Returns:
        `of_limit`: step time of parts that exchange nothing over that of the placement; `speedup`: step time
        of one rank over it; `overhead`: the placement on one rank over plain training, minus 1; each as
        `spread` tells it; step times in seconds, and the machine.
    """
    alone = dataclasses.replace(job, strategy={"name": "data"})
    part = dataclasses.replace(alone, depth=-(-job.size // ranks))
    one = dict(job.strategy)
    one.pop("parts", None)
    one.pop("shares", None)
    kinds: dict[str, list[Process]] = {
        "divided": [_launched(job, ranks)],
        "parts": [Process("parts", f"part {number}", _worker(part), _QUIET) for number in range(ranks)],
        "alone": [Process("one rank", "one rank", _worker(alone), _QUIET)],
        "divided_by_one": [
            Process("one rank", "itself", _worker(dataclasses.replace(job, strategy=one)), _QUIET)
        ],
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    with contextlib.ExitStack() as stack:
        contestants = {}
        for name, processes in kinds.items():
            tell(f"starting {name.replace('_', ' ')}")
            contestants[name] = stack.enter_context(Contestant(name, processes))
            contestants[name].warm_up()
        order = list(kinds)
        rng = random.Random(0)  # noqa: S311  a sequence, no secret
        for repeat in range(repeats):
            rng.shuffle(order)
            for number, name in enumerate(order):
                progress(repeat * len(order) + number, repeats * len(order))
                everyones = [rank for launch in contestants[name].block() for rank in launch]
                # The first step waits for those that have stood still for longer.
                seconds[name].append(statistics.mean(map(statistics.mean, (rank[1:] for rank in everyones))))
        progress(repeats * len(order), repeats * len(order))
    return {
        **spread("of_limit", ratios(seconds["parts"], seconds["divided"])),
        **spread("speedup", ratios(seconds["alone"], seconds["divided"])),
        **spread("overhead", [r - 1 for r in ratios(seconds["divided_by_one"], seconds["alone"])]),
        "step_s": {name: spread("median", times) for name, times in seconds.items()},
        "ranks": ranks,
        "repeats": repeats,
        "job": dataclasses.asdict(job),
        "machine": hardware.here(),
    }


def _launched(job: PlacementJob, ranks: int) -> Process:
    line, additions = mpirun.command(ranks, _worker(job))
    return Process("divided", f"{ranks} ranks", line, {**_QUIET, **additions})


def _worker(job: PlacementJob) -> list[str]:
    return [sys.executable, "-m", "trainer.bench.placement_worker", json.dumps(dataclasses.asdict(job))]
