"""The optimizer of one rank, which updates what the rank owns: Keras' own rules on blocks of variables.

Most rules work on each number by itself. What needs the norm of a whole variable, or of all gradients, adds
squares up over all owners.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras.optimizers import LossScaleOptimizer

from trainer.ranks.world import World
from trainer.strategies import compiled_update
from trainer.strategies import slots as slots_
from trainer.strategies.distributed_optimizer import AgreeingLossScale
from trainer.strategies.placed.holdings import Holdings
from trainer.strategies.saved_as import saved_as
from trainer.strategies.slots import Slots


class OwnedOptimizer:
    """An optimizer for what one rank owns, like the one of the whole network.

    Args:
        whole: the optimizer of the whole network, built for `model`.
        model: the whole network.
        holdings: of this rank.
        world: all ranks.

    Attributes:
        optimizer: for `variables`.
        keys: path and box of each of them.
    """

    def __init__(self, whole: keras.Optimizer, model: keras.Model, holdings: Holdings, world: World) -> None:
        inner: Any = getattr(whole, "inner_optimizer", whole)
        # Keras numbers optimizers, and the name of a sum over ranks begins with the optimizer's.
        own_inner: Any = type(inner).from_config({**inner.get_config(), "name": "owner"})
        if hasattr(inner, "rate_factors"):
            object.__setattr__(own_inner, "rate_factors", inner.rate_factors)
        compiled_update.set_compiled(own_inner, compiled_update.is_compiled(inner))
        paths = [variable.path for variable in model.trainable_variables]
        self.keys = sorted(holdings.owned)
        self.variables = [holdings.owned[key] for key in self.keys]
        if not self.variables:  # it takes part in what owners agree on all the same
            self.variables = [keras.Variable(np.zeros((), np.float32), name="nothing")]
        numbers = [paths.index(path) for path, _ in self.keys] or [0]
        self._slots = slots_.build(own_inner, self.variables)
        self._whole_slots = slots_.of_built(inner, model.trainable_variables, whole=False)
        self.optimizer: Any = own_inner
        if world.size > 1:
            kind: Any = type(own_inner)
            own_inner.__class__ = _summing(kind)
            object.__setattr__(own_inner, "owners", _Owners(world, numbers, len(paths)))
        self._whole_outer: list[Any] = []
        self._outer: list[Any] = []
        if isinstance(whole, LossScaleOptimizer):
            self.optimizer = LossScaleOptimizer.from_config({**whole.get_config(), "name": "owner_scale"})
            self.optimizer.inner_optimizer = own_inner
            self.optimizer.build(self.variables)
            if world.size > 1:
                self.optimizer.__class__ = AgreeingLossScale
            self._whole_outer = _outer(whole)
            self._outer = _outer(self.optimizer)
        self.whole = whole

    @property
    def averages(self) -> list[Any] | None:
        """Return the averaged weights of each of `variables`; None without them."""
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        return list(inner._model_variables_moving_average) if inner.use_ema and self.keys else None

    def apply(self, gradients: Sequence[Any]) -> None:
        """Update all that this rank owns; a collective where a norm is clipped or losses are scaled.

        Args:
            gradients: in the order of `keys`.
        """
        # The gradient of nothing is 0, but no constant: TensorFlow would leave out of the graph what is
        # multiplied by it, the sum over all ranks.
        self.optimizer.apply(gradients or [self.variables[0].value], self.variables)
        # So that people and checkpoints see how far training is.
        for whole, mine in self.common():
            whole.assign(mine.value)

    def common(self) -> list[tuple[Any, Any]]:
        """Return pairs of scalars, the whole optimizer's and this one's: iterations, learning rate, scale."""
        inner = zip(self._whole_slots.common, self._slots.common, strict=True)
        return [*inner, *zip(self._whole_outer, self._outer, strict=True)]

    def slots(self) -> tuple[Slots, Slots]:
        """Return the whole optimizer's slots by variable of the network, and this one's by `variables`."""
        return self._whole_slots, self._slots


def _outer(optimizer: Any) -> list[Any]:
    inner = {id(v) for v in optimizer.inner_optimizer.variables}
    return [v for v in optimizer.variables if id(v) not in inner]


class _Owners:
    """Sums over what all ranks own.

    Args:
        world: all ranks.
        numbers: of the network's variable that each owned block is a part of.
        variables: how many the network has.
    """

    def __init__(self, world: World, numbers: Sequence[int], variables: int) -> None:
        self._world, self._numbers, self._variables = world, list(numbers), variables

    def squares(self, gradients: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Return sums of squares of whole variables' gradients `(variables,)`, and each block's own."""
        import tensorflow as tf

        wide = [g if g.dtype == tf.float64 else tf.cast(g, tf.float32) for g in gradients]
        own = tf.stack([tf.cast(tf.reduce_sum(tf.square(g)), tf.float64) for g in wide])
        summed = tf.math.unsorted_segment_sum(own, self._numbers, self._variables)
        everywhere = self._world.allreduce(summed, "sum", name="squared_norms", unscoped=True)
        return everywhere, [everywhere[number] for number in self._numbers]


@functools.cache
def _summing(kind: Any) -> type:
    class Summing(kind):
        owners: _Owners
        clips_over_ranks = True

        def _clip_gradients(self, grads: Sequence[Any]) -> Any:
            import tensorflow as tf

            clip = self.clipnorm or self.global_clipnorm
            if not clip:
                return super()._clip_gradients(grads)
            everywhere, each = self.owners.squares(grads)
            if self.clipnorm:
                norms = [tf.sqrt(one) for one in each]
            else:
                norms = [tf.sqrt(tf.reduce_sum(everywhere))] * len(grads)
            factors = [clip / tf.maximum(norm, clip) for norm in norms]
            return [g * tf.cast(factor, g.dtype) for g, factor in zip(grads, factors, strict=True)]

    return saved_as(Summing, kind)
