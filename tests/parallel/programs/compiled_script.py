"""`model.fit` with and without `jit_compile`: prints whether the update was compiled, and the weights."""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import json

import keras
import numpy as np

import trainer
from trainer.strategies import compiled_update

trainer.init(threads=1)
compiled_update.LEAST = 1  # these few weights count as many
rng = np.random.default_rng(0)
x = rng.normal(size=(24, 8, 8, 8, 1)).astype(np.float32)
y = (np.arange(24) % 2).astype(np.int32)
found = []
for jit_compile in (False, True):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Conv3D(4, 3, activation="tanh"), keras.layers.GlobalAveragePooling3D()]
    model = keras.Sequential([keras.Input((8, 8, 8, 1)), *layers, keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = trainer.DistributedOptimizer(keras.optimizers.AdamW(0.01, clipnorm=0.1))
    model.compile(optimizer, loss=loss, jit_compile=jit_compile)
    mine = trainer.shard(x, y)
    model.fit(*mine, epochs=3, batch_size=4, shuffle=False, verbose=0, callbacks=trainer.callbacks())
    weights = np.concatenate([np.ravel(w) for w in model.get_weights()]).tolist()
    found.append({"compiled": compiled_update.is_compiled(optimizer), "weights": weights})
if trainer.rank() == 0:
    print(json.dumps(found))
