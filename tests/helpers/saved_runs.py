"""Run folders with networks that were never trained, as far as prediction and export need them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import yaml

from trainer import models
from trainer.data.images.preprocess import Recipe
from trainer.strategies.guards import weights_sha256

SIZE, SPACING = 16, 12.0


def save_run(
    folder: Path,
    model: keras.Model,
    *,
    task: str = "classification",
    classes: tuple[str, ...] = ("NC", "AD"),
    covariates: dict[str, Any] | None = None,
    recipe: dict[str, Any] | None = None,
    **facts: Any,
) -> Path:
    """Write config.yaml, run.json, result.json and model.keras; returns the folder."""
    folder.mkdir(parents=True)
    config = {"name": folder.name, "data": {"shards": "shards"}, "model": {"name": "tiny"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    said = {
        "cingulum": "0.1.0",
        "classes": list(classes),
        "task": {"name": task, "target": "age" if task == "regression" else "label", "classes": classes},
        "volume": list(model.inputs[0].shape[1:]),
        "covariates": covariates,
        "preprocessing": {**Recipe(size=SIZE, spacing=SPACING).to_json(), **(recipe or {})},
        "parameters": int(model.count_params()),
        **facts,
    }
    (folder / "run.json").write_text(json.dumps(said))
    result = {"epochs": 3, "steps": 18, "best": {"epoch": 2}, "best_weights_sha256": weights_sha256(model)}
    (folder / "result.json").write_text(json.dumps(result))
    model.save(folder / "model.keras")
    return folder


def classifier(seed: int = 0, size: int = SIZE) -> keras.Model:
    """A tiny network whose probabilities are neither 0 nor 1."""
    keras.utils.set_random_seed(seed)
    model = models.build("tiny", (size, size, size, 1), 2, width=2)
    last = model.layers[-1]
    last.set_weights([w / 20 for w in last.get_weights()])
    return model


def regressor(seed: int = 0) -> keras.Model:
    """A network that predicts years: mean 70, standard deviation 8."""
    keras.utils.set_random_seed(seed)
    model = models.build("tiny", (SIZE, SIZE, SIZE, 1), 1, width=2)
    return keras.Model(model.input, keras.layers.Rescaling(8.0, offset=70.0)(model.output))


def threshold_segmenter(limits: tuple[float, ...] = (-1.0, 0.5), size: int = SIZE) -> keras.Model:
    """Classes by brightness of the voxel alone: background, then one class above each limit.

    Logits are those whose differences change sign at the limits: w_k x + b_k with w_k = 40 k.
    """
    inputs = keras.Input((size, size, size, 1), name="volume")
    layer = keras.layers.Conv3D(len(limits) + 1, 1, name="logits")
    model = keras.Model(inputs, layer(inputs))
    slopes, offsets = [0.0], [0.0]
    for limit in limits:
        slopes.append(slopes[-1] + 40.0)
        offsets.append(offsets[-1] - 40.0 * limit)
    import numpy as np

    layer.set_weights([np.array(slopes).reshape(1, 1, 1, 1, -1), np.array(offsets)])
    return model


def everywhere(function: Callable[[int], keras.Model], folder: Path, count: int, **told: Any) -> list[Path]:
    """Several runs with other weights each."""
    return [save_run(folder / f"run-{seed}", function(seed), **told) for seed in range(count)]
