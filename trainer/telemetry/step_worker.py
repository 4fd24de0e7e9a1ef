"""One process of a step benchmark: builds a network, warms up, waits for a line, times steps, prints JSON.

Run by `step_bench` as `python -m trainer.telemetry.step_worker JOB`, where JOB is a `StepJob` as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class StepJob:
    """What to time.

    Attributes:
        kind: `loop`: our training step, on as many ranks as were launched. `overhead`: our step and plain
            Keras' `fit` in turn, in this process.
        model: name of a registered network.
        size: edge of the cubic volumes, in voxels.
        batch: samples per rank and step.
        width: channels of the first stage.
        steps: steps per block.
        blocks: timed blocks, after one that only warms up.
        sync_batch_norm: statistics over all ranks.
        ring: options of `DistributedOptimizer`.
    """

    kind: str = "loop"
    model: str = "resattnet18"
    size: int = 32
    batch: int = 4
    width: int | None = 8
    steps: int = 10
    blocks: int = 1
    sync_batch_norm: bool = False
    ring: dict[str, Any] = dataclasses.field(default_factory=dict)


def main() -> None:
    """Time what the job on the command line describes."""
    job = StepJob(**json.loads(sys.argv[1]))
    from trainer import quiet
    from trainer import world as worlds

    quiet.leave_out_what_keras_can_do_without()
    world = worlds.init(threads=1)
    timed = _overhead(job) if job.kind == "overhead" else _loop(job)
    everyones = world.allgather_object(timed)
    if world.is_main:
        sys.stdout.write(json.dumps(everyones) + "\n")
        sys.stdout.flush()


def _loop(job: StepJob) -> dict[str, float]:
    block = _our_block(job)
    block()
    _wait_for_go()
    return {"step_s": statistics.median(second for _ in range(job.blocks) for second in block())}


def _overhead(job: StepJob) -> dict[str, float]:
    ours, keras = _our_block(job), _keras_block(job)
    for block in (ours, keras):
        block()
    _wait_for_go()
    pairs = []
    for number in range(job.blocks):
        # In turn and in alternating order, so that neither always follows the other.
        order = (ours, keras) if number % 2 == 0 else (keras, ours)
        seconds = {block: sum(block()) for block in order}
        pairs.append((seconds[ours], seconds[keras]))
    ratios = [mine / theirs for mine, theirs in pairs]
    return {
        "overhead": statistics.median(ratios) - 1,
        "overhead_min": min(ratios) - 1,
        "overhead_max": max(ratios) - 1,
        "step_s": statistics.median(mine for mine, _ in pairs) / job.steps,
        "keras_step_s": statistics.median(theirs for _, theirs in pairs) / job.steps,
    }


def _wait_for_go() -> None:
    """Several copies start together: each says that it is warm and waits for a line."""
    from trainer import world as worlds

    world = worlds.current()
    if world.is_main:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
    world.barrier()


def _our_block(job: StepJob) -> Callable[[], list[float]]:
    """A function that trains one block as `cingulum train` does; returns seconds per step."""
    import keras

    import trainer
    from trainer import world as worlds
    from trainer.strategies import data

    world = worlds.current()
    keras.utils.set_random_seed(1)
    optimizer = trainer.DistributedOptimizer(keras.optimizers.AdamW(1e-3), **job.ring)
    model = data.build(_network(job), optimizer, world)
    batches = _batches(job)

    def block() -> list[float]:
        seconds = []
        for x, y, w in batches:
            started = time.perf_counter()
            model.train_step(x, y, w).numpy()
            seconds.append(time.perf_counter() - started)
        model.epoch_metrics()
        return seconds

    return block


def _keras_block(job: StepJob) -> Callable[[], list[float]]:
    """A function that trains one block with nothing but Keras; returns its seconds, as one number."""
    import keras

    keras.utils.set_random_seed(1)
    model = _network(job)
    model.compile(
        optimizer=keras.optimizers.AdamW(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
        jit_compile=False,
    )
    batches = _batches(job)

    def block() -> list[float]:
        started = time.perf_counter()
        model.fit(batches, epochs=1, verbose=0, shuffle=False)
        return [time.perf_counter() - started]

    return block


def _network(job: StepJob) -> Any:
    from trainer import models

    return models.build(
        job.model,
        (job.size, job.size, job.size, 1),
        2,
        width=job.width,
        sync_batch_norm=job.sync_batch_norm,
    )


def _batches(job: StepJob) -> Any:
    """A dataset in memory: what is timed is the step, not the reading."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    n = job.batch * job.steps
    x = rng.normal(size=(n, job.size, job.size, job.size, 1)).astype(np.float32)
    y = (np.arange(n) % 2).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((x, y, np.ones(n, np.float32))).batch(
        job.batch, drop_remainder=True
    )


if __name__ == "__main__":
    main()
