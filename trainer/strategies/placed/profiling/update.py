"""Seconds of the optimizer's update of all weights on this rank's device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.strategies.placed.profiling import timing
from trainer.strategies.placed.profiling.timing import Spread, Stopwatch


def measure(optimizer: keras.Optimizer, model: keras.Model) -> Spread:
    """Time the optimizer's step, with gradients of zeros; the model's weights may change.

    Args:
        optimizer: of one rank.
        model: with trainable variables.
    """
    variables = model.trainable_variables
    if not variables:
        return Spread(0.0, 0.0)
    optimizer.build(variables)

    @tf.function(autograph=False, jit_compile=False)
    def update(*gradients: Any) -> Any:
        optimizer.apply(list(gradients), variables)
        return tf.convert_to_tensor(optimizer.iterations)

    def times(count: int, gradients: Sequence[Any]) -> object:
        # Not in a loop within the graph: a Keras optimizer cannot be applied in there.
        return [update(*gradients) for _ in range(count)][-1].numpy()

    watch = Stopwatch([times], lambda: [tf.zeros(one.shape, one.dtype) for one in variables])
    for _ in range(timing.ROUNDS):
        watch.round()
    return timing.spread([one for (one,) in watch.found])
