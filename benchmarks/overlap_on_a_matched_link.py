#!/usr/bin/env python3
"""How much of the communication stays exposed, on a link where it takes as long as the backward pass.

    sudo .venv/bin/python benchmarks/overlap_on_a_matched_link.py --json

Two emulated hosts, one rank on each (`cingulum testbed`; both share this machine's cores, needs root). The
ranks time their backward pass on an idle link. Then the link is shaped so that the gradients' bytes take as
long, and steps are timed in turn: without a reduction, with all gradients leaving after the backward pass
(grouped), and with each way that overlaps. Exposed is a step's time minus that of one without a reduction;
the share is over what is exposed when nothing overlaps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cingulum.bench.scaling import launching
from jobs.testbed import Testbed
from trainer.bench import hardware

HERE = Path(__file__).resolve()
# Headers of full frames: 1514 bytes on the link carry 1448.
FRAMES = 1514 / 1448
WAYS: dict[str, dict[str, Any]] = {
    "grouped": {"reduction": "grouped"},
    "buckets of 4 MiB": {"bucket_mb": 4.0},
    "buckets of 1 MiB": {"bucket_mb": 1.0},
    "per tensor": {"reduction": "per_tensor"},
}


def on_rank(job: dict[str, Any]) -> None:
    """Time the parts of a step, wait until the link is shaped, time steps; rank 0 prints both as JSON."""
    if job["nice"]:
        # Linux weighs sessions against each other first (autogroups), and processes within them.
        Path("/proc/self/autogroup").write_text(str(job["nice"]))
        os.nice(job["nice"])
    from trainer.ranks import starting

    world = starting.init(threads=1)
    import keras
    import numpy as np
    import tensorflow as tf

    import trainer
    from trainer import models
    from trainer.strategies import data, reduction
    from trainer.strategies.learner import Setup
    from trainer.tasks.losses import cross_entropy

    keras.utils.set_random_seed(1)
    size, batch = job["size"], job["batch"]
    model = models.build(job["model"], (size, size, size, 1), 2, width=job["width"], sync_batch_norm=False)
    x = tf.constant(np.random.default_rng(world.rank).normal(size=(batch, size, size, size, 1)), tf.float32)
    y, w = tf.constant(np.arange(batch) % 2, tf.int32), tf.ones(batch)
    loss = cross_entropy()

    def forward() -> Any:
        return tf.reduce_mean(loss(y, model(x, training=True)))

    def gradients() -> Any:
        variables = [v.value for v in model.trainable_variables]
        with tf.GradientTape() as tape:
            mean = forward()
        return tape.gradient(mean, variables)

    learners = {
        "no reduction": data.DistributedModel(Setup(model, keras.optimizers.AdamW(1e-3), world, loss))
    }
    for name, options in WAYS.items():
        optimizer = trainer.DistributedOptimizer(keras.optimizers.AdamW(1e-3), **options)
        learners[name] = data.build(Setup(model, optimizer, world, loss))
    reduce = reduction.make(world, "alone", kind="grouped", bucket_mb=1, wire="none")
    whole = [tf.ones(v.shape) for v in model.trainable_variables]
    parts: dict[str, Callable[[], Any]] = {
        "forward": tf.function(forward, autograph=False),
        "gradients": tf.function(gradients, autograph=False),
        "reduction alone": tf.function(lambda: reduce(whole), autograph=False),
    }
    steps = {name: (lambda learner=one: learner.train_step(x, y, w)) for name, one in learners.items()}

    def timed(run: Callable[[], Any], count: int) -> float:
        seconds = []
        for _ in range(count):
            world.barrier()
            started = time.perf_counter()
            for part in tf.nest.flatten(run()):
                part.numpy()
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds)

    for run in (*parts.values(), *steps.values()):
        timed(run, 2)
    alone = {name: timed(parts[name], job["steps"]) for name in ("forward", "gradients")}
    backward = float(np.mean(world.allgather_object(alone["gradients"] - alone["forward"])))
    size_bytes = sum(4 * int(np.prod(v.shape)) for v in model.trainable_variables)
    if world.is_main:
        print(json.dumps({"backward_s": backward, "bytes": size_bytes}), flush=True)
        sys.stdin.readline()
    world.barrier()
    found: dict[str, list[float]] = {name: [] for name in ("reduction alone", *steps)}
    for _ in range(job["repeats"]):
        for name, seconds in found.items():
            run = parts[name] if name in parts else steps[name]
            of_ranks = world.allgather_object(timed(run, job["steps"]))
            seconds.append(statistics.mean(of_ranks))
    if world.is_main:
        print(json.dumps(found), flush=True)
    world.shutdown()


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Start the ranks, shape the link when they know their backward pass, and hear their times."""
    job = {
        name: getattr(args, name) for name in ("model", "size", "width", "batch", "steps", "repeats", "nice")
    }
    cluster = Testbed.up(2, slurm=False, name=args.name, tied=True)
    try:
        settings = ["env", *args.set] if args.set else []
        program = [*settings, sys.executable, str(HERE), "--on-rank", json.dumps(job)]
        line = launching.on_testbed(cluster, dict.fromkeys(cluster.hosts, 1), program)
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(HERE.parents[1])}
        with subprocess.Popen(
            line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as ranks:
            if ranks.stdin is None or ranks.stdout is None:
                raise SystemExit("error: there are no pipes to mpirun")
            known = json.loads(ranks.stdout.readline())
            # Of two ranks each sends as many bytes as there are gradients.
            bits = 8 * FRAMES * known["bytes"] / (known["backward_s"] * args.slower)
            for host in cluster.hosts:
                cluster.shape(host, f"{round(bits / 1000)}kbit")
            ranks.stdin.write("go\n")
            ranks.stdin.flush()
            times = json.loads(ranks.stdout.readline())
    finally:
        cluster.down()
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    none, alone = medians["no reduction"], medians.pop("reduction alone")
    exposed = {name: second - none for name, second in medians.items() if name != "no reduction"}
    return {
        **known,
        "link_mbit": round(bits / 1e6, 1),
        "reduction_alone_s": alone,
        "step_s": medians,
        "exposed_s": exposed,
        "share": {name: second / exposed["grouped"] for name, second in exposed.items()},
        "shares_of_repeats": {
            name: sorted(
                (mine - bare) / (whole - bare)
                for mine, whole, bare in zip(
                    times[name], times["grouped"], times["no reduction"], strict=True
                )
            )
            for name in exposed
        },
        "job": job,
        "machine": hardware.here(),
    }


def _spread(shares: list[float]) -> str:
    return f"{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Exposed communication where it takes as long as backward.")
    parser.add_argument(
        "--model",
        default="resattnet18",
        help="a network; benchmarks/emulated_accelerator.py:network leaves the cores free, as a GPU does",
    )
    parser.add_argument("--size", type=int, default=96, help="edge of the volumes, in voxels (default: 96)")
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage (default: 16)")
    parser.add_argument("--batch", type=int, default=4, help="samples per rank (default: 4)")
    parser.add_argument("--steps", type=int, default=5, help="steps per measurement (default: 5)")
    parser.add_argument("--repeats", type=int, default=3, help="measurements in turn (default: 3)")
    parser.add_argument(
        "--slower", type=float, default=1.0, help="time on the link over the backward pass (default: 1)"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="for the ranks")
    parser.add_argument(
        "--nice", type=int, default=0, help="priority of the ranks; -20 where others use the machine"
    )
    parser.add_argument("--name", default="overlap", help="of the testbed")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--on-rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.on_rank:
        on_rank(json.loads(args.on_rank))
        return 0
    found = compare(args)
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    print(f"backward pass {found['backward_s']:.3f} s, link {found['link_mbit']} Mbit/s")
    print(f"reduction alone {found['reduction_alone_s']:.3f} s")
    for name, seconds in found["step_s"].items():
        shares = found["shares_of_repeats"].get(name)
        print(f"{name:<20}{seconds:8.3f} s" + (f"   exposed share {_spread(shares)}" if shares else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
