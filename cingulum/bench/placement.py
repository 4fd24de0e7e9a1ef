"""How fast a network is that is divided over ranks: beside one rank, and beside what dividing can reach.

The limit is measured, not computed: as many processes as ranks, each of which trains its part of the volume
and exchanges nothing. All kinds are timed in turn, in short blocks, in one run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
from collections.abc import Callable
from typing import Any

from cingulum.bench import workers
from cingulum.bench.processes import Contestant, Process
from trainer.bench import hardware
from trainer.bench.placement_worker import PlacementJob
from trainer.bench.spreads import ratios, spread


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
    strategy = dict(job.strategy)
    strategy.pop("parts", None)
    strategy.pop("shares", None)
    kinds: dict[str, list[Process]] = {
        "divided": [workers.ranks(job, "divided", ranks)],
        "parts": [workers.process(part, "parts", f"part {number}") for number in range(ranks)],
        "alone": [workers.process(alone, "one rank", "one rank")],
        "divided_by_one": [
            workers.process(dataclasses.replace(job, strategy=strategy), "one rank", "itself")
        ],
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    with contextlib.ExitStack() as stack:
        contestants = {}
        for name, processes in kinds.items():
            tell(f"starting {name.replace('_', ' ')}")
            contestants[name] = stack.enter_context(Contestant(name, processes))
            contestants[name].warm_up()

        def measure(name: str) -> None:
            everyones = [rank for launch in contestants[name].block() for rank in launch]
            # The first step waits for those that have stood still for longer.
            seconds[name].append(statistics.mean(map(statistics.mean, (rank[1:] for rank in everyones))))

        workers.in_turn([functools.partial(measure, name) for name in kinds], repeats, progress)
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
