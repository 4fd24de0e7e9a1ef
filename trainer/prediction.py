"""What a finished run's network says: about one of its splits, or about raw images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from trainer import evaluation, models, preparation, record, tasks
from trainer.agreement import agree
from trainer.config import RunConfig
from trainer.data import pipeline
from trainer.data.preprocess import Recipe, prepare
from trainer.data.shards import ShardSet
from trainer.data.splits import Split
from trainer.errors import ImageError, RunError
from trainer.preparation import Data
from trainer.record import RunFolder
from trainer.strategies.data import DistributedModel
from trainer.tasks.classification import log_softmax
from trainer.world import World


def load_model(folder: RunFolder) -> keras.Model:
    """The best epoch's network of a finished run.

    Raises:
        RunError: model.keras is damaged, or was made with a network of one's own that is not there.
    """
    config = record.load_config(folder)
    # Networks of ours or of one's own may have layers that Keras must know of before it opens the file.
    models.describe(config.model.name)
    try:
        return keras.saving.load_model(folder.model, compile=False)
    except (ValueError, OSError, TypeError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise RunError(
            f"{folder.model}: cannot be opened as a Keras model ({reason}).",
            cure=f"Write it anew: rm {folder.result}; cingulum train {folder.config} --resume",
        ) from None


def evaluate_run(path: Path, split: str, world: World) -> dict[str, Any]:
    """Metrics of a finished run on one of its splits, on every rank; writes evaluation/<split>.csv and .json.

    Raises:
        Agreed: the run is not finished, its data are gone or others, or the split is empty.
    """
    folder, config, data, model = agree(world, lambda: _open(path, split))
    task = data.task
    learner = DistributedModel(model, keras.optimizers.SGD(), world, task.loss())  # it is never trained
    with pipeline.input_errors():
        found = learner.evaluate(
            preparation.evaluation_batches(config, data, world, split),
            lambda y, out: task.collected(y, out, final=True),
        )
    written = agree(world, lambda: evaluation.write(folder, split, found, data) if world.is_main else None)
    return dict(world.broadcast_object(written))


def _open(path: Path, split: str) -> tuple[RunFolder, RunConfig, Data, keras.Model]:
    folder = RunFolder.open_finished(path)
    config = record.load_config(folder)
    ran = record.read_json(folder.run)
    shards = ShardSet.open(config.data.shards)
    if shards.content_hash != ran["shards"]["content_hash"]:
        raise RunError(
            f"{config.data.shards}: does not hold the data that {path} was trained on.",
            cure="Restore that shard set; its content hash is in run.json.",
        )
    # The subjects as they were divided then, whatever today's rule would say.
    division = Split(**{name: tuple(rows) for name, rows in ran["split"].items()})
    data = preparation.with_split(config, shards, tasks.build(config, shards), division)
    if not data.rows(split):
        raise RunError(f"{path}: has no {split} split.", cure=f"It was trained with data.split.{split}=0.")
    return folder, config, data, load_model(folder)


@dataclass(frozen=True)
class Predictor:
    """A finished run's network with its preprocessing."""

    model: keras.Model
    recipe: Recipe
    classes: tuple[str, ...]

    @classmethod
    def open(cls, folder: RunFolder) -> Predictor:
        """Load network, recipe and classes of a finished run.

        Raises:
            RunError: a file of the run is damaged, or the run's shards did not say how images were prepared.
        """
        ran = record.read_json(folder.run)
        if not ran.get("preprocessing"):
            raise RunError(
                f"{folder.path}: does not know how its images were prepared, so that raw images cannot be.",
                cure="Make the shard set with `cingulum import`, and train again.",
            )
        recipe = Recipe.from_json(ran["preprocessing"])
        return cls(load_model(folder), recipe, tuple(ran["classes"]))

    def check_readable(self, images: Sequence[Path]) -> None:
        """Find missing images before any time is spent on the others.

        Raises:
            ImageError: one is missing or a folder.
        """
        for image in images:
            if not image.is_file():
                what = "is a folder" if image.is_dir() else "there is no such file"
                raise ImageError(f"{image}: {what}.", cure="Give image files, such as scans/*.nii.gz")

    def row(self, image: Path) -> dict[str, Any]:
        """Image, predicted class and the probability of each class.

        Raises:
            ImageError: the image cannot be read or fails quality control.
        """
        volume = prepare(image, self.recipe).array.astype(np.float32)
        logits = np.asarray(self.model(volume[None], training=False), np.float64)
        shares = np.exp(log_softmax(logits))[0]
        return {
            "image": str(image),
            "predicted": self.classes[int(shares.argmax())],
            **{f"p_{name}": round(float(p), 6) for name, p in zip(self.classes, shares, strict=True)},
        }
