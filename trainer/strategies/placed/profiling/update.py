"""Seconds of the optimizer's update of all weights on this rank's device, compiled where a run would be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from trainer.ranks.world import World
from trainer.strategies import compiled_update
from trainer.strategies.compiled_update import Updated
from trainer.strategies.placed.profiling import timing
from trainer.strategies.placed.profiling.timing import Spread, Stopwatch


def measure(optimizer: keras.Optimizer, model: keras.Model, compile: str = "auto") -> Spread:
    """Time the optimizer's step, with gradients of zeros; the model's weights may change.

    Args:
        optimizer: of one rank; from now on its update is compiled if that is faster.
        model: with trainable variables.
        compile: `train.compile`.
    """
    variables = model.trainable_variables
    if not variables:
        return Spread(0.0, 0.0)
    optimizer.build(variables)
    compiled_update.choose(compile, Updated((optimizer,), tuple(variables)), World())

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
