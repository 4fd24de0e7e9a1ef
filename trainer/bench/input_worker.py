"""The process of `cingulum bench input`: trains with real input and with one batch again and again, in turn.

Run as `python -m trainer.bench.input_worker JOB`, where JOB is an `InputJob` as JSON.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class InputJob:
    """What is trained.

    Attributes:
        shards: folder of the shard set.
        model: name of a registered network.
        batch: samples per step.
        width: channels of the first stage.
        steps: steps per block.
        repeats: blocks of each kind, in turn.
        threads: that read and decode.
        prefetch: batches read ahead.
    """

    shards: str
    model: str = "resattnet18"
    batch: int = 4
    width: int = 8
    steps: int = 10
    repeats: int = 5
    threads: int = 2
    prefetch: int = 2


def main() -> None:
    """Time what the job on the command line describes; a line `block JSON` for every block, as it ends."""
    job = InputJob(**json.loads(sys.argv[1]))
    from trainer import quiet
    from trainer.ranks import starting

    quiet.leave_out_what_keras_can_do_without()
    starting.init()
    learner = _learner(job)
    real = _real_batches(job)
    one = next(real)
    synthetic = itertools.repeat(one)
    for batches in (real, synthetic):
        _block(learner, batches, 1)  # compiles, and fills what is read ahead
    for repeat in range(job.repeats):
        # In turn and in alternating order, so that neither always follows the other.
        kinds = {"real": real, "synthetic": synthetic}
        for kind in sorted(kinds, reverse=bool(repeat % 2)):
            found = {"kind": kind, **_block(learner, kinds[kind], job.steps)}
            sys.stdout.write(f"block {json.dumps(found)}\n")
            sys.stdout.flush()


def _block(learner: Any, batches: Iterator[Any], steps: int) -> dict[str, Any]:
    """Train as `trainer.runs.loop` does: next batch, step; the loss is fetched at the end, not before."""
    timeline, loss = [], None
    began = time.perf_counter()
    for _ in range(steps):
        requested = time.perf_counter()
        x, y, w = next(batches)
        came = time.perf_counter()
        loss = learner.train_step(x, y, w)
        timeline.append({"wait_s": came - requested, "step_s": time.perf_counter() - requested})
    if loss is not None:
        loss.numpy()  # an accelerator may still be at work
    return {"seconds": time.perf_counter() - began, "steps": timeline}


def _learner(job: InputJob) -> Any:
    import keras

    import trainer
    from trainer import models
    from trainer.data.shards.shards import ShardSet
    from trainer.ranks import world as worlds
    from trainer.strategies import data
    from trainer.strategies.learner import Setup

    keras.utils.set_random_seed(1)
    shards = ShardSet.open(Path(job.shards))
    model = models.build(job.model, shards.shape, 2, width=job.width)
    optimizer = trainer.DistributedOptimizer(keras.optimizers.AdamW(1e-3))
    return data.build(Setup(model, optimizer, worlds.current()))


def _real_batches(job: InputJob) -> Iterator[Any]:
    """Yield the batches of training, from its first step to the last that is needed."""
    import numpy as np

    from trainer.config import RunConfig
    from trainer.data.loading import pipeline
    from trainer.data.shards.shards import ShardSet

    shards = ShardSet.open(Path(job.shards))
    samples = pipeline.Samples(shards, range(len(shards)), (np.arange(len(shards)) % 2).astype(np.int32))
    read = {"augment": {}, "prefetch": job.prefetch, "reader_threads": job.threads}
    config = RunConfig.model_validate(
        {
            "name": "bench-input",
            "data": {"shards": job.shards, **read},
            "train": {"seed": 1, "global_batch": job.batch},
        }
    )
    return iter(pipeline.training_batches(samples, config, range(2 + job.steps * job.repeats)))


if __name__ == "__main__":
    main()
