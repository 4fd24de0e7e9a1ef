"""What every task answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import keras

    from trainer.data.shards.index import Volume

# From targets and outputs `(B, ...)` to one float32 number per sample `(B,)`; TensorFlow.
PerSample = Callable[[Any, Any], Any]


class Task(Protocol):
    """A task, bound to a shard set."""

    @property
    def name(self) -> str:
        """As in the configuration."""

    @property
    def outputs(self) -> int:
        """Length of the last axis of the network's output."""

    @property
    def dense(self) -> bool:
        """Whether the network says something about every voxel."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; () for regression."""

    @property
    def told_apart(self) -> tuple[str, ...] | None:
        """The classes, where each volume as a whole belongs to one of them; else None."""

    @property
    def score(self) -> str:
        """Name of the figure that is told beside the loss: a column of metrics.jsonl."""

    @property
    def monitored(self) -> tuple[str, ...]:
        """Figures of the validation split that metrics.jsonl has, as val_...; good for early stopping."""

    def rows(self) -> tuple[int, ...]:
        """Rows of the shard set that have a target."""

    def split_targets(self) -> np.ndarray | None:
        """float (volumes,), NaN where there is none: what the split balances when there are no classes."""

    def fitted(self, rows: Sequence[int]) -> Task:
        """The same task with what it learns from the training rows, such as a mean."""

    def targets(self, rows: Sequence[int]) -> np.ndarray | None:
        """One number per row, int32 or float32 (len(rows),); None where the target is a label map."""

    def completed(self, model: keras.Model) -> keras.Model:
        """The network with what belongs behind it, such as the units of its output."""

    def loss(self) -> PerSample:
        """The loss that is trained on."""

    def scores(self) -> PerSample:
        """The figure `score` of each sample."""

    def collected(self, targets: np.ndarray, outputs: np.ndarray, *, final: bool) -> tuple[Any, Any]:
        """What evaluation keeps of a batch: targets (B,) and outputs (B, m).

        Args:
            targets: of the batch.
            outputs: of the network.
            final: False within training, where figures that take long are left out.
        """

    def metrics(self, targets: np.ndarray, outputs: np.ndarray, *, bootstrap: int = 0) -> dict[str, Any]:
        """`loss` and all figures of a split, from what `collected` kept; JSON values, None for unknown."""

    def table(
        self, rows: np.ndarray, targets: np.ndarray, outputs: np.ndarray, volumes: Sequence[Volume]
    ) -> tuple[list[str], list[list[Any]]]:
        """Header and one line per subject of evaluation/<split>.csv."""

    def to_json(self) -> dict[str, Any]:
        """What run.json says of it: what prediction of raw images has to know, besides the network."""
