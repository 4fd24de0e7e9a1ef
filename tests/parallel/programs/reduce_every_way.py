"""Train a tiny network for 20 steps with options of the strategy `data`, then count bytes.

    reduce_every_way.py FOLDER OPTIONS   (JSON)

Writes the weights to FOLDER/weights.npz and prints one JSON object on rank 0. MPI must run over TCP.
"""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import json
import sys
from pathlib import Path

import keras
import numpy as np
import sent_bytes
import tensorflow as tf

from trainer.config import RingConfig
from trainer.ranks import horovod_world, launch, starting
from trainer.strategies import data, reduction
from trainer.strategies import ring as ring_of_run
from trainer.strategies.distributed_optimizer import DistributedOptimizer
from trainer.strategies.learner import Setup
from trainer.strategies.optimizers import ring_options

folder, ring = Path(sys.argv[1]), RingConfig.model_validate_json(sys.argv[2])
world = starting.init(threads=1, environment=launch.ring_environment(ring))
STEPS, BATCH = 20, 12
keras.utils.set_random_seed(3)
inputs = keras.Input((4, 4, 4, 2))
x = keras.layers.Conv3D(3, 3, activation="gelu")(inputs)
x = keras.layers.Dense(7, activation="gelu")(keras.layers.Flatten()(x))
network = keras.Model(inputs, keras.layers.Dense(2)(x))
before = [np.array(w) for w in network.get_weights()]
options = ring_options(ring)
optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), **options)
learner = data.build(Setup(network, optimizer, world))
rng = np.random.default_rng(0)
share = BATCH // world.size
mine = slice(world.rank * share, (world.rank + 1) * share)
with ring_of_run.recorded(ring, world, folder, 0):
    for _ in range(STEPS):
        x = rng.normal(size=(BATCH, 4, 4, 4, 2)).astype(np.float32)
        y = (x.mean((1, 2, 3, 4)) > 0).astype(np.int32)
        learner.train_step(x[mine], y[mine], np.ones(share, np.float32))
weights = network.get_weights()
moved = max(float(np.abs(a - b).max()) for a, b in zip(weights, before, strict=True))
if world.is_main:
    np.savez(folder / "weights.npz", *weights)
hashes = world.allgather_object([w.tobytes().hex() for w in weights])

reduce = reduction.make(
    world, "traffic", kind=options["reduction"], bucket_mb=64, wire="none", gather=options["gather"]
)
step = tf.function(lambda g: reduce([g]), autograph=False)
tensor = tf.fill([1 << 20], np.float32(world.rank + 1))
first = step(tensor)[0].numpy()
counted = sent_bytes.by_connection(world)
for _ in range(4):
    step(tensor)[0].numpy()
sent = world.allgather_object(sent_bytes.since(counted, sent_bytes.by_connection(world)))
report = {
    "same_on_every_rank": all(h == hashes[0] for h in hashes),
    "moved": moved,
    "mean": sorted({float(v) for v in first}),
    "payload": 4 * first.nbytes,
    "sent": sent,
    "differing": ring_of_run.differing(ring, horovod_world.mpi_settings()) if world.size > 1 else [],
}
world.shutdown()


def of_horovod() -> dict[str, object]:
    """What Horovod's files say: which activities, median milliseconds between cycles, autotune's table."""
    found: dict[str, object] = {}
    for path in folder.glob("horovod-timeline-*.json"):
        events = json.loads(path.read_text())
        cycles = [e["ts"] for e in events if e.get("name") == "CYCLE_START"]
        found["activities"] = sorted({e["name"] for e in events if "name" in e})
        found["cycle_ms"] = float(np.median(np.diff(cycles))) / 1000
    for path in folder.glob("horovod-autotune-*.csv"):
        found["autotune"] = path.read_text()
    return found


if world.is_main:
    print(json.dumps({**report, "horovod": of_horovod()}))
