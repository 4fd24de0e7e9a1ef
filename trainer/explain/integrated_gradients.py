"""Integrated gradients: the score's difference from a baseline, shared out over the voxels.

Sundararajan, Taly and Yan, "Axiomatic Attribution for Deep Networks", ICML 2017 (arXiv 1703.01365).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.explain import score
from trainer.explain.score import Target


@dataclass(frozen=True)
class Attributions:
    """What each voxel adds to the score.

    Attributes:
        values: (B, D, H, W, C) float32, in units of the score.
        difference: (B,) score of the volume less score of the baseline.
        gap: (B,) sum of the values less `difference`: 0 but for the error of the integral (completeness).
    """

    values: np.ndarray
    difference: np.ndarray
    gap: np.ndarray


def integrated_gradients(
    model: keras.Model,
    volumes: np.ndarray,
    target: Target = None,
    *,
    baseline: np.ndarray | float = 0.0,
    steps: int = 32,
    covariates: np.ndarray | None = None,
    batch: int = 8,
) -> Attributions:
    """Return attributions along the straight line from a baseline to each volume.

    Args:
        volumes: (B, D, H, W, C).
        target: the class explained, or one for each volume; None for a network of one output.
        baseline: a volume without what is looked for, of any shape that broadcasts to `volumes`: the
            background (air), or the mean of a cohort.
        steps: points at which the gradient is taken (Gauss-Legendre); the paper takes 20 to 300 and wants the
            gap below 5 % of the difference.
        covariates: (B, k), for a model that takes [volume, covariates]; they stay the same on the way.
        batch: points that go through the network at once.

    Raises:
        ModelError: no such class.
    """
    score.check(model, target)
    volumes = np.asarray(volumes, np.float32)
    start = np.broadcast_to(np.asarray(baseline, np.float32), volumes.shape)
    of_each = score.per_volume(target, len(volumes))
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    along, weights = ((nodes + 1) / 2).astype(np.float32), (weights / 2).astype(np.float32)
    values = np.zeros(volumes.shape, np.float32)
    for k, volume in enumerate(volumes):
        way = volume - start[k]
        for first in range(0, steps, batch):
            part = slice(first, first + batch)
            points = start[k] + along[part, None, None, None, None] * way
            repeated = None if covariates is None else np.repeat(covariates[k : k + 1], len(points), axis=0)
            gradient = _gradient(model, points, None if of_each is None else int(of_each[k]), repeated)
            values[k] += np.tensordot(weights[part], gradient, axes=1) * way
    known: dict[str, Any] = {"covariates": covariates, "batch": batch}
    difference = score.scores(model, volumes, target, **known) - score.scores(model, start, target, **known)
    return Attributions(values, difference, values.sum(axis=(1, 2, 3, 4), dtype=np.float64) - difference)


def _gradient(model: keras.Model, points: np.ndarray, target: int | None, covariates: Any) -> np.ndarray:
    watched = tf.constant(points)
    with tf.GradientTape() as tape:
        tape.watch(watched)
        outputs = model(score.inputs(model, watched, covariates), training=False)
        value = score.of_outputs(outputs, target)
    return np.asarray(tape.gradient(value, watched))
