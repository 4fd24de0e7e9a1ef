"""What each kind of Keras layer is to a planner: an operation or two, and what they read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers

from trainer.errors import ModelError
from trainer.models.attention import AttentionSum
from trainer.planning.placement.operations import Operation, Reading, Weight
from trainer.planning.placement.windows import (
    Grouped,
    Padding,
    Pointwise,
    Repeating,
    Shifted,
    Sliding,
    Spreading,
    WindowAxis,
)
from trainer.strategies.draws import NOISE

# The Keras layers that can be divided over ranks, by what they are to a planner.


INPUTS = (layers.InputLayer,)
BATCH_NORMS = (layers.BatchNormalization,)
GROUP_NORMS = (layers.GroupNormalization,)
CONCATENATIONS = (layers.Concatenate,)
ATTENTIONS = (AttentionSum,)
DENSE = (layers.Dense,)
RESHAPES = (layers.Flatten, layers.Reshape)
ELEMENTWISE = (layers.Add, layers.Multiply, layers.Average, layers.Maximum, layers.Minimum, layers.Subtract)
ACTIVATIONS = (
    layers.Activation,
    layers.Softmax,
    *NOISE,
    layers.ReLU,
    layers.LeakyReLU,
    layers.ELU,
    layers.Identity,
    layers.Rescaling,
)
POOLS = (
    layers.MaxPooling1D,
    layers.MaxPooling2D,
    layers.MaxPooling3D,
    layers.AveragePooling1D,
    layers.AveragePooling2D,
    layers.AveragePooling3D,
)
CONVOLUTIONS = (layers.Conv1D, layers.Conv2D, layers.Conv3D)
TRANSPOSED = (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose)
MEANS = (layers.GlobalAveragePooling1D, layers.GlobalAveragePooling2D, layers.GlobalAveragePooling3D)
UPSAMPLINGS = (layers.UpSampling1D, layers.UpSampling2D, layers.UpSampling3D)
LAYERS = (
    *INPUTS,
    *TRANSPOSED,
    *CONVOLUTIONS,
    *POOLS,
    *MEANS,
    *BATCH_NORMS,
    *GROUP_NORMS,
    *ACTIVATIONS,
    *ELEMENTWISE,
    *CONCATENATIONS,
    *ATTENTIONS,
    *UPSAMPLINGS,
    *DENSE,
    *RESHAPES,
)


def refused(layer: Any, why: str) -> ModelError:
    """Return the error for a layer that cannot be divided."""
    known = ", ".join(kind.__name__ for kind in LAYERS)
    return ModelError(
        f"Layer {layer.name} ({type(layer).__name__}) {why}.",
        cure=f"Known: {known}. Build the network of these, or take train.strategy=data.",
    )


_SAME = Pointwise()
# Activations that compare channels with each other need all of them.
_OVER_CHANNELS = ("softmax", "log_softmax", "sparsemax", "glu")

Shape = tuple[int, ...]
Inputs = Sequence[tuple[str, Shape]]


def _each(shape: Shape) -> tuple[tuple[int, WindowAxis], ...]:
    return tuple((axis, _SAME) for axis in range(len(shape)))


def samples_only(shape: Shape) -> tuple[tuple[int, WindowAxis] | None, ...]:
    """Return how an operation reads all of its own samples."""
    return ((0, _SAME), *(None for _ in shape[1:]))


def _weights(layer: Any, cuts: dict[str, tuple[int | None, ...]]) -> tuple[Weight, ...]:
    """The layer's variables that there are, of those named."""
    weights = []
    for name, axes in cuts.items():
        variable = getattr(layer, name, None)
        if variable is not None:
            shape = tuple(int(length) for length in variable.shape)
            width = np.dtype(variable.dtype).itemsize
            weights.append(Weight(variable.path, shape, axes, bool(variable.trainable), width))
    return tuple(weights)


def _channel_axis(layer: Any, shape: Shape) -> tuple[int, WindowAxis] | None:
    """How the activation of a layer reads channels."""
    name = getattr(getattr(layer, "activation", None), "__name__", "linear")
    return None if name in _OVER_CHANNELS else (len(shape) - 1, _SAME)


def _plain(layer: Any, *, data_format: bool = True) -> None:
    if data_format and getattr(layer, "data_format", "channels_last") != "channels_last":
        raise refused(layer, "has channels first")
    if _channel_axis(layer, (1, 1)) is None and not isinstance(layer, layers.Activation | layers.Softmax):
        raise refused(layer, "has an activation over channels: make it a layer of its own")


def _input(layer: Any, inputs: Inputs, output: Shape, training: bool) -> list[Operation]:
    return [Operation(layer.name, "input", layer.name, (), output)]


def _convolution(layer: Any, inputs: Inputs, output: Shape, training: bool) -> list[Operation]:
    _plain(layer)
    (name, shape), last = inputs[0], len(output) - 1
    space = tuple(
        (axis, Sliding(kernel, stride, dilation, _padding(layer)))
        for axis, (kernel, stride, dilation) in enumerate(
            zip(layer.kernel_size, layer.strides, layer.dilation_rate, strict=True), start=1
        )
    )
    groups = layer.groups
    channels = None if groups == 1 else (last, Grouped(shape[-1] // groups, output[-1] // groups))
    reading = Reading(name, shape, ((0, _SAME), *space, channels))
    weights = _weights(layer, {"kernel": (*(None for _ in space), None, last), "bias": (last,)})
    flops = 2.0 * math.prod(output) * math.prod(layer.kernel_size) * shape[-1] / groups
    return _activated(layer, "convolution", reading, output, weights, flops)


def _transposed(layer: Any, inputs: Inputs, output: Shape, training: bool) -> list[Operation]:
    _plain(layer)
    if getattr(layer, "output_padding", None) is not None:
        raise refused(layer, "has an output_padding")
    (name, shape), last = inputs[0], len(output) - 1
    space = tuple(
        (axis, Spreading(kernel, stride, dilation, _padding(layer)))
        for axis, (kernel, stride, dilation) in enumerate(
            zip(layer.kernel_size, layer.strides, layer.dilation_rate, strict=True), start=1
        )
    )
    if any(dilation > 1 for dilation in layer.dilation_rate):
        raise refused(layer, "is dilated")
    reading = Reading(name, shape, ((0, _SAME), *space, None))
    weights = _weights(layer, {"kernel": (*(None for _ in space), last, None), "bias": (last,)})
    flops = 2.0 * math.prod(shape) * math.prod(layer.kernel_size) * output[-1]
    return _activated(layer, "transposed", reading, output, weights, flops)


def _activated(
    layer: Any, kind: str, reading: Reading, output: Shape, weights: tuple[Weight, ...], flops: float
) -> list[Operation]:
    """Return the linear operation of a layer, and a second one for its activation where it has any."""
    if layer.activation is keras.activations.linear:
        return [Operation(layer.name, kind, layer.name, (reading,), output, weights, flops)]
    before = f"{layer.name}/linear"
    return [
        Operation(before, kind, layer.name, (reading,), output, weights, flops),
        *_activation(layer, [(before, output)], output, True),
    ]


def _padding(layer: Any) -> Padding:
    if layer.padding not in ("valid", "same"):
        raise refused(layer, f"has padding {layer.padding!r}")
    padding: Padding = layer.padding
    return padding


def _pool(layer: Any, inputs: Inputs, output: Shape, training: bool) -> list[Operation]:
    _plain(layer)
    (name, shape), last = inputs[0], len(output) - 1
    space = tuple(
        (axis, Sliding(size, stride, 1, _padding(layer)))
        for axis, (size, stride) in enumerate(zip(layer.pool_size, layer.strides, strict=True), start=1)
    )
    kind = "maximum" if "Max" in type(layer).__name__ else "average"
    reading = Reading(name, shape, ((0, _SAME), *space, (last, _SAME)))
    flops = float(math.prod(output) * math.prod(layer.pool_size))
    return [Operation(layer.name, kind, layer.name, (reading,), output, (), flops)]


def _batch_norm(layer: Any, inputs: Inputs, output: Shape, training: bool) -> list[Operation]:
    name, shape = inputs[0]
    last = len(shape) - 1
    if layer.axis not in (-1, last):
        raise refused(layer, "does not normalise the last axis")
    values = Reading(name, shape, _each(shape))
    cuts: dict[str, tuple[int | None, ...]] = dict.fromkeys(
        ("gamma", "beta", "moving_mean", "moving_variance"), (last,)
    )
    flops = 4.0 * math.prod(shape)
    if not (training and layer.trainable):
        weights = _weights(layer, cuts)
        return [Operation(layer.name, "batch_norm_inference", layer.name, (values,), output, weights, flops)]
    moments = f"{layer.name}/moments"
    per_channel = (*(None for _ in shape[:-1]), (1, _SAME))
    shift = _weights(layer, {"moving_mean": (1,)})
    sums = Operation(
        moments, "batch_moments", layer.name, (Reading(name, shape, per_channel),), (2, shape[-1]), shift,
        flops, sums=True,
    )  # fmt: skip
    statistics = Reading(moments, (2, shape[-1]), (None, (last, _SAME)))
    return [
        sums,
        Operation(
            layer.name, "batch_norm", layer.name, (values, statistics), output, _weights(layer, cuts), flops
        ),
    ]


def _group_norm(layer: Any, inputs: Inputs, output: Shape, training: bool) -> list[Operation]:
    name, shape = inputs[0]
    last = len(shape) - 1
    if layer.axis not in (-1, last):
        raise refused(layer, "does not normalise the last axis")
    groups = shape[-1] if layer.groups == -1 else layer.groups
    size = shape[-1] // groups
    moments, table = f"{layer.name}/moments", (shape[0], 2, groups)
    per_group = ((0, _SAME), *(None for _ in shape[1:-1]), (2, Grouped(size, 1)))
    flops = 4.0 * math.prod(shape)
    sums = Operation(
        moments, "group_moments", layer.name, (Reading(name, shape, per_group),), table, (), flops, sums=True
    )
    statistics = Reading(moments, table, ((0, _SAME), None, (last, Grouped(1, size))))
    weights = _weights(layer, {"gamma": (last,), "beta": (last,)})
    values = Reading(name, shape, _each(shape))
    return [
        sums,
        Operation(layer.name, "group_norm", layer.name, (values, statistics), output, weights, flops),
    ]


def _activation(layer: Any, inputs: Inputs, output: Shape, training: bool) -> list[Operation]:
    name, shape = inputs[0]
    over_channels = isinstance(layer, layers.Softmax) or _channel_axis(layer, output) is None
    axes = (*_each(shape)[:-1], None if over_channels else (len(shape) - 1, _SAME))
    reading = Reading(name, shape, axes)
    kind = "dropout" if training and isinstance(layer, NOISE) else "activation"
    if isinstance(layer, NOISE) and type(layer).__module__.partition(".")[0] != "keras":
        raise refused(layer, "may draw otherwise than Keras' own layer does")
    return [Operation(layer.name, kind, layer.name, (reading,), output, (), float(math.prod(output)))]


def _elementwise(layer: Any, inputs: Inputs, output: Shape, training: bool) -> list[Operation]:
    readings = []
    for name, shape in inputs:
        if len(shape) != len(output):
            raise refused(layer, "has inputs of different ranks")
        # An axis of length 1 is stretched.
        axes = tuple((axis, _SAME) if size == output[axis] else None for axis, size in enumerate(shape))
        readings.append(Reading(name, shape, axes))
    flops = float(math.prod(output) * len(inputs))
    return [Operation(layer.name, "elementwise", layer.name, tuple(readings), output, (), flops)]


def _concatenate(layer: Any, inputs: Inputs, output: Shape, training: bool) -> list[Operation]:
    axis = layer.axis % len(output)
    offset, readings = 0, []
    for name, shape in inputs:
        axes: list[tuple[int, WindowAxis] | None] = list(_each(shape))
        axes[axis] = (axis, Shifted(offset, output[axis]))
        readings.append(Reading(name, shape, tuple(axes)))
        offset += shape[axis]
    return [Operation(layer.name, "concatenate", layer.name, tuple(readings), output)]


def _attention(layer: Any, inputs: Inputs, output: Shape, training: bool) -> list[Operation]:
    (f, f_shape), (g, g_shape), (h, h_shape), (x, x_shape) = inputs
    readings = (
        Reading(f, f_shape, samples_only(f_shape)),
        Reading(g, g_shape, (*_each(g_shape)[:-1], None)),
        Reading(h, h_shape, (*samples_only(h_shape)[:-1], (len(output) - 1, _SAME))),
        Reading(x, x_shape, _each(x_shape)),
    )
    keys, queries = math.prod(f_shape[1:-1]), math.prod(output[:-1])
    flops = 2.0 * queries * keys * (f_shape[-1] + output[-1])
    weights = _weights(layer, {"gamma": ()})
    return [Operation(layer.name, "attention", layer.name, readings, output, weights, flops)]


def _upsampling(layer: Any, inputs: Inputs, output: Shape, training: bool) -> list[Operation]:
    _plain(layer)
    if getattr(layer, "interpolation", "nearest") != "nearest":
        raise refused(layer, f"interpolates {layer.interpolation!r}; nearest can be divided")
    (name, shape), last = inputs[0], len(output) - 1
    space = tuple((axis, Repeating(output[axis] // shape[axis])) for axis in range(1, last))
    reading = Reading(name, shape, ((0, _SAME), *space, (last, _SAME)))
    return [Operation(layer.name, "upsampling", layer.name, (reading,), output)]


def _dense(layer: Any, inputs: Inputs, output: Shape, training: bool) -> list[Operation]:
    _plain(layer, data_format=False)
    (name, shape), last = inputs[0], len(output) - 1
    reading = Reading(name, shape, (*_each(shape)[:-1], None))
    weights = _weights(layer, {"kernel": (None, last), "bias": (last,)})
    flops = 2.0 * math.prod(output) * shape[-1]
    return _activated(layer, "dense", reading, output, weights, flops)


def _reshape(layer: Any, inputs: Inputs, output: Shape, training: bool) -> list[Operation]:
    name, shape = inputs[0]
    return [
        Operation(layer.name, "reshape", layer.name, (Reading(name, shape, samples_only(shape)),), output)
    ]


def _mean(layer: Any, inputs: Inputs, output: Shape, training: bool) -> list[Operation]:
    _plain(layer)
    name, shape = inputs[0]
    axes = ((0, _SAME), *(None for _ in shape[1:-1]), (len(output) - 1, _SAME))
    flops = float(math.prod(shape))
    return [
        Operation(layer.name, "mean", layer.name, (Reading(name, shape, axes),), output, (), flops, sums=True)
    ]


Reader = Callable[[Any, Inputs, Shape, bool], list[Operation]]
READERS: tuple[tuple[tuple[type, ...], Reader], ...] = (
    (INPUTS, _input),
    (TRANSPOSED, _transposed),
    (CONVOLUTIONS, _convolution),
    (POOLS, _pool),
    (MEANS, _mean),
    (BATCH_NORMS, _batch_norm),
    (GROUP_NORMS, _group_norm),
    (ACTIVATIONS, _activation),
    (ELEMENTWISE, _elementwise),
    (CONCATENATIONS, _concatenate),
    (ATTENTIONS, _attention),
    (UPSAMPLINGS, _upsampling),
    (DENSE, _dense),
    (RESHAPES, _reshape),
)
