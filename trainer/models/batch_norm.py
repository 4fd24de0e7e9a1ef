"""Batch norm over the samples of all ranks."""

from __future__ import annotations

from typing import Any

import keras

from trainer.ranks import world as worlds
from trainer.telemetry import timeline


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Keras' batch norm, whose mean and variance are those of the global micro-batch.

    In training each rank's count, mean and variance `(C,)` cross once forwards and their gradients once
    backwards; the ranks' variances are joined as by Chan, Golub and LeVeque (1979), which is as exact
    as the two-pass variance of one process. Moving statistics are then the same on every rank. Samples
    that only fill up a batch count too, as they do in one process. All of it in float32, or in float64 where
    the layer computes in that.

    In a world of one rank it is Keras' own layer, and it is saved as that.
    """

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        mean, variance = super()._moments(inputs, mask)
        world = worlds.current()
        if world.size == 1:
            return mean, variance
        return _joined(world, _count(inputs, mask), mean, variance)


# A model saved with it opens anywhere, as one with ordinary batch norm and the same weights.
SyncBatchNormalization.__name__ = "BatchNormalization"
SyncBatchNormalization.__qualname__ = "BatchNormalization"
SyncBatchNormalization.__module__ = "keras.layers"


def _count(inputs: Any, mask: Any) -> Any:
    """Number of values behind each channel's mean, a scalar of the type of the inputs."""
    import tensorflow as tf

    if mask is not None:
        inner = inputs.shape[len(mask.shape) : -1].num_elements()
        return tf.reduce_sum(tf.cast(mask, inputs.dtype)) * float(inner)
    channels = inputs.shape[-1]
    return tf.cast(tf.size(inputs, tf.int64), inputs.dtype) / float(channels)


def _joined(world: worlds.World, count: Any, mean: Any, variance: Any) -> tuple[Any, Any]:
    """Mean and variance `(C,)` over all ranks; differentiable."""
    import tensorflow as tf

    channels = mean.shape[0]
    local = tf.concat([tf.reshape(count, [1]), mean, variance], 0)
    # Each rank fills its own row of zeros: a sum of these is an all-gather whose gradient Horovod
    # computes in one collective (that of its all-gather takes two more).
    row = tf.one_hot(world.rank, world.size, dtype=mean.dtype)[:, None]
    table = timeline.collective(lambda rows: world.allreduce(rows, "sum"), row * local[None])
    share = table[:, :1] / tf.reduce_sum(table[:, :1])
    means, variances = table[:, 1 : 1 + channels], table[:, 1 + channels :]
    total = tf.reduce_sum(share * means, 0)
    return total, tf.reduce_sum(share * (variances + tf.square(means - total)), 0)
