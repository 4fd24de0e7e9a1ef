"""A Keras 3 optimizer whose gradients are averaged over all ranks.

Horovod's own wrapper compiles and trains on Keras 3 and never reduces anything: it overrides hooks that
only Keras 2 had. Ours reduces at the one place through which every update passes after accumulation and
before clipping.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import keras
from keras.optimizers import LossScaleOptimizer

from trainer.errors import ConfigError
from trainer.ranks import world as worlds
from trainer.strategies import keras_random
from trainer.strategies import reduction as reductions
from trainer.strategies.compiled_update import compilable
from trainer.strategies.first_update import FirstUpdate
from trainer.strategies.saved_as import saved_as

# One number per distributed optimizer, the same on every rank: it keeps their collectives apart.
_numbers = itertools.count()


def DistributedOptimizer(
    optimizer: keras.Optimizer,
    *,
    compression: reductions.Wire = "none",
    reduction: reductions.Kind = "buckets",
    bucket_mb: float = 4.0,
    gather: bool = False,
) -> keras.Optimizer:
    """Make an optimizer average its gradients over all ranks.

    The optimizer itself is changed and returned: state, learning rate and exclusions stay, no variable is
    added, and a saved model names Keras' own class. Gradients are reduced once per update, after
    `gradient_accumulation_steps` and before clipping, so that every option acts on the same numbers as
    in one process with the whole batch. In a world of one rank nothing is changed.

    Its first update is proved (`first_update`): weights that differ become rank 0's, and gradients that are
    alike on all ranks, because every rank has the same samples, are warned of.

    From now on, layers of this process that draw at random, such as dropout, draw other numbers than those of
    other ranks with the same seed (`keras_random.apart`).

    A `LossScaleOptimizer` must be the outer one. Under the global policy `mixed_float16` it is put
    around for you, as Keras would do later, where it could not see all ranks.

    Args:
        optimizer: any Keras 3 optimizer that is not distributed yet.
        compression: type of the gradients on the wire.
        reduction: see `reduction.make`.
        bucket_mb: size of a bucket, in MiB.
        gather: add gradients at rank 0 in place of an all-reduce; slow, to compare with.

    Raises:
        ConfigError: the optimizer is no Keras 3 optimizer or already distributed; an unknown option.
        WorldError: `trainer.init` was not called.
    """
    if not isinstance(optimizer, keras.Optimizer):
        raise ConfigError(
            f"{type(optimizer).__name__} is not a Keras 3 optimizer.",
            cure="For example keras.optimizers.Adam().",
        )
    if is_distributed(optimizer):
        raise ConfigError("This optimizer is distributed already.", cure="Wrap it once.")
    world = worlds.current()
    name = f"gradients_{next(_numbers)}"
    reduce = reductions.make(
        world,
        name,
        kind=reduction,
        bucket_mb=bucket_mb,
        wire=compression,
        gather=gather,
    )
    if world.size == 1:
        return optimizer
    if keras.config.dtype_policy().name == "mixed_float16" and not isinstance(optimizer, LossScaleOptimizer):
        optimizer = LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
    keras_random.apart(world.rank)
    first = FirstUpdate(world, name)
    inner = getattr(optimizer, "inner_optimizer", None)
    compilable(optimizer if inner is None else inner)
    if inner is None:
        own: Any = type(optimizer)
        _become(optimizer, _reducing(own), reduce, first)
    elif inner.gradient_accumulation_steps:
        own = type(inner)
        _become(inner, _reducing(own), reduce, first)
        _become(optimizer, _AccumulatingLossScale, reduce, first)
    else:
        _become(optimizer, _ReducingLossScale, reduce, first)
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Return whether the optimizer averages its gradients over ranks, in a place where it is safe."""
    return isinstance(optimizer, _Distributed)


def trust(optimizer: keras.Optimizer) -> None:
    """Let a distributed optimizer prove nothing: its weights were broadcast and its samples shared out."""
    if isinstance(optimizer, _Distributed):
        optimizer.first_update.trust()


def share_accumulated(optimizer: keras.Optimizer, world: worlds.World) -> None:
    """Give every rank the mean of what each has accumulated so far; a collective, before a state is saved.

    Between two updates each rank holds gradients of its own. Their mean is what one process would hold,
    and the next update is the same whether ranks go on from their own or from the mean.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if world.size == 1 or not inner.gradient_accumulation_steps:
        return
    accumulated = [v for v in inner._accumulated_gradients if v is not None]
    means = world.grouped_allreduce([v.value for v in accumulated], "mean", name="accumulated")
    for variable, mean in zip(accumulated, means, strict=True):
        variable.assign(mean)


class _Distributed:
    """Marks what `DistributedOptimizer` made.

    Attributes:
        reduce: the reduction.
        first_update: what is proved before and during the first one.
    """

    reduce: reductions.Reduction
    first_update: FirstUpdate

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        variables = None if trainable_variables is None else list(trainable_variables)
        optimizer: Any = self
        grads = self.first_update.start(optimizer, grads, variables)
        super().apply(grads, variables)  # type: ignore[misc]

    def reduce_gradients(self, grads: Sequence[Any]) -> list[Any]:
        self.first_update.compare(grads)
        return self.reduce(grads)


def _become(optimizer: keras.Optimizer, kind: type, reduce: reductions.Reduction, first: FirstUpdate) -> None:
    optimizer.__class__ = kind
    # Past Keras' tracking: they are no state.
    object.__setattr__(optimizer, "reduce", reduce)
    object.__setattr__(optimizer, "first_update", first)


@functools.cache
def _reducing(kind: Any) -> type:
    """A subclass of an optimizer class that reduces before it clips."""

    class Reducing(_Distributed, kind):
        def _clip_gradients(self, grads: Sequence[Any]) -> Any:
            # Keras calls this once per update, with accumulated and not yet clipped gradients.
            return super()._clip_gradients(self.reduce_gradients(grads))

        def _overwrite_variables_directly_with_gradients(self, grads: Any, vars: Any) -> Any:
            if any(self._overwrite_variable_with_gradient(v) for v in vars):
                raise ConfigError(
                    "float8 training keeps scales that no rank can see of the others.",
                    cure="Use float32, mixed_bfloat16 or mixed_float16.",
                )
            return grads, vars

    return saved_as(Reducing, kind)


class _ReducingLossScale(_Distributed, LossScaleOptimizer):
    """Reduces before it looks for overflow, so that all ranks see the same and decide the same."""

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        grads = self.first_update.start(self, grads, trainable_variables)
        super().apply(self.reduce_gradients(grads), trainable_variables)


class AgreeingLossScale(LossScaleOptimizer):
    """Asks the other ranks about overflow each time, since it looks at gradients that are not reduced yet."""

    def check_finite(self, grads: Sequence[Any]) -> Any:
        """Return whether all gradients of all ranks are finite; a collective."""
        import tensorflow as tf

        mine = tf.cast(super().check_finite(grads), tf.int32)
        return worlds.current().allreduce(mine, "min", name="gradients_finite") > 0


class _AccumulatingLossScale(_Distributed, AgreeingLossScale):
    """Accumulates before it reduces."""


saved_as(_ReducingLossScale, LossScaleOptimizer)
saved_as(AgreeingLossScale, LossScaleOptimizer)
saved_as(_AccumulatingLossScale, LossScaleOptimizer)
