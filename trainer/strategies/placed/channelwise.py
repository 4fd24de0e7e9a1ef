"""What is done to each channel: a scale and an offset in one pass over the values, and sums that keep digits.

Gradients that TensorFlow composes of single operations take twice as long. What only scales is its fused
batch norm with fixed statistics. Its sums are not taken, nor those over all axes at once: on processors both
add float32 up one after the other, and a variance over two million voxels is wrong by up to a thousandth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# What the fused operation adds to a variance. Its libraries allow no less than 1e-5.
_EPSILON = 1e-3


def can_take(x: Any) -> bool:
    """Return whether an array `(..., c)` is of the type that is scaled in one pass."""
    return bool(x.dtype == tf.float32)


def reduced(by: Callable[[Any, int], Any], x: Any, kept: int = 0) -> Any:
    """Reduce `(..., c)` to `(c,)`, one axis after the other.

    Args:
        by: `tf.reduce_mean` or `tf.reduce_sum`.
        x: the values.
        kept: first axes that stay.
    """
    while len(x.shape) > kept + 1:
        x = by(x, -2)
    return x


@tf.custom_gradient
def scaled(x: Any, scale: Any, offset: Any) -> Any:
    """Return `x * scale + offset` of float32 `(..., c)` and `(c,)`."""

    def gradient(of_result: Any) -> Any:
        of_scale = reduced(tf.reduce_sum, of_result * x)
        of_offset = reduced(tf.reduce_sum, of_result)
        return _scaled(of_result, scale, tf.zeros_like(offset)), of_scale, of_offset

    return _scaled(x, scale, offset), gradient


def _scaled(x: Any, scale: Any, offset: Any) -> Any:
    channels = x.shape[-1:]
    # Not as samples: of 442,368 an H200's cuDNN made a launch failure.
    y, *_ = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(x, (1, -1, *x.shape[-2:]) if len(x.shape) > 1 else (1, 1, 1, *channels)),
        scale=scale,
        offset=offset,
        mean=tf.zeros(channels),
        variance=tf.fill(channels, 1 - _EPSILON),
        epsilon=_EPSILON,
        is_training=False,
    )
    return tf.reshape(y, x.shape)
