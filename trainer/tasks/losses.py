"""Losses: each function here returns one from targets and outputs to a float32 `(B,)`, a number per sample.

Outputs of a narrower type are taken to float32 first, so that nothing overflows under mixed precision;
float64 stays float64.
All of it runs eagerly and in a graph. Weighting and averaging over samples is the training step's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.config import TaskConfig

Loss = Callable[[Any, Any], Any]


def of(section: TaskConfig, *, label_smoothing: float = 0.0, scale: float = 1.0) -> Loss:
    """Return the loss that a section `task` chooses.

    Args:
        section: of the configuration.
        label_smoothing: of classes; see `cross_entropy`.
        scale: of numbers; see `squared`.
    """
    entropy = mean_over_voxels(cross_entropy()) if section.name == "segmentation" else None
    kinds: dict[str, Callable[[], Loss]] = {
        "cross_entropy": lambda: entropy or cross_entropy(label_smoothing),
        "focal": lambda: focal(section.focal_gamma, label_smoothing),
        "dice_cross_entropy": dice_cross_entropy,
        "squared": lambda: squared(scale),
        "absolute": lambda: absolute(scale),
        "huber": lambda: huber(section.huber_delta, scale),
    }
    return kinds[section.chosen_loss]()


def mean_over_voxels(loss: Loss) -> Loss:
    """Return a loss of classes as one of label maps, `(B, D, H, W)`, and logits `(B, D, H, W, K)`."""
    return lambda maps, logits: tf.reduce_mean(loss(tf.cast(maps, tf.int32), logits), axis=[1, 2, 3])


def cross_entropy(label_smoothing: float = 0.0) -> Loss:
    """Return cross-entropy of int targets `(B,)` and logits `(B, K)`.

    Args:
        label_smoothing: share of the target that is spread evenly over all K classes, in [0, 1).
    """
    _check_smoothing(label_smoothing)

    def loss(targets: Any, logits: Any) -> Any:
        logits = _at_least_float32(logits)
        if label_smoothing == 0:
            return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        return tf.nn.softmax_cross_entropy_with_logits(_smoothed(targets, logits, label_smoothing), logits)

    return loss


def focal(gamma: float = 2.0, label_smoothing: float = 0.0) -> Loss:
    """Return focal loss of int targets `(B,)` and logits `(B, K)`: -(1 - p)^gamma log p, p that of the true
    class.

    Lin et al., Focal loss for dense object detection (arXiv 1708.02002), equation 4, with the softmax for
    p; the paper's alpha is the class weight of the training step. With label smoothing it is the sum of
    that over classes, weighted by the smoothed target, and so the smoothed cross-entropy at gamma 0.

    Args:
        gamma: from 0 (cross-entropy) up; how much less a sample counts that is right already.
        label_smoothing: share of the target that is spread evenly over all K classes, in [0, 1).
    """
    if gamma < 0:
        raise ValueError(f"gamma is {gamma}: it cannot be negative")
    _check_smoothing(label_smoothing)
    if gamma == 0:
        return cross_entropy(label_smoothing)

    def loss(targets: Any, logits: Any) -> Any:
        logits = _at_least_float32(logits)
        own = tf.linalg.diag(tf.fill([logits.shape[-1]], tf.constant(-np.inf, logits.dtype)))
        # log(1 - p) from the other classes' logits and not from p: that would round to log 0 for a sure
        # network, and the power's gradient to infinity for a gamma below 1.
        others = tf.reduce_logsumexp(logits[:, None, :] + own, axis=-1)
        log_rest = others - tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
        per_class = -tf.exp(gamma * log_rest) * tf.nn.log_softmax(logits)
        return tf.reduce_sum(_smoothed(targets, logits, label_smoothing) * per_class, axis=-1)

    return loss


def dice_cross_entropy(smoothing: float = 1e-5) -> Loss:
    """Return cross-entropy, mean over voxels, plus 1 - soft Dice, mean over the classes that are not
    background.

    For label maps, int or uint8 `(B, D, H, W)`, and logits `(B, D, H, W, K)`, background being class 0.
    Soft Dice of a class, within each sample: (2 sum(p t) + s) / (sum(p) + sum(t) + s), sums over voxels.
    That is nnU-Net's form (Isensee et al., Nature Methods 18, 2021: plain sums below the line, background
    left out, both terms weighing the same, 1 added so that a perfect map costs 0) of the loss of Milletari
    et al. (arXiv 1606.04797), who square p and t below the line. Background is left out since most voxels
    are background: its Dice is near 1 whatever the network does.

    Args:
        smoothing: s, in voxels, above 0. A class that neither the map nor the network has then costs
            nothing; one that only the network has costs 1 with next to no gradient, and cross-entropy alone
            drives it out.
    """
    if smoothing <= 0:
        raise ValueError(f"smoothing is {smoothing}: it must be above 0, or an absent class divides 0 by 0")

    def loss(targets: Any, logits: Any) -> Any:
        logits = _at_least_float32(logits)
        targets = tf.cast(targets, tf.int32)
        space = [1, 2, 3]
        entropy = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits), axis=space)
        # Class 0 of both is cut off; K stands in the static shape.
        shares = tf.nn.softmax(logits)[..., 1:]
        truth = tf.one_hot(targets - 1, logits.shape[-1] - 1, dtype=logits.dtype)
        common = tf.reduce_sum(shares * truth, axis=space)
        both = tf.reduce_sum(shares, axis=space) + tf.reduce_sum(truth, axis=space)
        dice = (2 * common + smoothing) / (both + smoothing)
        return entropy + 1 - tf.reduce_mean(dice, axis=-1)

    return loss


def squared(scale: float = 1.0) -> Loss:
    """Return squared error, ((output - target) / scale)^2, of outputs `(B, 1)` and targets `(B,)`.

    Args:
        scale: in the unit of both: the standard deviation of the training targets, so that the loss starts
            near 1 and the learning rate does not depend on the unit.
    """
    error = _errors(scale)
    return lambda targets, outputs: tf.square(error(targets, outputs))


def absolute(scale: float = 1.0) -> Loss:
    """Return absolute error, |output - target| / scale, of outputs `(B, 1)` and targets `(B,)`.

    Args:
        scale: in the target's unit; see `squared`.
    """
    error = _errors(scale)
    return lambda targets, outputs: tf.abs(error(targets, outputs))


def huber(delta: float = 1.0, scale: float = 1.0) -> Loss:
    """Return Huber's loss of e = (output - target) / scale: e^2 / 2 up to delta, delta (|e| - delta / 2)
    beyond.

    Huber, Annals of Mathematical Statistics 35 (1964) 73. Outputs `(B, 1)`, targets `(B,)`, in one unit.

    Args:
        delta: in units of `scale`, so a number of standard deviations.
        scale: in the target's unit; see `squared`.
    """
    if not delta > 0:
        raise ValueError(f"delta is {delta}: it must be above 0")
    error = _errors(scale)

    def loss(targets: Any, outputs: Any) -> Any:
        size = tf.abs(error(targets, outputs))
        inside = tf.minimum(size, delta)
        return inside * (size - 0.5 * inside)

    return loss


def _errors(scale: float) -> Loss:
    """(output - target) / scale, `(B,)`."""
    if not (scale > 0 and np.isfinite(scale)):
        raise ValueError(f"scale is {scale}: it must be finite and above 0")

    def errors(targets: Any, outputs: Any) -> Any:
        outputs = _at_least_float32(outputs)
        targets = tf.cast(targets, outputs.dtype)
        if len(outputs.shape) != 2 or outputs.shape[1] != 1 or len(targets.shape) != 1:
            # They would broadcast to (B, B) and train without complaint.
            raise ValueError(f"outputs {outputs.shape} and targets {targets.shape} are not (B, 1) and (B,)")
        return (outputs[:, 0] - targets) / scale

    return errors


def _at_least_float32(outputs: Any) -> Any:
    outputs = tf.convert_to_tensor(outputs)
    return outputs if outputs.dtype == tf.float64 else tf.cast(outputs, tf.float32)


def _smoothed(targets: Any, logits: Any, label_smoothing: float) -> Any:
    """The target as a distribution over classes, `(B, K)`."""
    classes = logits.shape[-1]
    return (
        tf.one_hot(targets, classes, dtype=logits.dtype) * (1 - label_smoothing) + label_smoothing / classes
    )


def _check_smoothing(label_smoothing: float) -> None:
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing is {label_smoothing}: it must be at least 0 and below 1")


def hits(targets: Any, logits: Any) -> Any:
    """Return 1 where the largest of the logits `(B, K)` is that of the class `(B,)`, else 0."""
    return tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), tf.cast(targets, tf.int32)), tf.float32)


def mean_dice(targets: Any, logits: Any) -> Any:
    """Return Dice coefficient of the predicted map, mean over the classes but the background (class 0).

    Of label maps `(B, D, H, W)` and logits `(B, D, H, W, K)`. Classes that are in neither do not count; NaN
    where there are none at all: that says nothing of overlap, and the mean of an epoch leaves it out, as
    `trainer.metrics.segmentation.mean_dice` does in an evaluation.
    """
    classes = logits.shape[-1] - 1
    predicted = tf.one_hot(tf.argmax(logits, -1, tf.int32) - 1, classes)
    true = tf.one_hot(tf.cast(targets, tf.int32) - 1, classes)
    space = [1, 2, 3]
    both = tf.reduce_sum(predicted, space) + tf.reduce_sum(true, space)
    there = tf.cast(both > 0, tf.float32)
    dice = tf.math.divide_no_nan(2 * tf.reduce_sum(predicted * true, space), both)
    counted = tf.reduce_sum(there, -1)
    return tf.where(counted > 0, tf.math.divide_no_nan(tf.reduce_sum(dice, -1), counted), np.nan)
