"""One finished run as a network that can be asked about new images."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from scipy import special

from trainer.data.images.preprocess import Recipe
from trainer.data.loading.covariates import Covariates
from trainer.errors import RunError
from trainer.inference import sliding
from trainer.inference.saved_model import load_model
from trainer.run_folder import record, resuming
from trainer.run_folder.run_record import RunRecord

# In one call of a network of patches.
_PATCHES_AT_ONCE = 4


@dataclass(frozen=True)
class Member:
    """The network of one run, and what must be known to ask it.

    Attributes:
        path: of the run folder.
        model: the network; logits, or a number in units of the target.
        recipe: how the run's images were prepared.
        task: 'classification', 'regression' or 'segmentation'.
        classes: names in the order of the outputs; () for regression.
        target: what a regression predicts, such as 'age'.
        covariates: its non-image inputs, or None.
        weights_sha256: of the network.
    """

    path: Path
    model: keras.Model
    recipe: Recipe
    task: str
    classes: tuple[str, ...]
    target: str
    covariates: Covariates | None
    weights_sha256: str

    def __post_init__(self) -> None:
        signature = [tf.TensorSpec(tensor.shape, tf.float32) for tensor in self.model.inputs]
        # A graph frees the outputs of layers on the way; one trace serves every size of batch.
        call = tf.function(self._outputs, input_signature=signature, autograph=False)
        object.__setattr__(self, "_call", call)

    @classmethod
    def open(cls, path: Path, code: Sequence[Path] = ()) -> Member:
        """Load a finished run; `code` as for `load_model`.

        Raises:
            RunError: the run is not finished, a file of it is damaged, or its shards did not say how images
                were prepared.
        """
        folder = resuming.open_finished(path)
        ran = RunRecord.read(folder.run)
        if not ran.preprocessing:
            raise RunError(
                f"{folder.path}: has no record of how its images were prepared, so raw images "
                "cannot be prepared.",
                cure="Make the shard set with `cingulum import`, and train again.",
                path=folder.path,
            )
        return cls(
            path=path,
            model=load_model(folder, code),
            recipe=Recipe.from_json(ran.preprocessing),
            task=ran.task.name,
            classes=ran.class_names,
            target=ran.task.target or "label",
            covariates=Covariates.from_json(ran.covariates) if ran.covariates else None,
            weights_sha256=str(record.read_json(folder.result).get("best_weights_sha256", "")),
        )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(D, H, W, C) of the volumes that the network takes."""
        d, h, w, c = (int(n) for n in self.model.inputs[0].shape[1:])
        return d, h, w, c

    def with_window(self, edge: int) -> Member:
        """Return the same network for volumes of another size, where it is convolutional throughout.

        Raises:
            RunError: its layers do not fit volumes of that size.
        """
        if self.shape[:3] == (edge,) * 3:
            return self
        inputs: Any = [
            keras.Input((edge, edge, edge, self.shape[3]), name=self.model.inputs[0].name),
            *(keras.Input(tensor.shape[1:], name=tensor.name) for tensor in self.model.inputs[1:]),
        ]
        try:
            model = keras.models.clone_model(self.model, inputs if len(inputs) > 1 else inputs[0])
            model.set_weights(self.model.get_weights())
            fits = tuple(model.output.shape[1:4]) == (edge,) * 3
        except (ValueError, TypeError):
            fits = False
        if not fits:
            size = "x".join(map(str, self.shape[:3]))
            raise RunError(
                f"{self.path}: its network does not take windows of {edge} voxels.",
                cure=f"Give its own size ({size}), or a multiple of 32: each halving must come out even.",
                path=self.path,
            )
        return dataclasses.replace(self, model=model)

    def ask(self, volumes: np.ndarray, covariates: np.ndarray | None = None) -> np.ndarray:
        """Return the network's outputs.

        Args:
            volumes: float32 (B, D, H, W, C). Larger ones than the network takes are asked about patch by
                patch, but for segmentation, where windows are the caller's.
            covariates: covariates float32 (B, k), where the network takes some.

        Returns:
            Probabilities float64 (B, K); numbers in units of the target float64 (B, 1); or probabilities of
            every voxel float32 (B, D, H, W, K).
        """
        if self.task != "segmentation" and volumes.shape[1:4] != self.shape[:3]:  # it learned from patches
            x = volumes if covariates is None else (volumes, covariates)
            outputs = sliding.mean_outputs(self._answer, x, self.shape[:3], batch=_PATCHES_AT_ONCE)
        else:
            outputs = self._answer(volumes if covariates is None else (volumes, covariates))
        if self.task == "segmentation":
            return np.asarray(outputs)
        numbers = np.asarray(outputs, np.float64)
        return special.softmax(numbers, axis=-1) if self.task == "classification" else numbers

    def _answer(self, x: Any) -> np.ndarray:
        inputs = x if isinstance(x, tuple) else (x,)
        outputs = self._call(*(tf.constant(each, tf.float32) for each in inputs))  # type: ignore[attr-defined]
        return np.asarray(outputs)

    def _outputs(self, *inputs: Any) -> Any:
        outputs = tf.cast(
            self.model(list(inputs) if len(inputs) > 1 else inputs[0], training=False), "float32"
        )
        return tf.nn.softmax(outputs) if self.task == "segmentation" else outputs
