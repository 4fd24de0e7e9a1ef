"""A scale and an offset for each channel, in one pass over the values.

Gradients that TensorFlow composes of single operations take twice as long. What only scales is its fused
batch norm with fixed statistics. Sums are not: the fused operation adds float32 up one after the other, and
loses a digit of a large volume's mean.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# What the fused operation adds to a variance. Its libraries allow no less than 1e-5.
_EPSILON = 1e-3


def can_take(x: Any) -> bool:
    """Return whether an array `(..., c)` is of the type that is scaled in one pass."""
    return bool(x.dtype == tf.float32)


@tf.custom_gradient
def scaled(x: Any, scale: Any, offset: Any) -> Any:
    """Return `x * scale + offset` of float32 `(..., c)` and `(c,)`."""

    def gradient(of_result: Any) -> Any:
        axes = list(range(len(x.shape) - 1))
        of_scale = tf.reduce_sum(of_result * x, axes)
        return _scaled(of_result, scale, tf.zeros_like(offset)), of_scale, tf.reduce_sum(of_result, axes)

    return _scaled(x, scale, offset), gradient


def _scaled(x: Any, scale: Any, offset: Any) -> Any:
    channels = x.shape[-1:]
    y, *_ = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(x, (-1, 1, 1, *channels)),
        scale=scale,
        offset=offset,
        mean=tf.zeros(channels),
        variance=tf.fill(channels, 1 - _EPSILON),
        epsilon=_EPSILON,
        is_training=False,
    )
    return tf.reshape(y, x.shape)
