"""To which class a subject belongs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trainer.config import RunConfig, TaskConfig
from trainer.data.shards.shards import ShardSet
from trainer.data.splits import balance
from trainer.errors import CohortError
from trainer.metrics.classification import classification_metrics
from trainer.tasks import losses
from trainer.tasks.base import PerSample, Task

if TYPE_CHECKING:
    from trainer.data.shards.index import Volume


@dataclass(frozen=True)
class Classification(Task):
    """Logits `(B, K)` for K classes; the target is a class number.

    The `loss` of a split is what is trained: classes count in it as they do in training, by their weight or
    by how often they are shown. `cross_entropy`, in which every sample counts alike, compares runs of
    different losses.

    Attributes:
        section: of the configuration.
        balanced: what makes classes of unequal size count alike: their weights, or how often they are shown.
        weights: of each class, of mean 1 over the training split; empty where none is balanced.
    """

    classes: tuple[str, ...]
    labels: tuple[str | None, ...] = dataclasses.field(repr=False)
    section: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    label_smoothing: float = 0.0
    balanced: Literal["weights", "sampling"] | None = None
    weights: tuple[float, ...] = ()
    name: str = "classification"
    dense: bool = False
    score: str = "accuracy"
    monitored: tuple[str, ...] = ("loss", "cross_entropy", "accuracy", "balanced_accuracy", "auc")

    @classmethod
    def build(cls, config: RunConfig, shards: ShardSet) -> Classification:
        """Build the task from the classes of `data.classes`, or all labels of the set.

        Raises:
            CohortError: only one class was found.
        """
        classes = tuple(config.data.classes or shards.labels)
        if len(classes) < 2:
            raise CohortError(
                f"{shards.path}: only one class was found ({', '.join(classes) or 'none'}).",
                cure=f"Import with another --label than {shards.label_name!r}, or add subjects of another "
                "class.",
                path=shards.path,
            )
        weighted: Literal["weights"] | None = "weights" if config.train.class_weights else None
        return cls(
            classes,
            tuple(volume.label for volume in shards.volumes),
            section=config.task,
            label_smoothing=config.train.label_smoothing,
            balanced="sampling" if config.data.sampling == "balanced" else weighted,
        )

    @property
    def volume_classes(self) -> tuple[str, ...]:
        """A subject belongs to one of the classes."""
        return self.classes

    def rows(self) -> tuple[int, ...]:
        """Return rows whose label is one of the classes."""
        return tuple(row for row, label in enumerate(self.labels) if label in self.classes)

    def fitted(self, rows: Sequence[int]) -> Classification:
        """Return the task with the weights of its classes in these rows.

        Raises:
            ValueError: a class that is to count as much as the others has no row.
        """
        if self.balanced is None:
            return self
        weights = balance.balanced_weights(self.targets(rows), len(self.classes))
        return dataclasses.replace(self, weights=tuple(weights.tolist()))

    def targets(self, rows: Sequence[int]) -> np.ndarray:
        """Return class numbers, int32 (len(rows),)."""
        number = {name: k for k, name in enumerate(self.classes)}
        return np.array([number[str(self.labels[row])] for row in rows], np.int32)

    def loss(self) -> PerSample:
        """Return cross entropy or focal loss."""
        return losses.of(self.section, label_smoothing=self.label_smoothing)

    def class_weights(self) -> np.ndarray | None:
        """Return the weights that training multiplies; None where classes are shown equally often instead."""
        return np.array(self.weights, np.float32) if self.weights and self.balanced == "weights" else None

    def scores(self) -> PerSample:
        """Return 1 where the largest logit is that of the true class."""
        return losses.hits

    def metrics(
        self, targets: np.ndarray, outputs: np.ndarray, subjects: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return the mean of the trained loss, the plain cross entropy, and `classification_metrics`."""
        logits = np.asarray(outputs, np.float64)
        logarithms = log_softmax(logits)
        counted = np.array(self.weights)[targets] if self.weights else np.ones(len(targets))
        trained = np.asarray(self.loss()(targets, logits))
        return {
            "loss": float(counted @ trained / counted.sum()),
            "cross_entropy": float(-logarithms[np.arange(len(targets)), targets].mean()),
            **classification_metrics(targets, np.exp(logarithms), self.classes, subjects),
        }

    def table(
        self, rows: np.ndarray, targets: np.ndarray, outputs: np.ndarray, volumes: Sequence[Volume]
    ) -> tuple[list[str], list[list[Any]]]:
        """Return the true and the predicted class, and the probability of each."""
        header = ["row", "subject", "session", "label", "predicted", *(f"p_{name}" for name in self.classes)]
        probabilities = np.exp(log_softmax(np.asarray(outputs, np.float64)))
        return header, [
            [
                int(row),
                volumes[row].subject,
                volumes[row].session or "",
                self.classes[target],
                self.classes[int(shares.argmax())],
                *(f"{share:.9g}" for share in shares),
            ]
            for row, target, shares in zip(rows, targets, probabilities, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return name, target and classes."""
        return {"name": self.name, "target": "label", "classes": list(self.classes)}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return logarithm of the softmax over the last axis, without overflow."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
