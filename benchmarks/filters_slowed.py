#!/usr/bin/env python3
"""Train a network of filters_unequal.py on two ranks, of which the second is slowed while it trains.

    sudo .venv/bin/python benchmarks/filters_slowed.py --network 150:800 --quota 0.25 --every 10

Its quota of processor time (a cgroup's, which root may make) falls to --quota after --before steps. It is
trained twice, without recalibration and with a look every so many steps, and the seconds of the last steps
are compared. Losses of the two differ as those of the divisions that they begin with do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import filters_unequal

from jobs.local import mpirun

# Steps of which a median is told.
COUNTED = 8


def measure(cell: dict[str, Any]) -> dict[str, Any]:
    """Train on two ranks, each with a whole processor at first; return what rank 0 tells."""
    with filters_unequal.groups([1.0, 1.0]) as made:
        told = {**cell, "groups": [str(path) for path in made]}
        line, additions = mpirun.command(
            2, [sys.executable, str(Path(__file__).resolve()), "--worker", json.dumps(told)]
        )
        environment = {**os.environ, **additions, "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=3600, check=False
        )
    if done.returncode:
        raise SystemExit(f"{cell} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def worker(cell: dict[str, Any]) -> None:
    """Be one rank: enter its group, then train."""
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    group = Path(cell["groups"][rank])
    # Before any thread is started.
    (group / "cgroup.procs").write_text(str(os.getpid()))

    from trainer import config as configuration
    from trainer.ranks import launch, starting
    from trainer.strategies import registry

    section = {key: cell[key] for key in ("balance", "mode", "recalibrate_every")}
    train = {"global_batch": cell["batch"], "strategy": {"name": "filters", **section}}
    tree = {"name": "slowed", "data": {"shards": "none"}, "train": train}
    strategy = registry.of(configuration.parse(json.dumps(tree), []))
    world = starting.init(
        threads=1, environment=strategy.environment(), members=strategy.members(launch.expected_size())
    )

    import keras
    import numpy as np
    import tensorflow as tf

    from trainer import models
    from trainer.strategies.learner import Setup

    keras.utils.set_random_seed(1)
    name, options, shape, classes = filters_unequal.NETWORKS[cell["network"]]
    model = models.build(name, shape, classes, **options)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    strategy.calibrate(model, world, None)
    plan = strategy.plan(model, optimizer, world.size)
    begun = plan.tree()["balance"]
    learner = strategy.build(plan, Setup(model, optimizer, world))
    random = np.random.default_rng(0)
    x = tf.constant(random.normal(size=(cell["batch"], *shape)).astype(np.float32))
    y = tf.constant(random.integers(0, classes, cell["batch"]).astype(np.int32))
    w = tf.ones(cell["batch"], tf.float32)
    losses, seconds, looks, changes = [], [], [], []
    for step in range(1, cell["steps"] + 1):
        if step == cell["before"] + 1 and rank == 1:
            filters_unequal.limit(group, cell["quota"])
        world.barrier()
        began = time.perf_counter()
        losses.append(float(learner.train_step(x, y, w)))
        world.barrier()
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        found = strategy.replan(learner, plan, step, cell["steps"] - step)
        if found is not None:
            plan = found
            changes.append({"step": step, "filters": found.tree()["balance"]["filters"]})
        if cell["recalibrate_every"] and step % cell["recalibrate_every"] == 0:
            looks.append([step, round(time.perf_counter() - began, 3)])
    everyones = world.allgather_object(losses)
    if rank == 1:
        filters_unequal.limit(group, 1.0)
    if world.is_main:
        told = {
            "before_s": statistics.median(seconds[: cell["before"]][-COUNTED:]),
            "after_s": statistics.median(seconds[-COUNTED:]),
            "filters": begun["filters"],
            "changes": changes,
            "looks_s": looks,
            "losses": [sum(each) for each in zip(*everyones, strict=True)],
            "seconds": [round(one, 4) for one in seconds],
        }
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
    world.barrier()
    learner.close()
    world.shutdown()


def main() -> None:
    """Measure both ways, print the table, and write all figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--network", default="150:800", choices=filters_unequal.NETWORKS)
    parser.add_argument("--quota", type=float, default=0.25, help="processors of the second rank, later")
    parser.add_argument("--before", type=int, default=12, help="steps before that")
    parser.add_argument("--steps", type=int, default=60, help="of each training")
    parser.add_argument("--every", type=int, default=10, help="steps between two looks")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--mode", choices=("master", "masterless"), default="master")
    parser.add_argument("--balance", choices=("speed", "bandwidth"), default="bandwidth")
    parser.add_argument("--out", type=Path, help="all figures, as JSON")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return
    names = ("network", "quota", "before", "steps", "batch", "mode", "balance")
    cell = {name: getattr(arguments, name) for name in names}
    never, looking = (measure({**cell, "recalibrate_every": every}) for every in (None, arguments.every))
    if arguments.out:
        figures = {**cell, "every": arguments.every, "never": never, "looking": looking}
        arguments.out.write_text(json.dumps(figures, indent=2) + "\n")
    differ = max(abs(a - b) for a, b in zip(never["losses"], looking["losses"], strict=True))
    print("| recalibrated | s per step before | in the end | filters of the second convolution |")
    print("| --- | --- | --- | --- |")
    for name, found in (("never", never), (f"every {arguments.every} steps", looking)):
        divided = [list(one["filters"].values())[1] for one in (found, *found["changes"])]
        shown = ", then ".join(":".join(map(str, one)) for one in divided)
        print(f"| {name} | {found['before_s']:.3f} | {found['after_s']:.3f} | {shown} |")
    after = ", ".join(str(one["step"]) for one in looking["changes"]) or "none"
    looks = ", ".join(f"{seconds:.2f} s after step {step}" for step, seconds in looking["looks_s"])
    print(f"\nDivided anew after steps: {after}. Looks: {looks}. Losses differ by {differ:.1e}.")


if __name__ == "__main__":
    main()
