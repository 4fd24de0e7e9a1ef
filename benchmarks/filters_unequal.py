#!/usr/bin/env python3
"""Train the four published networks, and one for volumes, on ranks of unequal speed, with filters divided.

    sudo .venv/bin/python benchmarks/filters_unequal.py --out unequal.json \\
        --page filters.md --picture filters.png

Ranks are made unequal by quotas of processor time (cgroups, which root may make), and each stays on one core:
where the system moves them, three may share a core for a while. Each device alone trains the whole network as
an ordinary run does; a speed-up is its seconds per step over those of all ranks
together, as in Marques et al. (arXiv 1712.02546), who report 3.28 with four CPUs and 2.45 with three GPUs for
500:1500. Inputs are noise: what is learnt does not matter, only that losses agree.

Stopped and started again, it measures what `--out` does not hold yet.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import filters_page

from jobs.local import mpirun
from trainer import atomic

# By name: the registered network, its options, its input, its classes.
NETWORKS: dict[str, tuple[str, dict[str, int], tuple[int, ...], int]] = {
    f"{first}:{second}": ("conv2", {"width": first, "second": second}, (32, 32, 3), 10)
    for first, second in ((50, 500), (150, 800), (300, 1000), (500, 1500))
}
NETWORKS["vgg, 3D"] = ("vgg", {"width": 16}, (48, 48, 48, 1), 2)
DEVICES = ((1.0, 0.5, 0.25), (0.45, 0.45, 0.45, 0.45))
# How filters are divided; the published way is the second.
WAYS = (("master", "equal"), ("master", "speed"), ("master", "bandwidth"), ("masterless", "speed"))
CGROUPS = Path("/sys/fs/cgroup")
# Short, or steps would come in lengths of periods: ranks wait for each other to be let on.
PERIOD_US = 10_000
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


def cores(quotas: Sequence[float]) -> list[int]:
    """Return a core for each quota: the largest quotas first, each where least is asked for so far."""
    asked = dict.fromkeys(sorted(os.sched_getaffinity(0)), 0.0)
    found = [0] * len(quotas)
    for number in sorted(range(len(quotas)), key=lambda number: -quotas[number]):
        found[number] = min(asked, key=asked.__getitem__)
        asked[found[number]] += quotas[number]
    return found


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


def measure(cell: dict[str, Any]) -> dict[str, Any]:
    """Train on one rank for each quota; return the cell with what rank 0 tells."""
    quotas = cell["quotas"]
    with groups(quotas) as made:
        told = {**cell, "groups": [str(path) for path in made], "cores": cores(quotas)}
        line, additions = mpirun.command(
            len(quotas), [sys.executable, str(Path(__file__).resolve()), "--worker", json.dumps(told)]
        )
        environment = {**os.environ, **additions, "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=3600, check=False
        )
    if done.returncode:
        raise SystemExit(f"{cell} failed:\n{done.stderr[-3000:]}")
    return {**cell, **json.loads(done.stdout.strip().splitlines()[-1])}


def worker(cell: dict[str, Any]) -> None:
    """Be one rank: start on its core, enter its group with all threads, then measure, plan and train."""
    os.sched_setaffinity(0, {cell["cores"][int(os.environ["OMPI_COMM_WORLD_RANK"])]})
    from trainer import config as configuration
    from trainer.ranks import launch, starting
    from trainer.strategies import registry

    strategy = {"name": "filters"}
    if cell["way"]:
        strategy |= dict(zip(("mode", "balance"), cell["way"], strict=True))
    tree = {"data": {"shards": "none"}, "train": {"global_batch": cell["batch"], "strategy": strategy}}
    divided = registry.of(configuration.parse(json.dumps({"name": "unequal", **tree}), []))
    world = starting.init(
        threads=1, environment=divided.environment(), members=divided.members(launch.expected_size())
    )

    import keras
    import numpy as np
    import tensorflow as tf

    from trainer import models
    from trainer.strategies import data
    from trainer.strategies.learner import Setup

    keras.utils.set_random_seed(1)
    name, options, shape, classes = NETWORKS[cell["network"]]
    model = models.build(name, shape, classes, **options)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    setup = Setup(model, optimizer, world)
    (Path(cell["groups"][world.rank]) / "cgroup.procs").write_text(str(os.getpid()))
    world.barrier()
    about: dict[str, Any] = {}
    if world.size == 1:
        learner: Any = data.build(setup)
    else:
        divided.calibrate(model, world, None)
        plan = divided.plan(model, optimizer, world.size)
        learner, about = divided.build(plan, setup), plan.tree()
    random = np.random.default_rng(0)
    x = tf.constant(random.normal(size=(cell["batch"], *shape)).astype(np.float32))
    y = tf.constant(random.integers(0, classes, cell["batch"]).astype(np.int32))
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
            "steps_s": seconds[WARM_UP:],
            "losses": [sum(each) for each in zip(*everyones, strict=True)],
            "planned": about.get("balance"),
            "sent_per_update": about.get("sent_per_update"),
        }
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
    world.barrier()
    learner.close()
    world.shutdown()


def cells(networks: Sequence[str], devices: Sequence[Sequence[float]], batch: int) -> list[dict[str, Any]]:
    """Return what to measure: each device alone, and all together in each way."""
    found = []
    for name in networks:
        for quota in sorted({one for quotas in devices for one in quotas}, reverse=True):
            found.append({"network": name, "quotas": [quota], "way": None, "batch": batch})
        for quotas in devices:
            found += [
                {"network": name, "quotas": list(quotas), "way": list(way), "batch": batch} for way in WAYS
            ]
    return found


def main() -> None:
    """Measure, keep all figures as JSON, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", default=";".join(NETWORKS), help="separated by semicolons")
    parser.add_argument(
        "--devices",
        default=";".join(",".join(map(str, quotas)) for quotas in DEVICES),
        help="processors of each rank; several sets separated by semicolons",
    )
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("filters_unequal.json"), help="all figures, as JSON")
    parser.add_argument("--page", type=Path, help="write the tables as a page of the docs")
    parser.add_argument("--picture", type=Path, help="draw the speed-ups")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker)
        return
    devices = [[float(one) for one in quotas.split(",")] for quotas in arguments.devices.split(";")]
    networks = arguments.networks.split(";")
    if unknown := [name for name in networks if name not in NETWORKS]:
        parser.error(f"--networks: {unknown[0]!r} is none of {'; '.join(NETWORKS)}")
    if max(map(sum, devices)) > (os.cpu_count() or 1):
        print(f"warning: {max(map(sum, devices))} processors are more than there are.", file=sys.stderr)
    rows = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    asked = cells(networks, devices, arguments.batch)
    for number, cell in enumerate(asked, start=1):
        if any(cell.items() <= row.items() for row in rows):
            continue
        said = f"{cell['network']}, devices {cell['quotas']}, {cell['way'] or 'alone'}"
        print(f"{number}/{len(asked)}: {said}", file=sys.stderr, flush=True)
        rows.append(measure({**cell, "steps": arguments.steps}))
        atomic.write_text(arguments.out, json.dumps(rows, indent=1) + "\n")
    rows = [row for row in rows if any(cell.items() <= row.items() for cell in asked)]
    print("\n".join(filters_page.tables(rows)))
    if arguments.page:
        arguments.page.write_text(filters_page.page(rows, arguments.picture))
    if arguments.picture:
        filters_page.draw(rows, arguments.picture)


if __name__ == "__main__":
    main()
