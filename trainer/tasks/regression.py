"""Which number belongs to a subject, such as the age ("brain age")."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.config import RunConfig, TaskConfig
from trainer.data.shards.shards import ShardSet
from trainer.errors import CohortError
from trainer.metrics.regression import regression_metrics
from trainer.tasks import losses
from trainer.tasks.base import PerSample, Task

if TYPE_CHECKING:
    import keras

    from trainer.data.shards.index import Volume


@dataclass(frozen=True)
class Regression(Task):
    """A number `(B, 1)` in units of the target.

    The network's own output counts standard deviations from the mean of the training split; a last layer
    turns it into the target's units, so that a saved model needs no further knowledge. Losses count standard
    deviations too.
    """

    target: str
    values: tuple[float, ...] = dataclasses.field(repr=False)
    section: TaskConfig = dataclasses.field(default_factory=lambda: TaskConfig(name="regression"))
    mean: float = 0.0
    deviation: float = 1.0
    name: str = "regression"
    dense: bool = False
    classes: tuple[str, ...] = ()
    score: str = "mae"
    monitored: tuple[str, ...] = ("loss", "mae", "r2")

    @classmethod
    def build(cls, config: RunConfig, shards: ShardSet) -> Regression:
        """Build the task from the ages, or the labels read as numbers.

        Raises:
            CohortError: no volume has the target, or a label is no number.
        """
        target = config.task.target or "age"
        if target == "age":
            values = [math.nan if volume.age is None else float(volume.age) for volume in shards.volumes]
        else:
            values = [_number(shards, volume) for volume in shards.volumes]
        known = {value for value in values if math.isfinite(value)}
        if len(known) < 2:
            what = "no volume has" if not known else "all volumes have the same"
            raise CohortError(
                f"{shards.path}: {what} {target if target == 'age' else shards.label_name}.",
                cure="participants.tsv needs a column `age`; or import with --label COLUMN and set "
                "task.target=label.",
                path=shards.path,
            )
        name = "age" if target == "age" else shards.label_name
        return cls(name, tuple(values), section=config.task)

    def rows(self) -> tuple[int, ...]:
        """Return rows whose target is known."""
        return tuple(row for row, value in enumerate(self.values) if math.isfinite(value))

    def split_targets(self) -> np.ndarray:
        """Return the targets themselves."""
        return np.array(self.values)

    def fitted(self, rows: Sequence[int]) -> Regression:
        """Return the task with the mean and the standard deviation of these rows."""
        known = np.array([self.values[row] for row in rows])
        return dataclasses.replace(
            self, mean=float(known.mean()), deviation=float(known.std()) or 1.0
        )  # one value only: it is its own mean

    def targets(self, rows: Sequence[int]) -> np.ndarray:
        """Return the targets in their units, float32 (len(rows),)."""
        return np.array([self.values[row] for row in rows], np.float32)

    def completed(self, model: keras.Model) -> keras.Model:
        """Return the network with a last layer that turns standard deviations into units."""
        import keras

        units = keras.layers.Rescaling(self.deviation, offset=self.mean, dtype="float32", name="units")
        return keras.Model(model.input, units(model.output), name=model.name)

    def loss(self) -> PerSample:
        """Return squared, absolute or Huber loss, in standard deviations."""
        return losses.of(self.section, scale=self.deviation)

    def scores(self) -> PerSample:
        """Return the absolute error, in units."""
        return losses.absolute(1.0)

    def metrics(
        self, targets: np.ndarray, outputs: np.ndarray, subjects: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return mean loss and `regression_metrics`."""
        return {
            "loss": float(np.mean(self.loss()(targets, outputs))),
            **regression_metrics(targets, np.asarray(outputs)[:, 0], subjects),
        }

    def table(
        self, rows: np.ndarray, targets: np.ndarray, outputs: np.ndarray, volumes: Sequence[Volume]
    ) -> tuple[list[str], list[list[Any]]]:
        """Return the true and the predicted number."""
        return ["row", "subject", "session", "target", "predicted"], [
            [int(row), volumes[row].subject, volumes[row].session or "", f"{target:.6g}", f"{output[0]:.6g}"]
            for row, target, output in zip(rows, targets, outputs, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return name, target, and the mean and standard deviation of the training split."""
        return {
            "name": self.name,
            "target": self.target,
            "classes": [],
            "target_mean": self.mean,
            "target_sd": self.deviation,
        }


def _number(shards: ShardSet, volume: Volume) -> float:
    if volume.label is None:
        return math.nan
    try:
        value = float(volume.label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise CohortError(
            f"{shards.path}: the {shards.label_name} of subject {volume.subject} is {volume.label!r}, "
            "not a number.",
            cure="Import with --label COLUMN of a column of numbers, or set task.target=age.",
            path=shards.path,
        )
    return value
