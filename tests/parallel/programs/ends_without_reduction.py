"""Scripts that end without a reduction. Argument: what the script did."""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import sys

import keras
import numpy as np

import trainer

kind = sys.argv[1]
trainer.init(threads=1)
x, y = trainer.shard(np.ones((4, 2), np.float32), np.ones((4, 1), np.float32))


def work() -> None:
    """In a function: neither model nor optimizer is there any more when the script ends."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(trainer.DistributedOptimizer(optimizer) if kind == "reduces" else optimizer, "mse")
    if kind == "predicts":
        model.predict(x, verbose=0)
        model.evaluate(x, y, verbose=0)
    else:
        model.fit(x, y, verbose=0)


work()
if kind == "fails":
    raise ValueError("the cause of it all")
print(f"done {trainer.rank()}", flush=True)
