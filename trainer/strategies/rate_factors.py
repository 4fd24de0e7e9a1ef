"""A learning rate of its own for some layers: slow for those that know something already."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from trainer.strategies.distributed_optimizer import saved_as


def scale_rates(optimizer: keras.Optimizer, factors: Mapping[str, float]) -> keras.Optimizer:
    """Multiply the learning rate, and with it the weight decay, of single variables.

    The optimizer itself is changed and returned; it is saved as Keras' own class. Call it before
    `DistributedOptimizer`.

    Args:
        optimizer: any Keras 3 optimizer but a `LossScaleOptimizer`.
        factors: by the variable's path; variables that are not named keep their rate.
    """
    if not factors:
        return optimizer
    kind: Any = type(optimizer)
    optimizer.__class__ = _scaling(kind)
    # Past Keras' tracking: it is no state.
    object.__setattr__(optimizer, "rate_factors", dict(factors))
    return optimizer


@functools.cache
def _scaling(kind: Any) -> type:
    class Scaling(kind):
        rate_factors: dict[str, float]

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            factor = self.rate_factors.get(variable.path, 1.0)
            super().update_step(gradient, variable, learning_rate * factor)

        def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
            if self.weight_decay is None:
                return
            for variable in variables:
                if self._use_weight_decay(variable):
                    share = self.weight_decay * self.rate_factors.get(variable.path, 1.0)
                    rate = keras.ops.cast(self.learning_rate, variable.dtype)
                    variable.assign(variable - variable * share * rate)

    return saved_as(Scaling, kind)
