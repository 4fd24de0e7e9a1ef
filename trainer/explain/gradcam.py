"""3D Grad-CAM: where in the volume a layer's features speak for a class.

Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", ICCV
2017 (arXiv 1610.02391), section 3, with volumes in place of images.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import ModelError
from trainer.explain import cells, score
from trainer.explain.score import Target


def spatial_layers(model: keras.Model) -> list[str]:
    """Return names of the layers whose output is a grid (B, d, h, w, c) of more than one
    cell, first to last.
    """
    found = []
    for layer in model.layers:
        try:
            shape = tuple(layer.output.shape)
        except (AttributeError, ValueError):
            continue  # several outputs, or used more than once
        is_grid = len(shape) == 5 and None not in shape[1:4] and max(shape[1:4]) > 1
        if is_grid and not isinstance(layer, keras.layers.InputLayer):
            found.append(layer.name)
    return found


def choose_layer(model: keras.Model, name: str | None = None) -> str:
    """Return the layer whose features are weighed: the last with a spatial output, unless one is named.

    Raises:
        ModelError: there is none, or none of that name.
    """
    known = spatial_layers(model)
    if not known:
        raise ModelError(
            f"{model.name}: has no layer with a spatial output (B, d, h, w, c) that can be reached.",
            cure="Choose another method: integrated-gradients or occlusion.",
        )
    if name is None:
        return known[-1]
    if name not in known:
        raise ModelError(
            f"{model.name}: has no layer {name!r} with a spatial output.", cure=f"Known: {', '.join(known)}."
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
    axes = cells.axes_of(model, chosen.name)
    return np.stack([cells.enlarged(one, axes, volumes.shape[1:4]) for one in coarse])
