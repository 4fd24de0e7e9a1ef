"""Steps of a divided network whose units sleep, beside the step that the simulator plays of the same lists.

    python slept.py OUT SECONDS

Writes to the file OUT, for each strategy, `seconds` of each step (on the slowest rank; the first is left out)
and what the simulator makes of it, `simulated`, where the busiest rank sleeps SECONDS in a step. Messages and
all else are the runtime's own.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from trainer.bench.placement_worker import PlacementJob, begin, prepared

JOB = PlacementJob({"name": "spatial"}, model="tiny", size=16, depth=16, batch=4, width=4)
STRATEGIES = {
    "spatial": {"name": "spatial"},
    "gpipe": {"name": "hybrid", "micro_batches": 2, "planner": "dynamic", "schedule": "gpipe"},
    "1f1b": {"name": "hybrid", "micro_batches": 2, "planner": "dynamic", "schedule": "1f1b"},
}
STEPS = 2


def main() -> None:
    """Train each strategy for some steps."""
    out, wanted = Path(sys.argv[1]), float(sys.argv[2])
    _, world = begin(JOB)
    import numpy as np

    from benchmarks import emulated_units
    from trainer import config as configuration
    from trainer import models
    from trainer.bench import blocks
    from trainer.planning.placement.tasks import Compute, Differentiate, Recompute
    from trainer.planning.simulation import devices, engine
    from trainer.planning.simulation.fabric import ClusterFabric, PairLinks
    from trainer.strategies import registry
    from trainer.strategies.placed import reading

    network = reading.read(models.build(JOB.model, (JOB.size,) * 3 + (1,), 2, width=JOB.width), JOB.batch)
    profile = devices.computed(network, ClusterFabric(_cluster(), world.size), name=JOB.model)
    found = {}
    for name, section in STRATEGIES.items():
        tree = {
            "name": name,
            "data": {"shards": "none"},
            "model": {"name": JOB.model},
            "train": {"global_batch": JOB.batch, "strategy": section},
        }
        strategy = registry.of(configuration.parse(json.dumps(tree), []))
        if section["name"] == "hybrid":
            strategy.profile = profile
        flops_per_second: list[float] = []

        def build(plan: Any, setup: Any, told: list[float] = flops_per_second) -> Any:
            most = max(emulated_units.flops_of(plan.placement, tasks) for tasks in plan.lists.values())
            told.append(most / wanted)
            return emulated_units.EmulatedModel(plan, setup, emulated_units.Accelerator(most / wanted))

        plan, learner, batch = prepared(dataclasses.replace(JOB, strategy=section), strategy, world, build)
        divided, (speed,) = plan.placement.network, flops_per_second

        def seconds(rank: int, task: Any, network: Any = divided, speed: float = speed) -> float:
            if isinstance(task, Compute | Recompute):
                return emulated_units.work_of(network, task.unit) / speed
            if isinstance(task, Differentiate):
                of = {"inputs": task.of != "weights", "weights": task.of != "inputs"}
                return emulated_units.backward_work_of(network, task.unit, **of) / speed
            return 0.0

        took = []
        for _ in range(STEPS + 1):
            # All begin together: a rank that has finished would otherwise begin the next step meanwhile.
            world.allgather_object(None)
            took += blocks.seconds_of(learner, [batch])
        everyones = np.asarray(world.allgather_object(took[1:])).max(axis=0)
        # Links within a host: microseconds, where a rank sleeps seconds.
        simulated = engine.play(plan.lists, seconds, PairLinks(profile), world.size).step_s
        found[name] = {"seconds": everyones.tolist(), "simulated": simulated}
    if world.is_main:
        out.write_text(json.dumps(found))


def _cluster() -> Any:
    """A cluster on which only FLOPs take time, as on the accelerators, and more than messages."""
    from trainer.planning.simulation import cluster

    known = cluster.load("cpu-ethernet")
    none, slow, endless = (cluster.Positive(value=value, source="a test") for value in (1e-30, 1e6, 1e30))
    device = known.devices["xeon-6148"].model_copy(
        update={"operation_s": none, "flops_per_second": slow, "memory_bytes_per_second": endless}
    )
    return known.model_copy(update={"devices": {"xeon-6148": device}})


if __name__ == "__main__":
    main()
