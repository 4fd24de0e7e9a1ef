#!/usr/bin/env python3
"""What telemetry costs: training steps with and without it, in pairs and in turn, in one process.

    .venv/bin/python benchmarks/telemetry_overhead.py --ranks 2 --json

What is not done at every step, writing the lines and closing an epoch, is timed apart. The interval is that
of the median over pairs, by bootstrap; the machine's other work hits both steps of a pair.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from jobs.local import mpirun

MARK = "measured "


def main() -> None:
    """Start the ranks, and say what they found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1, help="with one compute thread each")
    parser.add_argument("--pairs", type=int, default=500, help="of a step with and one without")
    parser.add_argument("--steps", type=int, default=50, help="of an epoch")
    parser.add_argument("--model", default="resattnet18")
    parser.add_argument("--size", type=int, default=32, help="edge of the volumes, in voxels")
    parser.add_argument("--batch", type=int, default=4, help="volumes per rank")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--strategy", default="data", choices=("data", "spatial", "filters"))
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--trace", action="store_true", help="write the Chrome trace too")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        measure(asked)
        return
    words, additions = [sys.executable, __file__, "--worker", *sys.argv[1:]], {}
    if asked.ranks > 1:
        words, additions = mpirun.command(asked.ranks, words)
    ran = subprocess.run(
        words,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **additions},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(f"error: a rank failed:\n{ran.stderr}")
    line = next(line for line in ran.stdout.splitlines() if line.startswith(MARK))
    found = json.loads(line.removeprefix(MARK))
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    low, high = found["interval"]
    print(
        f"telemetry costs {found['overhead']:+.2%} of a step (95 %: {low:+.2%} to {high:+.2%}, "
        f"{asked.pairs} pairs). A step takes {found['step_s'] * 1000:.1f} ms, closing an epoch "
        f"{found['epoch_s'] * 1000:.1f} ms."
    )


def measure(asked: argparse.Namespace) -> None:
    """One rank's part; rank 0 prints."""
    from trainer import config as configuration
    from trainer.ranks import launch, starting
    from trainer.strategies import registry

    size = launch.expected_size()
    # As many volumes for each rank, whichever part of them it computes.
    train = {"global_batch": asked.batch * size, "strategy": asked.strategy}
    tree = {"name": "overhead", "data": {"shards": "none"}, "train": train}
    strategy = registry.of(configuration.parse(json.dumps(tree), []))
    world = starting.init(1, environment=strategy.environment(), members=strategy.members(size))
    import keras
    import tensorflow as tf

    from trainer import models
    from trainer.config import TelemetryConfig
    from trainer.strategies.learner import Setup
    from trainer.telemetry.recorder import Recorder

    if asked.deterministic:
        keras.utils.set_random_seed(0)
        tf.config.experimental.enable_op_determinism()
    folder = world.broadcast_object(tempfile.mkdtemp() if world.is_main else None)
    rng = np.random.default_rng(world.rank)
    shape = (asked.size,) * 3 + (1,)

    def prepared(enabled: bool) -> tuple[Recorder, Any, Any]:
        keras.utils.set_random_seed(1)
        config = TelemetryConfig(enabled=enabled, trace=asked.trace and enabled)
        recorder = Recorder(config, world, Path(folder), deterministic=asked.deterministic)
        model = models.build(asked.model, shape, 2, width=asked.width)
        optimizer = strategy.divided(keras.optimizers.AdamW(1e-3), world)
        optimizer.build(model.trainable_variables)
        plan = strategy.plan(model, optimizer, world.size)
        share = plan.share(world.rank)
        batch, box = asked.batch * world.size // share.parts, share.space or [(0, asked.size)] * 3
        x = rng.normal(size=(batch, *(stop - start for start, stop in box), 1)).astype(np.float32)
        y, w = tf.constant(np.arange(batch, dtype=np.int32) % 2), tf.ones(batch)
        learner = strategy.build(plan, Setup(model, optimizer, world, timeline=recorder.timeline))
        return recorder, learner, (tf.constant(x), y, w)

    def step(recorder: Recorder, learner: Any, batch: Any) -> float:
        world.barrier()
        began = time.perf_counter()
        learner.train_step(*batch)
        recorder.step(1, time.perf_counter() - began)
        return time.perf_counter() - began

    on, off = prepared(True), prepared(False)
    for kind in (on, off) * 100:  # TensorFlow learns which operations are quick
        step(*kind)
    pairs, epochs = [], []
    for number in range(asked.pairs):
        # In turn and in alternating order, so that neither always follows the other.
        order = (on, off) if number % 2 == 0 else (off, on)
        seconds = {kind[0].enabled: step(*kind) for kind in order}
        pairs.append((seconds[True], seconds[False]))
        if (number + 1) % asked.steps == 0:
            began = time.perf_counter()
            on[0].close_epoch(1, 1, lambda text: None)
            epochs.append(time.perf_counter() - began)
    if world.is_main:
        found = {**_summary(pairs), "epoch_s": statistics.median(epochs), "ranks": world.size}
        sys.stdout.write(f"{MARK}{json.dumps({**found, 'asked': vars(asked)})}\n")
        sys.stdout.flush()


def _summary(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    ratios = np.array([with_it / without - 1 for with_it, without in pairs])
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    return {
        "overhead": float(np.median(ratios)),
        "interval": np.quantile(np.median(drawn, axis=1), [0.025, 0.975]).tolist(),
        "step_s": statistics.median(without for _, without in pairs),
        "cost_s": statistics.median(with_it - without for with_it, without in pairs),
    }


if __name__ == "__main__":
    main()
