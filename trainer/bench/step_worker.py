"""One process of a step benchmark: builds a network, warms up, and times a block of steps for each line `go`.

Run by `cingulum.bench.step` as `python -m trainer.bench.step_worker JOB`, where JOB is a `StepJob` as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from trainer.bench import blocks
from trainer.bench.blocks import ProgressWatch


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
        sync_batch_norm: statistics over all ranks.
        ring: options of `DistributedOptimizer`.
    """

    kind: str = "loop"
    model: str = "resattnet18"
    size: int = 32
    batch: int = 4
    width: int | None = 8
    steps: int = 10
    sync_batch_norm: bool = False
    ring: dict[str, Any] = dataclasses.field(default_factory=dict)


def main() -> None:
    """Time what the job on the command line describes, a block each time that a line comes."""
    job = StepJob(**json.loads(sys.argv[1]))
    from trainer import quiet
    from trainer.ranks import starting

    quiet.leave_out_what_keras_can_do_without()
    with ProgressWatch() as watch:
        watch.beat("importing TensorFlow and meeting the other ranks")
        world = starting.init(threads=1)
        watch.beat("building the network")
        block = _in_turn(job) if job.kind == "overhead" else _our_block(job)
        blocks.answer(world, block, watch)


def _in_turn(job: StepJob) -> Callable[[], list[float]]:
    """A function that trains two blocks as we do and two as Keras does: a block's seconds, ours first.

    One of them begins and ends, the next time the other: so neither gains from a machine that gets slower
    or faster meanwhile, or needs a moment after it stood still.
    """
    ours, keras = _our_block(job), _keras_block(job)
    outer, inner = ours, keras

    def both() -> list[float]:
        nonlocal outer, inner
        seconds = {ours: 0.0, keras: 0.0}
        for block in (outer, inner, inner, outer):
            started = time.perf_counter()
            block()
            seconds[block] += (time.perf_counter() - started) / 2
        outer, inner = inner, outer
        return [seconds[ours], seconds[keras]]

    return both


def _our_block(job: StepJob) -> Callable[[], list[float]]:
    """A function that trains one block as `cingulum train` does; returns seconds per step."""
    import keras

    import trainer
    from trainer.ranks import world as worlds
    from trainer.strategies import compiled_update, data
    from trainer.strategies.learner import Setup

    world = worlds.current()
    keras.utils.set_random_seed(1)
    optimizer = compiled_update.compilable(keras.optimizers.AdamW(1e-3))
    optimizer = trainer.DistributedOptimizer(optimizer, **job.ring)
    model = data.build(Setup(_network(job), optimizer, world))
    trained = compiled_update.Updated((optimizer,), tuple(model.model.trainable_variables))
    compiled_update.choose("auto", trained, world)
    batches = _batches(job)

    def block() -> list[float]:
        seconds = blocks.seconds_of(model, batches)
        model.take_sums()
        return seconds

    return block


def _keras_block(job: StepJob) -> Callable[[], Any]:
    """A function that trains one block with nothing but Keras."""
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

    return lambda: model.fit(batches, epochs=1, verbose=0, shuffle=False)


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
    """Return a dataset in memory: what is timed is the step, not the reading."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    n = job.batch * job.steps
    x = rng.normal(size=(n, job.size, job.size, job.size, 1)).astype(np.float32)
    y = (np.arange(n) % 2).astype(np.int32)
    batches = tf.data.Dataset.from_tensor_slices((x, y, np.ones(n, np.float32))).batch(
        job.batch, drop_remainder=True
    )
    options = tf.data.Options()
    # There is nothing to tune, and the end of an epoch waits for the thread that tunes: for seconds, often.
    options.autotune.enabled = False
    return batches.with_options(options)


if __name__ == "__main__":
    main()
