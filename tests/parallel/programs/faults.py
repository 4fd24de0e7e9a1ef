"""A training in which something goes wrong on one rank. Arguments: what, and on which rank."""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import sys
import time

import keras
import numpy as np
import tensorflow as tf

import trainer
from trainer.errors import InputError
from trainer.strategies import data, guards, reduction
from trainer.strategies.learner import Setup

fault, where = sys.argv[1], int(sys.argv[2])
world = trainer.init(threads=1)
here = world.rank == where

if fault == "skips_a_reduction" and here:
    # Takes part in every collective, as a rank with a bug would, but keeps a few numbers of its own gradient.
    healthy = reduction._AVERAGES["none"]

    def broken(world, flat, name):
        return tf.concat([flat[:2], healthy(world, flat, name)[2:]], 0)

    reduction._AVERAGES["none"] = broken

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [keras.Input((8, 8, 8, 1)), keras.layers.Conv3D(4, 3), keras.layers.Flatten(), keras.layers.Dense(2)]
)
optimizer = keras.optimizers.SGD(0.1)
if fault != "forgets_to_wrap":
    optimizer = trainer.DistributedOptimizer(optimizer)
distributed = data.build(Setup(model, optimizer, world))
rng = np.random.default_rng(world.rank)
for step in range(200):
    x = rng.normal(size=(2, 8, 8, 8, 1)).astype(np.float32)
    if step == 3 and here:
        if fault == "raises":
            raise ValueError("the cause of it all")
        if fault == "refuses":
            raise InputError("one volume is bad.", cure="Mend it.")
        if fault == "has_nan":
            x[0, 0, 0, 0, 0] = np.nan
    loss = distributed.train_step(x, np.array([0, 1], np.int32), np.ones(2, np.float32))
    if step % 5 == 4:
        guards.check_finite(model, world, loss=float(loss), where=f"at step {step + 1}")
        guards.check_divergence(model, world)
    time.sleep(0.01)
print("went on to the end")
