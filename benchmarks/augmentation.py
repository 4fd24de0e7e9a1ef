#!/usr/bin/env python3
"""What each change of data.augment costs, in one thread and in two at once.

.venv/bin/python benchmarks/augmentation.py --size 96

docs/decisions/0010-augmentation.md was decided by it. Two threads on two free cores take half the time
per volume if Python's lock is released all the while. The last column is the share of two threads' time in
which they neither ran nor waited for a core: on a busy machine, at most what the lock costs.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from pathlib import Path

import numpy as np

from trainer.config import AugmentConfig
from trainer.config.augment import PRESETS
from trainer.data.augment import augment

SURE = {"probability": 1.0}
CASES: dict[str, dict[str, object]] = {
    "plain: flip, shift, scale, noise": {"flip": True, "shift": 2, "scale": 0.1, "noise": 0.1},
    "mirror": {"mirror": {"left_right": 1.0}},
    **{
        name: {name: SURE}
        for name in ("affine", "elastic", "motion", "ghosting", "blur", "bias_field", "rician_noise")
    },
    "gaussian_noise": {"gaussian_noise": SURE},
    "gamma": {"gamma": SURE},
    "cut_out": {"cut_out": SURE},
    "affine + elastic": {"affine": SURE, "elastic": SURE},
    "affine + elastic, with a label map": {"affine": SURE, "elastic": SURE},
    **{f"preset {name}": {"preset": name} for name in PRESETS},
}


def main() -> None:
    """Print the table, a row for each change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--volumes", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    edge = (arguments.size,) * 3
    volume = np.random.default_rng(0).normal(size=(*edge, 1)).astype(np.float32)
    labels = np.random.default_rng(0).integers(0, 4, edge).astype(np.uint8)
    mm = (192 / arguments.size,) * 3

    def measured(config: AugmentConfig, label_map: np.ndarray | None, threads: int) -> np.ndarray:
        """Seconds per volume: wall clock; then per thread, running, waiting for a core, and for a lock."""
        found: list[tuple[float, ...]] = []

        def work() -> None:
            began, queued, used = time.perf_counter(), waited_for_a_core(), time.thread_time()
            for number in range(arguments.volumes):
                augment(volume, config, 0, 0, number, label_map, voxel_mm=mm)
            used, queued = time.thread_time() - used, waited_for_a_core() - queued
            found.append((used, queued, time.perf_counter() - began - used - queued))

        workers = [threading.Thread(target=work) for _ in range(threads)]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return np.array([time.perf_counter() - began, *np.sum(found, axis=0)]) / (threads * arguments.volumes)

    print(f"{arguments.size}³ voxels, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print("| change | processor ms | 1 thread, ms | 2 threads, ms | waits for the lock |")
    print("| --- | --- | --- | --- | --- |")
    for name, fields in CASES.items():
        config = AugmentConfig.model_validate(fields)
        label_map = labels if "label map" in name else None
        measured(config, label_map, 1)
        # In turn, so that both meet the same neighbours.
        pairs = [
            (measured(config, label_map, 1), measured(config, label_map, 2)) for _ in range(arguments.repeats)
        ]
        one, two = (np.stack(side) for side in zip(*pairs, strict=True))
        # The least of the times, since other work on the machine only ever adds.
        wall_1, wall_2, processor = one[:, 0].min(), two[:, 0].min(), one[:, 1].min()
        lock = np.median(two[:, 3] / (two[:, 1] + two[:, 3]))
        print(
            f"| {name} | {1e3 * processor:.1f} | {1e3 * wall_1:.1f} | {1e3 * wall_2:.1f} | {lock:.0%} |",
            flush=True,
        )


def waited_for_a_core() -> float:
    """Seconds for which this thread was ready to run and had no core, as Linux counts them."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


if __name__ == "__main__":
    main()
