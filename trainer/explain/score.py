"""The one number per volume that an explanation explains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.errors import ModelError

Target = int | Sequence[int] | np.ndarray | None
"""The class explained, for all volumes or for each; None for a network of one output."""


def check(model: keras.Model, target: Target) -> None:
    """Check that the network has a score for this class.

    Raises:
        ModelError: outputs per voxel; no class given, or an unknown one.
    """
    outputs = model.output_shape
    if not isinstance(outputs, tuple) or len(outputs) != 2:
        raise ModelError(
            f"{model.name}: its outputs are {outputs}; only one number per volume or class can be explained.",
            cure="Explain a network of classification or regression.",
        )
    count = int(outputs[1])
    if count == 1:
        return
    if target is None:
        raise ModelError(
            f"{model.name}: has {count} classes, and no class is given.",
            cure="Give the class to explain, from 0.",
        )
    if not all(0 <= k < count for k in np.atleast_1d(np.asarray(target)).tolist()):
        raise ModelError(f"{model.name}: has classes 0 to {count - 1}, not {target}.")


def of_outputs(outputs: Any, target: Target) -> Any:
    """Return the score (B,) float32 of outputs (B, K): the log-odds of the target class, or the only output.

    Log-odds, `z_k - log(sum of exp(z_j), j != k)`, are what a softmax makes of the logits: unlike the logit
    alone they do not change when a number is added to all logits. With two classes: the difference of the
    logits.
    """
    outputs = tf.cast(outputs, tf.float32)
    count = outputs.shape[-1]
    if count == 1:
        return outputs[:, 0]
    chosen = tf.one_hot(tf.broadcast_to(tf.constant(target, tf.int32), tf.shape(outputs)[:1]), count)
    others = tf.where(chosen > 0, tf.fill(tf.shape(outputs), outputs.dtype.min), outputs)
    return tf.reduce_sum(outputs * chosen, -1) - tf.reduce_logsumexp(others, -1)


def inputs(model: keras.Model, volumes: Any, covariates: Any) -> Any:
    """Return the arguments to call the model with, in the structure it was built with.

    Raises:
        ModelError: it takes covariates and there are none, or the other way round.
    """
    wants = len(model.inputs) > 1
    if wants != (covariates is not None):
        raise ModelError(f"{model.name}: takes {'' if wants else 'no '}covariates beside the volume.")
    if covariates is not None:
        # Keras takes a list for inputs only where all of it are tensors.
        return [tf.convert_to_tensor(volumes, tf.float32), tf.constant(covariates, tf.float32)]
    return [volumes] if isinstance(model.input, (list, tuple)) else volumes


def scores(
    model: keras.Model,
    volumes: np.ndarray,
    target: Target = None,
    *,
    covariates: np.ndarray | None = None,
    batch: int = 8,
) -> np.ndarray:
    """Return the score of each volume: (B,) float32.

    Args:
        volumes: (B, D, H, W, C).
        target: class, or one per volume; see `of_outputs`.
        covariates: (B, k), for a model that takes [volume, covariates].
        batch: volumes that go through the network at once.
    """
    check(model, target)
    of_each = per_volume(target, len(volumes))
    pieces = []
    for start in range(0, len(volumes), batch):
        part = slice(start, start + batch)
        given = inputs(model, tf.constant(volumes[part], tf.float32), sliced(covariates, part))
        outputs = model(given, training=False)
        pieces.append(of_outputs(outputs, sliced(of_each, part)).numpy())
    return np.concatenate(pieces)


def per_volume(target: Target, count: int) -> np.ndarray | None:
    """Return the target as one class number per volume; None stays None."""
    return None if target is None else np.broadcast_to(np.asarray(target, np.int32), (count,))


def sliced(array: np.ndarray | None, part: slice) -> np.ndarray | None:
    """Return a part of an array that may not be there."""
    return None if array is None else array[part]
