"""Cases on several ranks, through Cingulum's strategy. Arguments: a folder for the results, names."""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import json
import sys
from pathlib import Path

import keras
import numpy as np
from cases import BATCH, CASES, SEED, batches, network, set_precision, state

import trainer
from trainer.strategies import data, guards
from trainer.strategies.compiled_update import compilable, set_compiled
from trainer.strategies.learner import Setup

folder = Path(sys.argv[1])
world = trainer.init(threads=1)
share = BATCH // world.size
mine = slice(world.rank * share, (world.rank + 1) * share)
hashes = {}
for name in sys.argv[2].split(","):
    case = CASES[name]
    set_precision(case)
    # Only rank 0 starts like the reference: the broadcast must do the rest.
    keras.utils.set_random_seed(3 + world.rank)
    model = network(case, trainer.SyncBatchNormalization)
    optimizer = case.optimizer()
    compilable(getattr(optimizer, "inner_optimizer", optimizer))
    set_compiled(optimizer, case.compiled)
    optimizer = trainer.DistributedOptimizer(optimizer, **case.ring)
    distributed = data.build(
        Setup(model, optimizer, world, seed=SEED), bucket_mb=case.ring.get("bucket_mb", 4)
    )
    distributed.passes().take(case.passes)
    for x, y, w in batches(case):
        distributed.train_step(x[mine], y[mine], w[mine])
    guards.check_divergence(model, world)
    hashes[name] = world.allgather_object(guards.weights_sha256(distributed.gather()))
    if world.is_main:
        np.savez(folder / f"{name}.npz", **state(model, optimizer))
if world.is_main:
    (folder / "hashes.json").write_text(json.dumps(hashes))
