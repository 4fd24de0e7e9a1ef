"""One rank of a placement on emulated hosts: timed block by block, on an emulated accelerator."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs.testbed.layout import LINK
from trainer.bench import blocks
from trainer.bench.placement_worker import PlacementJob, begin, network_of, prepared

HERE = Path(__file__).resolve().parent
# Strategies by which every rank trains the whole network: a chain of layers that wait.
WHOLE = ("data", "parameter-server")


def run_first(*, first: bool) -> None:
    """Let this process, and what it starts, run before all that is not in real time; or as all else does."""
    policy, priority = (os.SCHED_RR, 1) if first else (os.SCHED_OTHER, 0)
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))


def on_rank(
    cell: dict[str, Any],
    job: PlacementJob,
    plan_by: Callable[[Any, PlacementJob, Any], None] = lambda strategy, job, world: None,
) -> None:
    """Train a block each time that a line comes; rank 0 prints what every rank has measured.

    Args:
        cell: what is measured.
        job: what is trained; under `data` by a chain of layers that wait.
        plan_by: tells the strategy what to plan by; with the job, and the world of its ranks.
    """
    strategy, world = begin(job)
    plan_by(strategy, job, world)
    blocks.answer(world, timed(cell, job, strategy, world)[0])


def timed(
    cell: dict[str, Any], job: PlacementJob, strategy: Any, world: Any
) -> tuple[Callable[[], dict[str, Any]], Any]:
    """Return what trains and times a block of a job, the first time two steps to warm up; and its learner."""
    import emulated_units
    import psutil

    way, speed = job.strategy["name"], cell["gflops"] * 1e9
    device = emulated_units.Accelerator(speed)
    is_whole = way in WHOLE
    build = None if is_whole else functools.partial(emulated_units.EmulatedModel, accelerator=device)
    if is_whole:
        job = _chain(job, speed, job.batch / world.size)
    plan, learner, batch = prepared(job, strategy, world, build)
    if build:
        tasks = plan.lists.get(world.rank, ())
        planned_s = emulated_units.flops_of(plan.placement, tasks) / speed
        calls = emulated_units.calls_of(plan.placement, tasks)
        planned_bytes = plan.sent_per_update[world.rank]
    else:
        waits = [seconds for _, *both in job.options["layers"] for seconds in both if seconds]
        planned_s, planned_bytes, calls = sum(waits), None, (len(waits), 0)

    division = getattr(plan, "division", None)
    exchange = getattr(learner, "exchange", None)

    def sent() -> int:
        return sum(exchange.sent(rank).bytes for rank in range(world.size)) if exchange else 0

    def asked_s() -> float:
        # Messages that were asked for together have been waited for once.
        waits: dict[float, float] = {}
        for asked, there, *_ in exchange.arrivals() if exchange else ():
            waits[asked] = max(waits.get(asked, 0.0), there - asked)
        return sum(waits.values())

    warm: list[bool] = []

    def block() -> dict[str, Any]:
        # Not while it warms up, nor between blocks: the others of this machine, and who tells us, go on.
        run_first(first=cell["first"] and bool(warm))
        steps = cell["steps"] - 1 if warm else 1
        warm.append(True)
        # The first step waits for those that begin later, and is not counted.
        seconds = blocks.seconds_of(learner, [batch])
        counted, busy, wire = sent(), device.busy_s, psutil.net_io_counters(pernic=True)[LINK].bytes_sent
        asked_s()
        cpu = time.process_time()
        began = time.time()
        seconds += blocks.seconds_of(learner, itertools.repeat(batch, steps))
        run_first(first=False)
        return {
            "began": began,
            "seconds": seconds,
            "planned_s": planned_s,
            "calls": calls,
            "waited_s": (device.busy_s - busy) / steps if build else planned_s,
            "cpu_s": (time.process_time() - cpu) / steps,
            "messages_s": asked_s() / steps,
            "planned_bytes": planned_bytes,
            "predicted_s": division and division.step_s,
            "on_ranks": division and list(division.ranks),
            "sent_bytes": (sent() - counted) / steps if build else None,
            "wire_bytes": (psutil.net_io_counters(pernic=True)[LINK].bytes_sent - wire) / steps,
        }

    return block, learner


def _chain(job: PlacementJob, speed: float, volumes: float) -> PlacementJob:
    """Return the job with a chain of waiting layers that take as long as its network, of so many volumes."""
    import emulated_units

    from trainer.strategies.placed.reading import read

    layers: list[tuple[list[int], float, float]] = []
    network = read(network_of(job), 1)
    for one in network.operations:
        if one.kind in emulated_units.KINDS:
            forward = volumes * one.flops / speed
            # Of the first one, nobody asks for the gradient of the volume.
            layers.append(([], forward, forward * (2 if layers else 1)))
        if layers:
            layers[-1][0].extend(math.prod(w.shape) for w in one.weights if w.trainable)
    options = {"layers": layers}
    return dataclasses.replace(job, model=f"{HERE / 'emulated_accelerator.py'}:network", options=options)
