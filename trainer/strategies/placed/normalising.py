"""What units of normalisations compute: parts of sums, and what is normalised with them.

Functions that take an operation and a unit are of the form that `computing` describes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from trainer.planning.placement import boxes
from trainer.planning.placement.operations import Operation
from trainer.planning.placement.units import Unit
from trainer.strategies.placed import pieces
from trainer.strategies.placed.pieces import Part

Tensors = Sequence[Any]


def batch_moments(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    """Parts of mean and mean square about the moving mean, `(2, c)`: a shift that keeps the digits."""
    count = math.prod(operation.readings[0].shape[:-1])
    wide = _wide(inputs[0])
    shift = _shift(weights[0], wide)

    @tf.custom_gradient
    def parts(x: Any) -> tuple[Any, Callable[[Any], Any]]:
        share = math.prod(x.shape[:-1]) / count
        values = ops.cast(x, wide)
        mean = reduced(tf.reduce_mean, values)
        variance = reduced(tf.reduce_mean, tf.math.squared_difference(values, mean))
        apart = mean - shift

        def gradient(upstream: Any) -> Any:
            # Of sums of x - shift and of its square, which needs neither mean nor variance.
            of_apart, of_square = tf.unstack(upstream)
            scale = 2 / count * of_square
            return _scaled(x, scale, of_apart / count - shift * scale)

        return share * ops.stack([apart, variance + ops.square(apart)]), gradient

    return parts(inputs[0])


def _shift(moving_mean: Any, dtype: Any) -> Any:
    """The moving mean; 0 where a batch that overflowed left no number: the next batch has its own mean."""
    with _once():
        mean = ops.cast(moving_mean, dtype)
        return ops.where(ops.isfinite(mean), mean, ops.zeros_like(mean))


def _once() -> Any:
    """Let what is computed here, `(c,)` alone, wait for nothing: it is computed once for both passes."""
    return tf.control_dependencies(None)


def batch_statistics(moments: Any, shift: Any) -> tuple[Any, Any]:
    """Mean and variance `(c,)` of the whole batch, from the sum of all `batch_moments` and their shift."""
    apart, mean_square = tf.unstack(moments)
    return shift + apart, mean_square - ops.square(apart)


def moved_statistics(
    operation: Operation, layer: Any, moments: Any, weights: Tensors, before: Tensors
) -> dict[str, Any]:
    """Return the moving mean and variance `(c,)` after this batch, by their paths, as Keras moves them.

    Args:
        operation: a batch norm.
        layer: its Keras layer.
        moments: of the batch, about the moving mean in `weights`.
        weights: blocks with which the batch was normalised.
        before: the same, with the moving statistics that are to be moved.
    """
    named, moved = _by_name(operation, weights), _by_name(operation, before)
    paths = {weight.path.rsplit("/", 1)[-1]: weight.path for weight in operation.weights}
    mean, variance = batch_statistics(moments, _shift(named["moving_mean"], moments.dtype))
    after = {}
    for name, value in (("moving_mean", mean), ("moving_variance", variance)):
        now = ops.cast(value, moved[name].dtype)
        after[paths[name]] = moved[name] * layer.momentum + now * (1.0 - layer.momentum)
    return after


class MovingStatistics:
    """Moving means and variances of a rank's batch norms during an update, one micro-batch after the other.

    All micro-batches are normalised with the statistics of their own samples, added up about the moving mean
    that there was before the update, so that backward passes compute the same again.

    Args:
        layers: of the Keras model, by name.
    """

    def __init__(self, layers: Mapping[str, Any]) -> None:
        self._layers = layers
        self._after: dict[int, dict[str, list[Part]]] = defaultdict(lambda: defaultdict(list))

    def move(
        self, operation: Operation, unit: Unit, micro: int, moments: Any, weights: Sequence[Any]
    ) -> None:
        """Move the statistics of the unit's channels, which several of its units may share.

        Args:
            operation: a batch norm.
            unit: of it.
            micro: number of the micro-batch; those before it have been there.
            moments: of its samples, `(2, c)`.
            weights: blocks of the unit, as they were before the update.
        """
        before = [
            pieces.assembled(block, self._after[micro - 1][weight.path])
            if micro and weight.path in self._after[micro - 1]
            else values
            for weight, block, values in zip(operation.weights, unit.blocks, weights, strict=True)
        ]
        layer = self._layers[operation.layer]
        fresh = moved_statistics(operation, layer, moments, weights, before)
        for weight, block in zip(operation.weights, unit.blocks, strict=True):
            if weight.path in fresh:
                known = self._after[micro][weight.path]
                for part in boxes.subtract(block, [box for box, _ in known]):
                    known.append((part, pieces.taken(part, block, fresh[weight.path])))

    def moved(self) -> Mapping[str, list[Part]]:
        """Return the statistics after the last micro-batch, by path."""
        return self._after[max(self._after)] if self._after else {}


def batch_norm(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    """Return the box `(b, ..., c)`, normalised by the statistics of the whole batch."""
    x, moments = inputs
    named = _by_name(operation, weights)
    with _once():
        mean, variance = batch_statistics(moments, _shift(named["moving_mean"], moments.dtype))
    return _normalised(x, mean, variance, named, layer.epsilon)


def batch_norm_inference(
    operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors
) -> Any:
    """Return the box `(b, ..., c)`, normalised by the moving statistics."""
    named = _by_name(operation, weights)
    return _normalised(inputs[0], named["moving_mean"], named["moving_variance"], named, layer.epsilon)


def _by_name(operation: Operation, weights: Tensors) -> dict[str, Any]:
    names = (weight.path.rsplit("/", 1)[-1] for weight in operation.weights)
    return dict(zip(names, weights, strict=True))


def _normalised(x: Any, mean: Any, variance: Any, named: dict[str, Any], epsilon: float) -> Any:
    wide = _wide(x)
    with _once():
        scale = ops.rsqrt(ops.cast(variance, wide) + epsilon)
        if "gamma" in named:
            scale = scale * ops.cast(named["gamma"], wide)
        offset = -ops.cast(mean, wide) * scale
        if "beta" in named:
            offset = offset + ops.cast(named["beta"], wide)
    return _scaled(x, scale, offset)


def _scaled(x: Any, scale: Any, offset: Any) -> Any:
    if len(scale.shape) == 1 and can_take(x):
        return scaled(x, scale, offset)
    return ops.cast(ops.cast(x, scale.dtype) * scale + offset, x.dtype)


def _wide(x: Any) -> str:
    return "float64" if keras.backend.standardize_dtype(x.dtype) == "float64" else "float32"


def group_moments(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    """Parts of mean and mean square of each sample and group, `(b, 2, groups)`."""
    x = ops.cast(inputs[0], _wide(inputs[0]))
    shape = operation.readings[0].shape
    size = shape[-1] // operation.shape[-1]
    start, stop = unit.reads[0].ranges[-1] if unit.reads[0] else (0, 0)
    first = unit.box.ranges[-1][0]
    member = np.zeros((stop - start, unit.box.shape[-1]))
    member[np.arange(stop - start), np.arange(start, stop) // size - first] = 1
    share = math.prod(x.shape[1:-1]) / (math.prod(shape[1:-1]) * size)
    mean = reduced(tf.reduce_mean, x, kept=1)
    about = tf.reshape(mean, (x.shape[0], *(1 for _ in x.shape[1:-1]), x.shape[-1]))
    variance = reduced(tf.reduce_mean, tf.math.squared_difference(x, about), kept=1)
    parts = ops.stack([mean, variance + ops.square(mean)], axis=1)
    return share * ops.matmul(parts, ops.cast(member, parts.dtype))


def group_norm(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    """Return the box `(b, ..., c)`, normalised by the statistics of each sample and group."""
    x, moments = inputs
    groups = operation.readings[1].shape[-1]
    size = operation.shape[-1] // groups
    start, stop = unit.box.ranges[-1]
    first = unit.reads[1].ranges[-1][0] if unit.reads[1] else 0
    each = ops.take(moments, np.arange(start, stop) // size - first, axis=-1)
    mean, mean_square = each[:, 0], each[:, 1]
    variance = mean_square - ops.square(mean)
    shape = (x.shape[0], *[1] * (len(x.shape) - 2), x.shape[-1])
    named = _by_name(operation, weights)
    return _normalised(x, ops.reshape(mean, shape), ops.reshape(variance, shape), named, layer.epsilon)


# What is done to each channel: a scale and an offset in one pass over the values, and sums that keep digits.
#
# Gradients that TensorFlow composes of single operations take twice as long. What only scales is its fused
# batch norm with fixed statistics. Its sums are not taken, nor those over all axes at once: on processors
# both add float32 up one after the other, and a variance over two million voxels is wrong by up to a
# thousandth.


# What the fused operation adds to a variance. Its libraries allow no less than 1e-5.
_EPSILON = 1e-3


def can_take(x: Any) -> bool:
    """Return whether an array `(..., c)` is of the type that is scaled in one pass."""
    return bool(x.dtype == tf.float32)


def reduced(by: Callable[[Any, Any], Any], x: Any, kept: int = 0) -> Any:
    """Reduce `(..., c)` to `(c,)`, one axis after the other.

    Args:
        by: `tf.reduce_mean` or `tf.reduce_sum`.
        x: the values.
        kept: first axes that stay.
    """
    while len(x.shape) > kept + 1:
        x = by(x, (0, 1) if not kept and len(x.shape) == 3 and x.shape[0] == 1 else -2)
    return x


@tf.custom_gradient
def scaled(x: Any, scale: Any, offset: Any) -> Any:
    """Return `x * scale + offset` of float32 `(..., c)` and `(c,)`."""

    def gradient(of_result: Any) -> Any:
        of_scale = reduced(tf.reduce_sum, of_result * x)
        of_offset = reduced(tf.reduce_sum, of_result)
        return _fused_scaled(of_result, scale, tf.zeros_like(offset)), of_scale, of_offset

    return _fused_scaled(x, scale, offset), gradient


def _fused_scaled(x: Any, scale: Any, offset: Any) -> Any:
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
