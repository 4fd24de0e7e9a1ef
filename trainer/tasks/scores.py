"""Figures for people beside the loss: from targets and outputs to a float32 `(B,)`, a number per sample."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def hits(targets: Any, logits: Any) -> Any:
    """1 where the largest of the logits `(B, K)` is that of the class `(B,)`, else 0."""
    return tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), tf.cast(targets, tf.int32)), tf.float32)


def mean_dice(targets: Any, logits: Any) -> Any:
    """Dice coefficient of the predicted map, mean over the classes but the background (class 0).

    Of label maps `(B, D, H, W)` and logits `(B, D, H, W, K)`. Classes that are in neither do not count; 1
    where there are none at all, since rightly finding nothing is no failure, and the mean of an epoch must
    stay finite. `trainer.metrics.segmentation.mean_dice`, of an evaluation, leaves such volumes out instead.
    """
    classes = logits.shape[-1] - 1
    predicted = tf.one_hot(tf.argmax(logits, -1, tf.int32) - 1, classes)
    true = tf.one_hot(tf.cast(targets, tf.int32) - 1, classes)
    space = [1, 2, 3]
    both = tf.reduce_sum(predicted, space) + tf.reduce_sum(true, space)
    there = tf.cast(both > 0, tf.float32)
    dice = tf.math.divide_no_nan(2 * tf.reduce_sum(predicted * true, space), both)
    counted = tf.reduce_sum(there, -1)
    return tf.where(counted > 0, tf.math.divide_no_nan(tf.reduce_sum(dice, -1), counted), 1.0)
