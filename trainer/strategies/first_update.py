"""What a distributed optimizer proves at its first update: equal weights, and unequal data.

A script that forgets a line would else train several networks, or train one on the same samples n times,
without a word. docs/decisions/0005-what-ranks-ask.md has the reasons and what is promised.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from trainer.errors import ConfigError, InputError
from trainer.ranks import world as worlds

_ever_reduced = False


def ever_reduced() -> bool:
    """Return whether a distributed optimizer of this process has reduced gradients, or is about to."""
    return _ever_reduced


def broadcast(model: Any, optimizer: keras.Optimizer | None = None) -> None:
    """Give every rank rank 0's weights; a collective, so every rank calls it.

    `trainer.callbacks()` does it for `model.fit`; this is for loops of your own. Call it once the weights
    exist and whatever one rank alone loads is loaded, before the first step.

    Args:
        model: a built model or layer: trainable and frozen weights and moving statistics are broadcast. Seeds
            of dropout layers are not: each rank draws its own masks.
        optimizer: its state is broadcast, too; one without state yet is built for the model first.

    Raises:
        InputError: the model has no weights yet, or is not a Keras model.
        WorldError: `trainer.init` was not called.
    """
    world = worlds.current()
    if not isinstance(model, keras.layers.Layer):
        raise InputError(
            f"trainer.broadcast: {type(model).__name__} is not a Keras model.",
            cure="trainer.broadcast(model) or trainer.broadcast(model, optimizer).",
        )
    if not model.built or not model.weights:
        raise InputError(
            f"trainer.broadcast: {model.name!r} has no weights yet.",
            cure="Give the model a keras.Input, or call it on one batch before.",
        )
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    if world.size > 1:
        _broadcast([*model.weights, *(optimizer.variables if optimizer is not None else [])], world)


class FirstUpdate:
    """Watches one optimizer until its first update has been proved; costs nothing afterwards.

    Args:
        world: all ranks.
        name: distinguishes the collectives of several optimizers.
    """

    def __init__(self, world: worlds.World, name: str) -> None:
        self._world = world
        self._name = name
        self._started = False
        self._compared = False
        self._replaced = False
        # Asked within a compiled step, where this process' own flag cannot be: a constant there.
        self._open: Any = None

    def trust(self) -> None:
        """Prove nothing: whoever made the optimizer has broadcast the weights and shares the samples out."""
        self._started = self._compared = True

    def start(
        self, optimizer: keras.Optimizer, gradients: Sequence[Any], variables: Sequence[Any] | None
    ) -> Sequence[Any]:
        """Make weights and optimizer state rank 0's where they differ; a collective at its first call.

        Within `tf.function` this happens while the step is traced, before it runs for the first time, and
        so before gradients are taken. A loop that runs eagerly has taken them already, each rank at weights
        of its own: then the first update is made from rank 0's gradients alone.

        Args:
            optimizer: whose state is compared, if it has any.
            gradients: what this update was given.
            variables: their weights; None: those that the optimizer was built with.

        Returns:
            The gradients to update with.

        Raises:
            ConfigError: the ranks have different networks.
            InputError: the weights differ, and a compiled function was given gradients taken outside of it.
        """
        if self._started or (variables is None and not optimizer.built):
            return gradients
        self._started = True
        import tensorflow as tf

        weights = list(optimizer._trainable_variables if variables is None else variables)
        with tf.init_scope():  # out of a step that is being traced
            odd = self._made_alike(weights)
            odd_state = self._made_alike(optimizer.variables if optimizer.built else [])
        if odd or odd_state:
            self._say_unlike(odd, odd_state, eager=tf.executing_eagerly())
        if not odd:
            return gradients
        if tf.executing_eagerly():
            self._replaced = True
            dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
            return [None if g is None else tf.constant(self._world.broadcast(g.numpy())) for g in dense]
        if all(
            getattr(getattr(g, "op", None), "type", "") == "Placeholder" for g in gradients if g is not None
        ):
            raise InputError(
                "The ranks started with different weights, and gradients were taken before the optimizer "
                "could make them equal.",
                cure="Call trainer.broadcast(model) before the loop.",
            )
        return gradients

    def compare(self, gradients: Sequence[Any]) -> None:
        """Warn, once, if all ranks' gradients are the same bit for bit: so are their samples then.

        A collective until there is a verdict. Gradients that are all zero, infinite or NaN say nothing about
        the samples; then the next update is looked at. Within a compiled step what remains is a condition.
        """
        global _ever_reduced
        _ever_reduced = True
        present = [g for g in gradients if g is not None]
        if self._compared or not present:
            return
        if self._replaced:  # by rank 0's: alike whatever the samples
            self._replaced = False
            return
        import tensorflow as tf

        if self._open is None:
            with tf.init_scope():
                self._open = tf.Variable(True, trainable=False)
        dense = [tf.convert_to_tensor(g) for g in present]
        tf.cond(self._open, lambda: self._judge(dense), lambda: False)

    def _made_alike(self, variables: Sequence[Any]) -> list[int]:
        """Ranks whose values differed from rank 0's; those have rank 0's now."""
        values = [_value(variable) for variable in variables]
        layout = [f"{value.dtype}{list(value.shape)}" for value in values]
        # Names are left out: they count the models that a rank has made.
        content = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
        everyones = self._world.allgather_object([layout, content])
        odd = [rank for rank, (theirs, _) in enumerate(everyones) if theirs != everyones[0][0]]
        if odd:
            raise ConfigError(
                f"The network of {worlds.named(odd)} has other weights, in number or shape, than rank 0's.",
                cure="Build the same network on every rank.",
            )
        odd = [rank for rank, (_, theirs) in enumerate(everyones) if theirs != everyones[0][1]]
        if odd:
            _broadcast(variables, self._world)
        return odd

    def _say_unlike(self, odd: list[int], odd_state: list[int], *, eager: bool) -> None:
        if not self._world.is_main:
            return
        what = " and ".join(
            f"{name} of {worlds.named(ranks)}"
            for name, ranks in (("weights", odd), ("optimizer state", odd_state))
            if ranks
        )
        once = (
            " The first update is made from rank 0's gradients alone: the others' belong to other weights."
            if odd and eager
            else ""
        )
        worlds.report(
            f"warning: at the first update the {what} differed from rank 0's; all ranks go on from rank 0's."
            f"{once}\n"
            "  Frozen weights and moving statistics are not seen here. For model.fit, give "
            "callbacks=trainer.callbacks(); in a loop of your own, call trainer.broadcast(model) before it."
        )

    def _judge(self, gradients: list[Any]) -> Any:
        import tensorflow as tf

        prints = [tf.fingerprint(tf.reshape(gradient, [1, -1]))[0] for gradient in gradients]
        nonzero = tf.reduce_any([tf.reduce_any(gradient != 0) for gradient in gradients])
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
        mine = tf.concat([*prints, [tf.cast(nonzero & finite, tf.uint8)]], 0)
        everyones = tf.reshape(
            self._world.allgather(mine, name=f"{self._name}.first"), [self._world.size, mine.shape[0]]
        )
        telling = tf.reduce_all(everyones[:, -1] > 0)
        alike = telling & tf.reduce_all(everyones == everyones[:1])
        self._open.assign(~telling)
        tf.numpy_function(self._say_alike, [telling, alike], [])
        return alike

    def _say_alike(self, telling: np.bool_, alike: np.bool_) -> None:
        self._compared = bool(telling)
        if alike and self._world.is_main:
            worlds.report(
                "warning: at the first update all ranks had the same gradients, bit for bit: each trains on "
                f"the same samples, so {self._world.size} ranks do the work of one.\n"
                "  Give each rank its share: x, y = trainer.shard(x, y)."
            )


def _broadcast(variables: Sequence[Any], world: worlds.World) -> None:
    for variable in variables:
        variable.assign(world.broadcast(_value(variable)))


def _value(variable: Any) -> np.ndarray:
    """A variable of Keras or of TensorFlow, as an array."""
    return np.asarray(variable.value if isinstance(variable, keras.Variable) else variable)
