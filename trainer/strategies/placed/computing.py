"""What a unit computes: a Keras layer, applied to boxes of its inputs and blocks of its weights.

Every function takes the operation, its layer, the unit, the boxes of the inputs (None where one is not
needed) and the blocks of the weights, and returns the unit's box of the output. All of it works eagerly, in
a graph, and under a gradient tape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from trainer.planning.placement.operations import Operation
from trainer.planning.placement.units import Unit
from trainer.planning.placement.windows import Need
from trainer.strategies.placed import normalising

Tensors = Sequence[Any]
# From a layer, the whole shape of its input and the ranges of a box to a context in which it draws for it.
Drawing = Callable[[Any, tuple[int, ...], Sequence[tuple[int, int]]], AbstractContextManager[None]]


def compute(
    operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors, drawing: Drawing | None
) -> Any:
    """Compute a unit's box of the output of its operation.

    Args:
        operation: that the unit is a part of.
        layer: the Keras layer of that name.
        unit: says which box.
        inputs: boxes `unit.reads`, None where that is None.
        weights: blocks `unit.blocks`.
        drawing: what dropout and its like draw; None: there is no such layer.
    """
    dtype = layer.compute_dtype
    cast = [x if x is None else ops.cast(x, dtype) for x in inputs]
    if operation.kind == "dropout":
        if drawing is None:
            raise TypeError("a layer that draws needs to know what")
        with drawing(layer, operation.shape, unit.box.ranges):
            return layer.call(cast[0], training=True)
    if operation.kind in ("batch_norm", "batch_norm_inference", "group_norm"):
        return _KINDS[operation.kind](operation, layer, unit, [cast[0], *inputs[1:]], weights)
    return _KINDS[operation.kind](operation, layer, unit, cast, [ops.cast(w, dtype) for w in weights])


def dtype_of(operation: Operation, layer: Any) -> tf.DType:
    """Return the type of an operation's output; statistics are never of 16 bits."""
    kind = tf.as_dtype("float32" if layer is None else layer.compute_dtype)
    return tf.float32 if operation.kind.endswith("_moments") and kind.size < 4 else kind


def _needs(operation: Operation, unit: Unit, which: int = 0) -> tuple[Need, ...]:
    found = operation.readings[which].needs(unit.box)
    if found is None:
        raise ValueError(f"{unit} reads nothing of input {which}")
    return found


def _bordered(
    x: Any, needs: Sequence[Need], unit: Unit, window: Sequence[tuple[int, int, int]], value: float = 0.0
) -> tuple[Any, str]:
    """Values with the border that their windows need, and the padding that is left to the operation itself.

    Where the border is that of TensorFlow's `same`, nothing is copied.

    Args:
        x: box of the input.
        needs: one for each axis.
        unit: whose output is computed.
        window: length, stride and dilation for each axis of space.
        value: of the border.
    """
    if not any(need.before or need.after for need in needs):
        return x, "valid"
    is_same = True
    for need, size, (kernel, stride, dilation) in zip(needs[1:-1], unit.box.shape[1:-1], window, strict=True):
        length = need.range[1] - need.range[0]
        missing = max((size - 1) * stride + (kernel - 1) * dilation + 1 - length, 0)
        is_same &= size == -(-length // stride) and (need.before, need.after) == (
            missing // 2,
            missing - missing // 2,
        )
    if is_same:
        return x, "same"
    widths = [(need.before, need.after) for need in needs]
    if x.shape[-1] < _FEW_CHANNELS:
        return _joined_to_border(x, widths, value), "valid"
    return tf.raw_ops.PadV2(input=x, paddings=widths, constant_values=tf.constant(value, x.dtype)), "valid"


# On processors TensorFlow pads runs of one number four times as slowly as it joins arrays.
_FEW_CHANNELS = 4


def _joined_to_border(x: Any, widths: Sequence[tuple[int, int]], value: float) -> Any:
    for axis in reversed(range(len(widths))):  # the innermost first, while there is least to copy
        before, after = (
            tf.fill([width if i == axis else size for i, size in enumerate(x.shape)], tf.cast(value, x.dtype))
            for width in widths[axis]
        )
        x = tf.concat([part for part in (before, x, after) if part.shape[axis]], axis)
    return x


def _taken(x: Any, axis: int, skip: int, count: int) -> Any:
    """`count` indices of an axis from `skip` on; zeros where there is none."""
    before, after = max(-skip, 0), max(skip + count - x.shape[axis], 0)
    if before or after:
        x = ops.pad(x, [(before, after) if i == axis else (0, 0) for i in range(len(x.shape))])
        skip += before
    if skip == 0 and count == x.shape[axis]:
        return x
    return x[tuple(slice(skip, skip + count) if i == axis else slice(None) for i in range(len(x.shape)))]


def _convolution(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    needs = _needs(operation, unit)
    window = list(zip(layer.kernel_size, layer.strides, layer.dilation_rate, strict=True))
    x, padding = _bordered(inputs[0], [*needs[:-1], Need(needs[-1].range)], unit, window)

    def convolve(x: Any, kernel: Any) -> Any:
        return ops.conv(
            x,
            kernel,
            strides=layer.strides,
            padding=padding,
            data_format="channels_last",
            dilation_rate=layer.dilation_rate,
        )

    if layer.groups == 1:
        y = convolve(x, weights[0])
    else:  # one after the other: processors have no kernel for several groups in 3D
        per_group = operation.shape[-1] // layer.groups
        taken = operation.readings[0].shape[-1] // layer.groups
        parts, channel, first = [], 0, unit.box.ranges[-1][0] // per_group
        while channel < unit.box.shape[-1]:
            group = (unit.box.ranges[-1][0] + channel) // per_group
            count = min((group + 1) * per_group, unit.box.ranges[-1][1]) - unit.box.ranges[-1][0] - channel
            start = (group - first) * taken
            parts.append(convolve(x[..., start : start + taken], weights[0][..., channel : channel + count]))
            channel += count
        y = ops.concatenate(parts, axis=-1)
    return y + weights[1] if layer.use_bias else y


def _transposed(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    y = ops.conv_transpose(
        inputs[0], weights[0], strides=layer.strides, padding="valid", data_format="channels_last"
    )
    for axis, need in enumerate(_needs(operation, unit)[1:-1], start=1):
        y = _taken(y, axis, need.skip, unit.box.shape[axis])
    return y + weights[1] if layer.use_bias else y


def _window_of_pool(layer: Any) -> list[tuple[int, int, int]]:
    return [(size, stride, 1) for size, stride in zip(layer.pool_size, layer.strides, strict=True)]


def _maximum(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    lowest = float(inputs[0].dtype.min)
    x, padding = _bordered(inputs[0], _needs(operation, unit), unit, _window_of_pool(layer), lowest)
    return ops.max_pool(x, layer.pool_size, layer.strides, padding, "channels_last")


def _average(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    needs = _needs(operation, unit)
    x, padding = _bordered(inputs[0], needs, unit, _window_of_pool(layer))
    y = ops.average_pool(x, layer.pool_size, layer.strides, padding, "channels_last")
    if padding == "same" or not any(need.before or need.after for need in needs):
        return y
    # Padding does not count.
    scale = np.ones([1] * len(unit.box.shape))
    for axis, (need, size, stride) in enumerate(
        zip(needs[1:-1], layer.pool_size, layer.strides, strict=True), start=1
    ):
        real = np.pad(np.ones(need.range[1] - need.range[0]), (need.before, need.after))
        counts = [real[i * stride : i * stride + size].sum() for i in range(unit.box.shape[axis])]
        scale = scale * (size / np.array(counts)).reshape([-1 if i == axis else 1 for i in range(scale.ndim)])
    return y * ops.cast(scale, y.dtype)


def _activation(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    y = getattr(layer, "activation", layer)(inputs[0])
    return (
        _taken(y, len(y.shape) - 1, unit.box.ranges[-1][0], unit.box.shape[-1])
        if (operation.readings[0].axes[-1] is None)
        else y
    )


def _elementwise(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    return layer._merge_function(list(inputs))


def _concatenate(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    present = [x for x in inputs if x is not None]
    return present[0] if len(present) == 1 else ops.concatenate(present, axis=layer.axis)


def _attention(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    f, g, h, x = inputs
    keys, queries, values = (ops.reshape(part, (part.shape[0], -1, part.shape[-1])) for part in (f, g, h))
    scores = ops.einsum("bjc,bic->bji", queries, keys)
    scores = ops.cast(scores, keras.backend.result_type(scores.dtype, "float32"))
    beta = ops.exp(scores - ops.logsumexp(scores, axis=-1, keepdims=True))
    mixed = ops.einsum("bji,bic->bjc", ops.cast(beta, values.dtype), values)
    return ops.cast(weights[0], x.dtype) * ops.reshape(mixed, x.shape) + x


def _upsampling(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    y = inputs[0]
    for axis, need in enumerate(_needs(operation, unit)[1:-1], start=1):
        times = operation.shape[axis] // operation.readings[0].shape[axis]
        y = _taken(ops.repeat(y, times, axis=axis), axis, need.skip, unit.box.shape[axis])
    return y


def _dense(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    y = ops.matmul(inputs[0], weights[0])
    return y + weights[1] if layer.use_bias else y


def _reshape(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    y = ops.reshape(inputs[0], (inputs[0].shape[0], *operation.shape[1:]))
    for axis in range(1, len(operation.shape)):
        y = _taken(y, axis, unit.box.ranges[axis][0], unit.box.shape[axis])
    return y


def _mean(operation: Operation, layer: Any, unit: Unit, inputs: Tensors, weights: Tensors) -> Any:
    x = inputs[0]
    share = math.prod(x.shape[1:-1]) / math.prod(operation.readings[0].shape[1:-1])
    y = share * ops.mean(x, axis=tuple(range(1, len(x.shape) - 1)))
    return ops.reshape(y, unit.box.shape)


_KINDS: dict[str, Callable[[Operation, Any, Unit, Tensors, Tensors], Any]] = {
    "convolution": _convolution,
    "transposed": _transposed,
    "maximum": _maximum,
    "average": _average,
    "mean": _mean,
    "batch_moments": normalising.batch_moments,
    "batch_norm": normalising.batch_norm,
    "batch_norm_inference": normalising.batch_norm_inference,
    "group_moments": normalising.group_moments,
    "group_norm": normalising.group_norm,
    "activation": _activation,
    "elementwise": _elementwise,
    "concatenate": _concatenate,
    "attention": _attention,
    "upsampling": _upsampling,
    "dense": _dense,
    "reshape": _reshape,
}
