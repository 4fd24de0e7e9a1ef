"""One rank's training batches, augmented. Arguments: the shard set, the folder of the results."""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import sys
from pathlib import Path

import numpy as np

import trainer
from trainer.config import AugmentConfig, DataConfig, RunConfig, TrainConfig
from trainer.data.loading.pipeline import Samples, training_batches
from trainer.data.shards.shards import ShardSet

STEPS, BATCH = 6, 4

shards, folder = ShardSet.open(Path(sys.argv[1])), Path(sys.argv[2])
world = trainer.init(threads=1)
sure = {"probability": 1.0}
changes = AugmentConfig(
    preset="strong", flip=True, noise=0.1, affine=sure, elastic=sure, motion=sure, rician_noise=sure
)
config = RunConfig(
    name="test",
    # Other threads on each rank, as on hosts that are not alike.
    data=DataConfig(shards=shards.path, augment=changes, reader_threads=1 + world.rank, prefetch=world.rank),
    train=TrainConfig(seed=3, global_batch=BATCH),
)
batches = training_batches(
    Samples(shards, range(len(shards)), None),
    config,
    range(STEPS),
    rank=world.rank,
    world_size=world.size,
)
columns = [np.stack([np.asarray(part) for part in parts]) for parts in zip(*batches, strict=True)]
np.savez(folder / f"{world.rank}-of-{world.size}.npz", **dict(zip("xyw", columns, strict=True)))
world.barrier()
