"""3D Grad-CAM: where in the volume a layer's features raise the score of a class.

Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", ICCV
2017 (arXiv 1610.02391), section 3, with volumes in place of images.

A convolution with stride 2 that is padded to `same` sees, with its cell i, the voxels about 2i + 1 when the
input is even, and not those about 2i + 1/2 in the middle of the cell's share of the volume. Four such layers
are 7.5 voxels off. So cells are placed at the centres of their receptive fields, which follow from kernels,
strides and padding (Dumoulin and Visin, arXiv 1603.07285; Araujo et al., "Computing Receptive Fields of
Convolutional Neural Networks", Distill 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from scipy import ndimage

from trainer.errors import ModelError
from trainer.explain import score
from trainer.explain.score import Target


def spatial_layers(model: keras.Model) -> list[str]:
    """Return names of the layers whose output is a grid (B, d, h, w, c) of more than one
    cell, first to last.
    """
    names = []
    for layer in model.layers:
        try:
            shape = tuple(layer.output.shape)
        except (AttributeError, ValueError):
            continue  # several outputs, or used more than once
        is_grid = len(shape) == 5 and None not in shape[1:4] and max(shape[1:4]) > 1
        if is_grid and not isinstance(layer, keras.layers.InputLayer):
            names.append(layer.name)
    return names


def choose_layer(model: keras.Model, name: str | None = None) -> str:
    """Return the layer whose features are weighed: the last with a spatial output, unless one is named.

    Raises:
        ModelError: no layer has a spatial output, or none has that name.
    """
    layers = spatial_layers(model)
    if not layers:
        raise ModelError(
            f"{model.name}: has no layer with a spatial output (B, d, h, w, c) that can be reached.",
            cure="Choose another method: integrated-gradients or occlusion.",
        )
    if name is None:
        return layers[-1]
    if name not in layers:
        raise ModelError(
            f"{model.name}: has no layer {name!r} with a spatial output.", cure=f"Known: {', '.join(layers)}."
        )
    return name


def grad_cam(
    model: keras.Model,
    volumes: np.ndarray,
    target: Target = None,
    *,
    layer: str | None = None,
    covariates: np.ndarray | None = None,
) -> np.ndarray:
    """Return the map of each volume, on the volume's grid: (B, D, H, W) float32, 0 or more.

    The layer's features are summed, each weighed by its mean gradient of the score, cut off below 0 and
    interpolated between the centres of the cells' receptive fields. The map is in units of the score:
    nothing is rescaled.

    Args:
        volumes: (B, D, H, W, C).
        target: the class explained, or one for each volume; None for a network of one output.
        layer: of `spatial_layers`; None for the last. An earlier one has a finer grid and simpler features.
        covariates: (B, k), for a model that takes [volume, covariates].

    Raises:
        ModelError: no such layer or class.
    """
    score.check(model, target)
    chosen = model.get_layer(choose_layer(model, layer))
    both = keras.Model(model.input, [chosen.output, model.outputs[0]])
    given = tf.constant(volumes, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(given)  # so that what follows is recorded, trainable or not
        features, outputs = both(score.inputs(model, given, covariates), training=False)
        value = score.of_outputs(outputs, score.per_volume(target, len(volumes)))
    gradient = tape.gradient(value, features)
    weights = tf.reduce_mean(tf.cast(gradient, tf.float32), axis=(1, 2, 3), keepdims=True)
    coarse = tf.nn.relu(tf.reduce_sum(weights * tf.cast(features, tf.float32), axis=-1)).numpy()
    axes = axes_of(model, chosen.name)
    return np.stack([enlarged(one, axes, volumes.shape[1:4]) for one in coarse])


_WINDOWS = ("kernel_size", "pool_size")
_TRANSPOSED = (keras.layers.Conv3DTranspose,)


@dataclass(frozen=True)
class Axis:
    """Along one axis, cell i looks at the voxels about `first + step * i`."""

    first: float
    step: float


def axes_of(model: keras.Model, layer: str) -> tuple[Axis, Axis, Axis]:
    """Return the cells of a layer's output grid (B, d, h, w, c), along each axis, in voxels of the model's
    volume.

    Where ways of different length meet, as in a residual block, their mean is taken.
    """
    known: dict[int, tuple[Axis, ...]] = {id(model.inputs[0]): (Axis(0.0, 1.0),) * 3}
    x, y, z = _follow(model.get_layer(layer).output, known)
    return x, y, z


def enlarged(coarse: np.ndarray, axes: tuple[Axis, Axis, Axis], shape: tuple[int, ...]) -> np.ndarray:
    """Return a coarse map (d, h, w) at the voxels of a volume of `shape`: trilinear between the cells'
    places, constant beyond the outermost.
    """
    where = [
        (np.arange(side, dtype=np.float64) - axis.first) / axis.step
        for side, axis in zip(shape, axes, strict=True)
    ]
    grid = np.meshgrid(*where, indexing="ij")
    return ndimage.map_coordinates(coarse.astype(np.float32), grid, order=1, mode="nearest")


def _follow(tensor: Any, followed: dict[int, tuple[Axis, ...]]) -> tuple[Axis, ...]:
    if id(tensor) not in followed:
        operation, node, _ = tensor._keras_history
        sources = [t for t in operation._inbound_nodes[node].input_tensors if len(t.shape) == 5]
        followed[id(tensor)] = _mean(
            [
                tuple(
                    _through(operation, k, axis, int(source.shape[1 + k]), int(tensor.shape[1 + k]))
                    for k, axis in enumerate(_follow(source, followed))
                )
                for source in sources
            ]
        )
    return followed[id(tensor)]


def _through(layer: Any, k: int, axis: Axis, taken: int, made: int) -> Axis:
    """Return where cells look along axis k after a layer that makes `made` cells of `taken`."""
    window = next((getattr(layer, name) for name in _WINDOWS if hasattr(layer, name)), None)
    if window is not None and not isinstance(layer, _TRANSPOSED):
        stride = layer.strides[k]
        reach = (window[k] - 1) * getattr(layer, "dilation_rate", (1, 1, 1))[k] + 1
        before = 0
        if layer.padding == "same":
            before = max((made - 1) * stride + reach - taken, 0) // 2
        return Axis(axis.first + axis.step * ((reach - 1) / 2 - before), axis.step * stride)
    if isinstance(layer, keras.layers.ZeroPadding3D):
        return Axis(axis.first - axis.step * layer.padding[k][0], axis.step)
    if isinstance(layer, keras.layers.Cropping3D):
        return Axis(axis.first + axis.step * layer.cropping[k][0], axis.step)
    # Whatever else: cell by cell, or spread evenly over the same space.
    share = taken / made
    return Axis(axis.first + axis.step * (share - 1) / 2, axis.step * share)


def _mean(ways: list[tuple[Axis, ...]]) -> tuple[Axis, ...]:
    return tuple(
        Axis(float(np.mean([a.first for a in axis])), float(np.mean([a.step for a in axis])))
        for axis in zip(*ways, strict=True)
    )
