#!/usr/bin/env python3
"""Train the four published networks on ranks of unequal speed, with filters divided in three ways.

    sudo .venv/bin/python benchmarks/filters_unequal.py --quotas 1,0.5,0.25 --out unequal.json

Ranks are made unequal by quotas of processor time (cgroups, which root may make). Each device alone trains
the whole network as an ordinary run does; a speed-up is its seconds per step over those of all ranks
together, as in Marques et al. (arXiv 1712.02546), who report 3.28 with four CPUs and 2.45 with three GPUs for
500:1500. Images are noise: what is learnt does not matter, only that losses agree.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jobs.launchers import mpirun

NETWORKS = ("50:500", "150:800", "300:1000", "500:1500")
BALANCES = ("equal", "speed", "bandwidth")
PUBLISHED = {"four CPUs": 3.28, "three GPUs": 2.45}
CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
# Steps before the timed ones: the first traces the graph.
WARM_UP = 1


@contextlib.contextmanager
def groups(quotas: Sequence[float]) -> Iterator[list[Path]]:
    """A cgroup for each quota of one processor; removed in the end.

    Raises:
        SystemExit: there are no cgroups with quotas, or we may not make any.
    """
    first = CGROUPS / "cpu" if (CGROUPS / "cpu" / "cpu.cfs_quota_us").exists() else CGROUPS
    made = []
    try:
        for number, quota in enumerate(quotas):
            path = first / f"filters-unequal-{os.getpid()}-{number}"
            path.mkdir()
            made.append(path)
            limit(path, quota)
    except OSError as error:
        _remove(made)
        raise SystemExit(
            f"{error.filename}: {error.strerror}. Ranks are made unequal by cgroups with quotas of processor "
            "time; this machine has none, or you may not make any. Run it as root, outside a container."
        ) from None
    try:
        yield made
    finally:
        _remove(made)


def limit(group: Path, quota: float) -> None:
    """Give the processes of a cgroup so much of one processor."""
    if (group / "cpu.cfs_quota_us").exists():
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(quota * PERIOD_US)))
    else:  # version 2
        (group / "cpu.max").write_text(f"{int(quota * PERIOD_US)} {PERIOD_US}")


def _remove(made: Sequence[Path]) -> None:
    for path in made:
        for _ in range(50):  # until the last process of it is gone
            with contextlib.suppress(OSError):
                path.rmdir()
                break
            time.sleep(0.1)


def measure(cell: dict[str, Any], quotas: Sequence[float]) -> dict[str, Any]:
    """Train on one rank for each quota; return what rank 0 tells."""
    with groups(quotas) as made:
        told = {**cell, "groups": [str(path) for path in made]}
        line, additions = mpirun.command(
            len(quotas), [sys.executable, str(Path(__file__).resolve()), "--worker", json.dumps(told)]
        )
        environment = {**os.environ, **additions, "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=3600, check=False
        )
    if done.returncode:
        raise SystemExit(f"{cell} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    print(json.dumps({**cell, "quotas": list(quotas), **found}), file=sys.stderr, flush=True)
    return found


def worker(cell: dict[str, Any]) -> None:
    """Be one rank: enter its group, then train."""
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    # Before any thread is started.
    (Path(cell["groups"][rank]) / "cgroup.procs").write_text(str(os.getpid()))

    from trainer import config as configuration
    from trainer.ranks import launch, starting
    from trainer.strategies import registry

    strategy = {"name": "filters", "mode": cell["mode"], "balance": cell["balance"]}
    tree = {"data": {"shards": "none"}, "train": {"global_batch": cell["batch"], "strategy": strategy}}
    divided = registry.of(configuration.parse(json.dumps({"name": "unequal", **tree}), []))
    world = starting.init(
        threads=1, environment=divided.environment(), members=divided.members(launch.expected_size())
    )

    import keras
    import numpy as np
    import tensorflow as tf

    from trainer.strategies import data
    from trainer.strategies.learner import Setup

    keras.utils.set_random_seed(1)
    model = network(*map(int, cell["network"].split(":")))
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    setup = Setup(model, optimizer, world)
    about: dict[str, Any] = {}
    if world.size == 1:
        learner: Any = data.build(setup)
    else:
        divided.calibrate(model, world, None)
        plan = divided.plan(model, optimizer, world.size)
        learner, about = divided.build(plan, setup), plan.tree()
    random = np.random.default_rng(0)
    x = tf.constant(random.normal(size=(cell["batch"], 32, 32, 3)).astype(np.float32))
    y = tf.constant(random.integers(0, 10, cell["batch"]).astype(np.int32))
    w = tf.ones(cell["batch"], tf.float32)
    losses, seconds = [], []
    for _ in range(WARM_UP + cell["steps"]):
        world.barrier()
        began = time.perf_counter()
        # The mean over all samples is where the loss is computed, which is on one rank.
        losses.append(float(learner.train_step(x, y, w)))
        world.barrier()
        seconds.append(time.perf_counter() - began)
    everyones = world.allgather_object(losses)
    if world.is_main:
        told = {
            "step_s": statistics.median(seconds[WARM_UP:]),
            "losses": [sum(each) for each in zip(*everyones, strict=True)],
            "planned": about.get("balance"),
            "sent_per_update": about.get("sent_per_update"),
        }
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
    world.barrier()
    learner.close()
    world.shutdown()


def network(first: int, second: int) -> Any:
    """The published networks: two convolutions of 5x5, of so many filters, pooling, and a dense layer.

    Returns:
        A Keras model from images `(b, 32, 32, 3)` to logits `(b, 10)`.
    """
    import keras
    from keras import layers

    images = x = keras.Input((32, 32, 3), name="images")
    for number, filters in enumerate((first, second), start=1):
        x = layers.Conv2D(filters, 5, activation="relu", name=f"conv{number}")(x)
        x = layers.MaxPooling2D(2, name=f"pool{number}")(x)
    return keras.Model(images, layers.Dense(10, name="classes")(layers.Flatten(name="flat")(x)))


def compare(name: str, quotas: Sequence[float], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train one network on each device alone and on all of them; a row for each way to divide it."""
    cell = {
        "network": name,
        "batch": arguments.batch,
        "steps": arguments.steps,
        "mode": arguments.mode,
        "balance": "equal",
    }
    each = {quota: measure(cell, [quota]) for quota in dict.fromkeys(quotas)}
    alone = [each[quota]["step_s"] for quota in quotas]
    losses = each[quotas[0]]["losses"]
    rows = []
    for balance in BALANCES:
        found = measure({**cell, "balance": balance}, quotas)
        rows.append(
            {
                **cell,
                "balance": balance,
                "quotas": list(quotas),
                "alone_s": alone,
                **found,
                "loss_differs_by": max(abs(a - b) for a, b in zip(losses, found["losses"], strict=True)),
                "speed_up": {
                    "slowest": max(alone) / found["step_s"],
                    "mean": statistics.mean(alone) / found["step_s"],
                    "fastest": min(alone) / found["step_s"],
                },
            }
        )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of Markdown."""
    lines = [
        "| network | filters divided | s per step | against slowest | mean | fastest | losses differ by |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        ups = " | ".join(f"{row['speed_up'][which]:.2f}" for which in ("slowest", "mean", "fastest"))
        lines.append(
            f"| {row['network']} | {row['balance']} | {row['step_s']:.3f} | {ups} "
            f"| {row['loss_differs_by']:.1e} |"
        )
    told = ", ".join(f"{speed} ({devices})" for devices, speed in PUBLISHED.items())
    return [*lines, "", f"Published for 500:1500, against one device: {told}."]


def main() -> None:
    """Measure, print the table, and write all figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--quotas", default="1,0.5,0.25", help="processors of each rank")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--mode", choices=("master", "masterless"), default="master")
    parser.add_argument("--out", type=Path, help="all figures, as JSON")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return
    quotas = [float(quota) for quota in arguments.quotas.split(",")]
    if sum(quotas) > (os.cpu_count() or 1):
        print(f"warning: {sum(quotas)} processors are more than this machine has.", file=sys.stderr)
    rows = [row for name in arguments.networks.split(",") for row in compare(name, quotas, arguments)]
    if arguments.out:
        arguments.out.write_text(json.dumps({"published": PUBLISHED, "rows": rows}, indent=2) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
