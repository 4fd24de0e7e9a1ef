"""The base class of tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras

    from trainer.data.shards.index import Volume

# From targets and outputs `(B, ...)` to one float32 number per sample `(B,)`; TensorFlow.
PerSample = Callable[[Any, Any], Any]


class Task(ABC):
    """A task, bound to a shard set; what most tasks answer alike is answered here.

    Attributes:
        name: as in the configuration.
        dense: whether the network gives an output for each voxel.
        classes: names of the classes; () for regression.
        score: name of the figure shown beside the loss: a column of metrics.jsonl.
        monitored: figures of the validation split in metrics.jsonl, as val_...; usable for early stopping.
            `loss` is the one that is trained, on every split.
    """

    name: str
    dense: bool
    classes: tuple[str, ...]
    score: str
    monitored: tuple[str, ...]

    @property
    def outputs(self) -> int:
        """Length of the last axis of the network's output: a logit per class, or one number."""
        return len(self.classes) or 1

    @property
    def volume_classes(self) -> tuple[str, ...] | None:
        """The classes, where each volume as a whole belongs to one of them; else None."""
        return None

    @abstractmethod
    def rows(self) -> tuple[int, ...]:
        """Return the rows of the shard set that have a target."""

    def split_targets(self) -> np.ndarray | None:
        """Return float (volumes,), NaN where unknown: what splits balance when there are no classes."""
        return None

    def fitted(self, rows: Sequence[int]) -> Task:
        """Return the same task with what it learns from the training rows, such as a mean."""
        return self

    @abstractmethod
    def targets(self, rows: Sequence[int]) -> np.ndarray | None:
        """Return one number per row, int32 or float32 (len(rows),); None where the target is a label map."""

    def completed(self, model: keras.Model) -> keras.Model:
        """Return the network with the layers that the task adds, such as the units of its output."""
        return model

    @abstractmethod
    def loss(self) -> PerSample:
        """Return the loss that is trained on."""

    def class_weights(self) -> np.ndarray | None:
        """Return what a training sample of each class counts in the loss, float32 (classes,); None: 1."""
        return None

    @abstractmethod
    def scores(self) -> PerSample:
        """Return the figure `score` of each sample; NaN: it has none, and the mean leaves it out."""

    def collected(self, targets: np.ndarray, outputs: np.ndarray, *, final: bool) -> tuple[Any, Any]:
        """Return what evaluation keeps of a batch: targets (B,) and outputs (B, m).

        Args:
            targets: of the batch.
            outputs: of the network.
            final: False within training, where figures that take long are left out.
        """
        return targets, outputs

    @abstractmethod
    def metrics(
        self, targets: np.ndarray, outputs: np.ndarray, subjects: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return `loss` and all figures of a split, from what `collected` kept; JSON, None for unknown.

        `loss` is what is trained, as a mean over the split: each sample counts as much as one of its kind
        does in an epoch of training. Penalties of layers (regularisers) are no part of it.
        `subjects`: whose scan each is, for intervals; None for none, as within training.
        """

    @abstractmethod
    def table(
        self, rows: np.ndarray, targets: np.ndarray, outputs: np.ndarray, volumes: Sequence[Volume]
    ) -> tuple[list[str], list[list[Any]]]:
        """Return header and one line per scan of evaluation/<split>.csv."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return what run.json keeps: what prediction of raw images needs besides the network."""
