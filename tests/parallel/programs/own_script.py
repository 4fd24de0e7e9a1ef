"""A user's script with what tends to go wrong: tf.data, unequal data, a stop on one rank."""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import json
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import trainer

trainer.init(threads=1)
keras.utils.set_random_seed(1 + trainer.rank())  # the start must become the same nevertheless
rng = np.random.default_rng(0)
x = rng.normal(size=(26, 8, 8, 8, 1)).astype(np.float32)
y = (np.arange(26) % 2).astype(np.int32)
x[y == 1] += 0.3


class StopsOnOneRank(keras.callbacks.Callback):
    """Asks to stop within epoch 2, on the last rank only."""

    epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1 and batch == 0 and trainer.rank() == trainer.size() - 1:
            self.model.stop_training = True


def samples(kind: str) -> Any:
    """This rank's part of the data, of one kind."""
    every = tf.data.Dataset.from_tensor_slices((x, y))
    if kind == "batched":
        return trainer.shard(every.batch(6), batched=True)
    if kind == "unknown_length":
        return trainer.shard(every.filter(lambda x, y: True)).batch(3)
    return trainer.shard(every).batch(3)


def trained(kind: str) -> dict[str, Any]:
    """What this rank finds of a training."""
    validation = trainer.shard(x[:7], y[:7])
    model = keras.Sequential(
        [
            keras.layers.Conv3D(4, 3),
            keras.layers.BatchNormalization(),
            keras.layers.Activation("tanh"),
            keras.layers.GlobalAveragePooling3D(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        optimizer=trainer.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    history = model.fit(
        samples(kind),
        validation_data=validation,
        epochs=4,
        verbose=0,
        callbacks=trainer.callbacks([StopsOnOneRank(), keras.callbacks.ReduceLROnPlateau()]),
    )
    # What one process finds on all ranks' validation samples together.
    every = [world.allgather(part).numpy() for part in validation]
    loss, accuracy, auc = model.evaluate(*every, verbose=0)
    return {
        "history": history.history,
        "weights": [float(np.sum(np.abs(w))) for w in model.get_weights()],
        "again": {"val_loss": loss, "val_accuracy": accuracy, "val_auc": auc},
        "steps": int(model.optimizer.iterations),
    }


world = trainer.init()
everyones = {kind: world.allgather_object(trained(kind)) for kind in sys.argv[1:]}
keras.utils.set_random_seed(1)
mask = keras.layers.Dropout(0.5)(tf.ones(64), training=True)
everyones["masks"] = world.allgather_object({"mask": mask.numpy().tolist()})
if world.is_main:
    print(json.dumps(everyones))
