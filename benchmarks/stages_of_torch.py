"""PyTorch's pipeline on the hosts of `stages_on_hosts.py`: a chain of the seconds and bytes of our stages."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from cingulum.bench.processes import Process, Running
from jobs.testbed import Testbed
from jobs.testbed.layout import LINK, address
from trainer.bench import hardware
from trainer.bench.placement_worker import PlacementJob, network_of

PROGRAM = Path(__file__).resolve().with_name("torch_stages.py")
MOST_S = 300


def chain(profile: Any, job: PlacementJob, ranks: int, schedule: str) -> list[dict[str, Any]]:
    """Return seconds of both passes of a micro-batch of one volume, and bytes sent on, of each stage.

    The cuts are those of `planner: dynamic`. What a stage reads of one before the last passes through all
    between them.
    """
    import numpy as np

    from trainer.planning.placement import partitioning
    from trainer.planning.stages import planners
    from trainer.strategies.placed.reading import read

    network = read(network_of(job), 1)
    parts = partitioning.partitions(network, profile, ranks, 4 * ranks)
    problem = partitioning.problem(
        network, parts, profile, devices=ranks, replicas=1, micro_batches=job.strategy["micro_batches"],
        schedule=schedule, slots=1,
    )  # fmt: skip
    devices = np.array(planners.plan(problem, "dynamic", 0).devices)
    starts = [0, *(np.flatnonzero(np.diff(devices)) + 1), len(devices)]
    found = []
    for start, stop in itertools.pairwise(starts):
        seconds = [float(one[start:stop, 0].sum()) for one in (problem.forward_s, problem.backward_s)]
        crossing = problem.moved_bytes[:stop, stop:]
        found.append(
            {
                "forward_s": seconds[0],
                "backward_s": seconds[1],
                "sent_bytes": int(crossing.max(axis=1, initial=0).sum()),
            }
        )
    return found


def measure(
    cell: dict[str, Any], stages: list[dict[str, Any]], micro_batches: int, repeats: int, python: Path
) -> dict[str, Any]:
    """Start a rank for each stage, and time blocks of steps; a row as `placement_on_hosts.measure` has it."""
    cluster = Testbed.up(len(stages), slurm=False, bandwidth=cell["rate"], name="torch", tied=True)
    try:
        told = {
            "stages": stages,
            "micro_batches": micro_batches,
            "schedule": cell["strategy"].removeprefix("torch-"),
            "address": address(cluster.hosts[0]),
            **{"interface": LINK, "steps": cell["steps"], "first": cell["first"]},
        }
        blocks = [_block(cluster, told, python) for _ in range(repeats)]
    finally:
        cluster.down()
    return {**cell, "stages": stages, "blocks": {cell["rate"]: blocks}, "machine": hardware.here()}


def _block(cluster: Testbed, told: dict[str, Any], python: Path) -> list[dict[str, Any]]:
    ranks = []
    for rank, host in enumerate(cluster.hosts):
        line = [str(python), str(PROGRAM), json.dumps({**told, "rank": rank})]
        argv = cluster.argv(host, line, cwd=PROGRAM.parents[1])
        ranks.append(Process("torch", f"rank {rank} @ {host}", argv))
    with Running(ranks) as running:
        said = running.hear(ranks, MOST_S, "done")
    unknown = {"predicted_s": None, "planned_bytes": None, "sent_bytes": None}
    return [{**json.loads(said[rank]), **unknown} for rank in ranks]
