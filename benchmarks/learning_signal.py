#!/usr/bin/env python3
"""What a small network's features and gradients say while it learns, or does not.

.venv/bin/python benchmarks/learning_signal.py data/demo/shards --networks none:mean,none:none

A network is `tiny` with NORMALISATION:POOL. Printed for some epochs: the loss in training, the AUC on
held-out subjects, and for each stage

- between/within: how far subjects differ in a pooled feature (standard deviation of its mean over the volume)
  beside how far it varies in space within one subject; median over channels.
- of head: how far subjects differ in what the head gets (standard deviation) beside its size (root mean
  square); median over features.
- gradient/weight: norm of the loss' gradient over norm of the weights: the share by which a step of plain
  descent at rate 1 would change them.

docs/explanation/recipes.md tells what it printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from trainer import models  # before Keras, which brings TensorFlow

# isort: split
import keras
import numpy as np
import tensorflow as tf
from sklearn.metrics import roc_auc_score

from trainer.data.shards.shards import ShardSet

_TEST_SHARE = 0.3
_SHOWN = (0, 1, 2, 5, 10, 20, 30, 40, 60, 80)


def main() -> None:
    """Train each network and print a table of what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--networks", type=lambda text: text.split(","), default=["none:mean", "none:none"])
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=[10])
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=0.003)
    given = parser.parse_args()
    volumes, labels = _read(given.shards)
    print(
        "| network | seed | epoch | loss | AUC | between/within | of head | gradient/weight, stages, head |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind in given.networks:
        for seed in given.seeds:
            _follow(given, kind, seed, volumes, labels)


def _follow(given: argparse.Namespace, kind: str, seed: int, volumes: np.ndarray, labels: np.ndarray) -> None:
    """Train one network and print a line for each epoch of `_SHOWN`."""
    keras.utils.set_random_seed(seed)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(volumes))
    held_out, seen = np.split(order, [round(_TEST_SHARE * len(order))])
    options = dict(zip(("normalisation", "pool"), kind.split(":"), strict=True))
    model = models.build("tiny", volumes.shape[1:], 2, width=given.width, **options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    steps = given.epochs * (len(seen) // given.batch)
    rate = keras.optimizers.schedules.CosineDecay(given.rate, steps)
    model.compile(keras.optimizers.AdamW(rate), loss)
    stages = [model.get_layer(f"stage{n}_relu").output for n in (1, 2, 3)]
    probe = keras.Model(model.input, [*stages, model.get_layer("head_logits").input, model.output])
    for epoch in range(given.epochs + 1):
        if epoch in _SHOWN:
            logits = model.predict(volumes[held_out], verbose=0)
            auc = roc_auc_score(labels[held_out], logits[:, 1] - logits[:, 0])
            features = probe.predict(volumes[seen], batch_size=16, verbose=0)
            told = loss(labels[seen], features[-1])
            print(
                f"| {kind} | {seed} | {epoch} | {float(told):.3f} | {auc:.2f} "
                f"| {_shown([between_within(f) for f in features[:3]])} "
                f"| {_differing(features[3]):.3g} "
                f"| {_shown(_pull(model, loss, volumes[seen], labels[seen]))} |",
                flush=True,
            )
        if epoch < given.epochs:
            shifted = np.stack([np.roll(v, rng.integers(-1, 2, 3), (0, 1, 2)) for v in volumes[seen]])
            mirrored = rng.random(len(seen)) < 0.5
            shifted[mirrored] = shifted[mirrored, ::-1]
            model.fit(shifted, labels[seen], batch_size=given.batch, verbose=0)


def between_within(features: np.ndarray) -> float:
    """Spread between subjects of a map's mean over its spread in space; features (N, D, H, W, C).

    The median over channels that say anything at all.
    """
    flat = features.reshape(len(features), -1, features.shape[-1]).astype(np.float64)
    within = flat.std(axis=1).mean(axis=0)
    alive = within > 0
    return float(np.median(flat.mean(axis=1).std(axis=0)[alive] / within[alive]))


def _differing(features: np.ndarray) -> float:
    """Spread between subjects over root mean square of (N, features), the median over those ever above 0."""
    size = np.sqrt((features.astype(np.float64) ** 2).mean(axis=0))
    return float(np.median(features.std(axis=0)[size > 0] / size[size > 0]))


def _pull(
    model: keras.Model, loss: keras.losses.Loss, volumes: np.ndarray, labels: np.ndarray
) -> list[float]:
    """Norm of the gradient over norm of the weights, of the kernels of the stages and of the head."""
    kernels = [model.get_layer(f"stage{n}_conv").kernel for n in (1, 2, 3)]
    kernels.append(model.get_layer("head_logits").kernel)
    with tf.GradientTape() as tape:
        told = loss(labels, model(volumes, training=True))
    gradients = tape.gradient(told, [kernel.value for kernel in kernels])
    return [float(tf.norm(g) / tf.norm(kernel.value)) for g, kernel in zip(gradients, kernels, strict=True)]


def _read(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Volumes (N, D, H, W, 1) float32 and whether the label is not the last in the alphabet, int."""
    shards = ShardSet.open(folder)
    volumes = np.stack([np.asarray(shards.read(row), np.float32) for row in range(len(shards.volumes))])
    names = sorted({str(volume.label) for volume in shards.volumes}, reverse=True)
    return volumes, np.array([names.index(str(volume.label)) for volume in shards.volumes])


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


if __name__ == "__main__":
    main()
