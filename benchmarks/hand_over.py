#!/usr/bin/env python3
"""What it costs to hand batches out: as tensors of ours, and through a data set of tf.data.

.venv/bin/cingulum bench loader --reader limit --size 96 --data volumes
.venv/bin/python benchmarks/hand_over.py volumes/*/shards

docs/results/loader.md tells what it printed. Both ways are measured in turn, over the same
shard set in the page cache; then with nothing to read, when the hand-over is all there is.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from trainer.quiet import import_tensorflow

tf = import_tensorflow()

from trainer.config import AugmentConfig, DataConfig, RunConfig, TrainConfig  # noqa: E402
from trainer.data.loading.batch_reader import Batches, signature  # noqa: E402
from trainer.data.loading.pipeline import Samples, training_batches  # noqa: E402
from trainer.data.shards.shards import ShardSet  # noqa: E402


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shards", type=Path)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    shards = ShardSet.open(arguments.shards)
    steps = len(shards) // arguments.batch
    config = RunConfig(
        name="hand-over",
        data=DataConfig(shards=shards.path, augment=AugmentConfig(), reader_threads=arguments.threads),
        train=TrainConfig(seed=1, global_batch=arguments.batch),
    )
    samples = Samples(shards, range(len(shards)), np.zeros(len(shards), np.int32))
    real = training_batches(samples, config, range(steps))
    parts = ((shards.shape, np.float32), ((), np.int32), ((), np.float32))
    idle = Batches(
        lambda number, places: None, steps, signature(arguments.batch, *parts),
        threads=arguments.threads, ahead=2,
    )  # fmt: skip
    print(f"{len(shards)} volumes of {shards.shape}, batches of {arguments.batch}, {os.cpu_count()} cores")
    for title, batches in (("read from the page cache", real), ("nothing to read", idle)):
        print(f"\n| {title} | volumes/s, median (range) | processor ms per batch | pairs |")
        print("| --- | --- | --- | --- |")
        _table({"tensors": batches, "tf.data": _by_tf_data(batches)}, steps, arguments)


def _by_tf_data(batches: Batches) -> Any:
    """The same batches, without a copy, as a data set of tf.data: what the loader handed out before."""

    def element(number: Any) -> Any:
        tensors = tf.numpy_function(
            lambda number: batches.arrays(int(number)), [number], [part.dtype for part in batches.spec]
        )
        parts = [tf.ensure_shape(t, part.shape) for t, part in zip(tensors, batches.spec, strict=True)]
        return batches.arrange(parts)

    options = tf.data.Options()
    # Tuning would start more threads than a rank has cores.
    options.autotune.enabled = False
    return tf.data.Dataset.range(len(batches)).map(element).with_options(options)


def _table(ways: dict[str, Iterable[Any]], steps: int, arguments: argparse.Namespace) -> None:
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for repeat in range(arguments.repeats + 1):
        for name in random.sample(list(ways), len(ways)):
            found = _timed(lambda name=name: sum(1 for _ in ways[name]), steps)
            if repeat:  # the first one compiles, and fills what is used again
                measured[name].append(found)
    reference = [wall for wall, _ in measured["tf.data"]]
    for name, found in measured.items():
        speeds = [arguments.batch * steps / wall for wall, _ in found]
        pairs = [other / wall for (wall, _), other in zip(found, reference, strict=True)]
        print(
            f"| {name} | {statistics.median(speeds):.0f} ({min(speeds):.0f}-{max(speeds):.0f}) "
            f"| {1e3 * statistics.median(used for _, used in found) / steps:.2f} "
            f"| {statistics.median(pairs):.2f} ({min(pairs):.2f}-{max(pairs):.2f}) |"
        )


def _timed(epoch: Callable[[], int], steps: int) -> tuple[float, float]:
    """Seconds of the clock and of the processor that an epoch takes."""
    began, used = time.perf_counter(), time.process_time()
    if epoch() != steps:
        raise RuntimeError("a batch is missing")
    return time.perf_counter() - began, time.process_time() - used


if __name__ == "__main__":
    main()
