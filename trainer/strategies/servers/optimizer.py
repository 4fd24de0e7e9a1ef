"""A worker's optimizer: it accumulates, scales and counts, and leaves the update to the servers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
from keras.optimizers import LossScaleOptimizer

from trainer.errors import ConfigError
from trainer.strategies.distributed_optimizer import AgreeingLossScale
from trainer.strategies.saved_as import saved_as
from trainer.strategies.servers.client import Client
from trainer.strategies.servers.job import keras_dtype
from trainer.telemetry.timeline import Buckets


def leave_updates_to_servers(optimizer: keras.Optimizer, client: Client, *, workers: int) -> None:
    """Change a built optimizer in place, so that an update is an exchange of gradients for weights.

    Its variables stay, and are those of a checkpoint; slots are filled when state is fetched.

    Args:
        optimizer: a Keras optimizer, or a `LossScaleOptimizer` around one.
        client: this worker's.
        workers: how many there are.
    """
    inner: Any = getattr(optimizer, "inner_optimizer", optimizer)
    if not hasattr(inner, "exchange"):
        kind: Any = type(inner)
        inner.__class__ = _remote(kind)
    # Past Keras' tracking: it is no state.
    object.__setattr__(inner, "exchange", functools.partial(_exchange, client))
    if isinstance(optimizer, LossScaleOptimizer) and workers > 1:
        optimizer.__class__ = AgreeingLossScale


@functools.cache
def _remote(kind: Any) -> type:
    class Remote(kind):
        exchange: Any

        def _backend_update_step(self, grads: Sequence[Any], vars: Sequence[Any], learning_rate: Any) -> None:
            positions = [self._get_variable_index(v) for v in vars]
            if len(positions) < len(self._trainable_variables):
                without = next(
                    v.path for i, v in enumerate(self._trainable_variables) if i not in set(positions)
                )
                raise ConfigError(
                    f"The loss does not depend on {without!r}, so no server can update it.",
                    cure="Freeze its layer (train.transfer.freeze), or set train.strategy=data.",
                )
            self.exchange([grads[positions.index(i)] for i in range(len(positions))], vars)

        # What follows is done by the servers.

        def _clip_gradients(self, grads: Sequence[Any]) -> Any:
            return list(grads)

        def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
            pass

        def _update_model_variables_moving_average(self, trainable_variables: Sequence[Any]) -> None:
            pass

        def _overwrite_model_variables_with_average_value(self, trainable_variables: Any) -> None:
            pass

    return saved_as(Remote, kind)


def _exchange(client: Client, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Within a compiled step: send each bundle as soon as it exists, wait for all weights, assign them."""
    import tensorflow as tf

    flat = [tf.reshape(tf.convert_to_tensor(g), [-1]) for g in gradients]
    sent: list[Any] = []
    # From the first gradient that leaves to the last weights that are back.
    timed = Buckets("exchange")
    for bundle in client.bundles:
        parts = [flat[piece.variable][piece.start : piece.stop] for piece in bundle.pieces]
        if not sent:
            timed.leaves([flat[piece.variable] for piece in bundle.pieces], _there_and_back(client))
        sent.append(_push(client, bundle.number, tf.concat(parts, 0)))
    types = [tf.as_dtype(client.dtype_of(bundle)) for bundle in client.bundles]
    weights = tf.numpy_function(lambda *_: client.pull(), sent, types)
    timed.returns(weights)
    timed.keep()
    found: list[list[tuple[int, Any]]] = [[] for _ in variables]
    for bundle, values in zip(client.bundles, weights, strict=True):
        parts = tf.split(tf.ensure_shape(values, [bundle.size]), [piece.size for piece in bundle.pieces])
        for piece, part in zip(bundle.pieces, parts, strict=True):
            found[piece.variable].append((piece.start, part))
    for variable, parts in zip(variables, found, strict=True):
        ordered = [part for _, part in sorted(parts, key=lambda one: one[0])]
        variable.assign(tf.reshape(tf.concat(ordered, 0), variable.shape))


def _there_and_back(client: Client) -> int:
    """Bytes of gradients that a worker sends per update, and of weights that it gets."""
    return 2 * sum(bundle.size * client.dtype_of(bundle).itemsize for bundle in client.bundles)


def _push(client: Client, number: int, gradient: Any) -> Any:
    import tensorflow as tf

    dtype = client.dtype_of(client.bundles[number])

    def push(values: Any) -> Any:
        client.push(number, values)
        return keras_dtype("int32").type(number)

    return tf.numpy_function(push, [tf.cast(gradient, dtype)], tf.int32)
