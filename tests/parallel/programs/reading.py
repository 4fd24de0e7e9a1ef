"""Two epochs of a shard set, read by all ranks together; then the beginning of a third, given up.

Prints on rank 0, as JSON, what each rank has read: rows and bytes of each epoch, and bytes of the third one.

Usage: reading.py SHARDS GLOBAL_BATCH PREFETCH
"""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import json
import sys
import time
from pathlib import Path

import numpy as np

import trainer
from trainer.config import AugmentConfig, DataConfig, RunConfig, TrainConfig
from trainer.data.loading import order
from trainer.data.loading.pipeline import Samples, training_batches
from trainer.data.shards.shards import ShardSet

world = trainer.init(threads=1)
path, global_batch, prefetch = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
shards = ShardSet.open(path)
n = len(shards)
steps = order.steps_per_epoch(n, global_batch)


config = RunConfig(
    name="test",
    data=DataConfig(shards=path, augment=AugmentConfig(), prefetch=prefetch),
    train=TrainConfig(seed=5, global_batch=global_batch),
)
# The target of each volume is its row, so that a batch tells which rows it holds.
samples = Samples(shards, range(n), np.arange(n, dtype=np.int32))


def batches(first: int, last: int):
    return training_batches(samples, config, range(first, last), rank=world.rank, world_size=world.size)


rows, read = [], []
for epoch in range(2):
    before = shards.bytes_read
    rows.append([int(row) for _, y, w in batches(epoch * steps, (epoch + 1) * steps) for row in y[w > 0]])
    read.append(shards.bytes_read - before)
before = shards.bytes_read
given_up = iter(batches(2 * steps, 9 * steps))
next(given_up)
begun, last = shards.bytes_read, -1
while begun != last:
    time.sleep(1)
    begun, last = shards.bytes_read, begun
begun -= before

told = world.allgather_object({"rows": rows, "bytes": read, "begun": begun})
if world.is_main:
    print(json.dumps(told))
world.shutdown()
