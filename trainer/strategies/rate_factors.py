"""A learning rate of its own for some layers: slow for those that know something already."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from trainer.strategies.saved_as import saved_as


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
        weight_decay: float | None

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            super().update_step(gradient, variable, learning_rate * self._factor(variable))

        def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
            own = self.weight_decay
            if own is None:
                return
            try:
                for variable in variables:
                    self.weight_decay = own * self._factor(variable)
                    super()._apply_weight_decay([variable])
            finally:
                self.weight_decay = own

        def _factor(self, variable: Any) -> float:
            # Updates get TensorFlow's variable, which does not know its path.
            known = self._trainable_variables[self._get_variable_index(variable)]
            return self.rate_factors.get(known.path, 1.0)

    return saved_as(Scaling, kind)
