"""A model whose step updates by two optimizers, as a GAN's; the sums of its weights are printed.

Arguments: which of the optimizers to wrap, such as `first,second`.
"""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import trainer

trainer.init(threads=1)
keras.config.set_floatx("float64")
keras.utils.set_random_seed(1 + trainer.rank())  # the start must become the same nevertheless


class Pair(keras.Model):
    """Two layers, each with an optimizer of its own; `compile` gets none."""

    def __init__(self, first, second):
        super().__init__()
        self.one, self.two = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)
        self.first, self.second = first, second
        self.one.build((None, 3))
        self.two.build((None, 4))
        self.built = True

    def call(self, x):
        return self.two(self.one(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        for layer, optimizer in ((self.one, self.first), (self.two, self.second)):
            weights = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def optimizer(name):
    made = keras.optimizers.Adam(0.05) if name == "first" else keras.optimizers.SGD(0.1, momentum=0.9)
    return trainer.DistributedOptimizer(made) if name in sys.argv[1].split(",") else made


rng = np.random.default_rng(0)
x, y = trainer.shard(rng.normal(size=(24, 3)), rng.normal(size=(24, 1)))
model = Pair(optimizer("first"), optimizer("second"))
model.compile()
model.fit(
    x, y, batch_size=12 // trainer.size(), epochs=3, shuffle=False, verbose=0, callbacks=trainer.callbacks()
)
if trainer.rank() == 0:
    print(json.dumps([float(w.sum()) for w in model.get_weights()]))
