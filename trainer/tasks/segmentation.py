"""To which class every voxel belongs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.config import RunConfig, TaskConfig
from trainer.data.shards.shards import ShardSet
from trainer.errors import CohortError
from trainer.metrics import segmentation as label_maps
from trainer.tasks import losses
from trainer.tasks.base import PerSample, Task

if TYPE_CHECKING:
    from trainer.data.shards.index import Volume


# Of each class, per volume: see `sample_statistics`; distances in mm, volumes in mL.
FIGURES = ("dice", "hd95", "hausdorff", "true_ml", "predicted_ml")


@dataclass(frozen=True)
class Segmentation(Task):
    """Logits `(B, D, H, W, K)` for K classes, background first; the target is a label map, uint8 (D, H, W).

    Evaluation keeps a few numbers of each volume and never the maps: the loss, and `FIGURES` of each class
    but the background.
    """

    classes: tuple[str, ...]
    voxel_size: tuple[float, float, float]
    volumes: int
    section: TaskConfig = dataclasses.field(default_factory=lambda: TaskConfig(name="segmentation"))
    name: str = "segmentation"
    dense: bool = True
    score: str = "dice"
    monitored: tuple[str, ...] = ("loss", "dice")

    @classmethod
    def build(cls, config: RunConfig, shards: ShardSet) -> Segmentation:
        """Build the task from the classes of the set's label maps.

        Raises:
            CohortError: the set has no label maps.
        """
        if len(shards.maps) < 2:
            raise CohortError(
                f"{shards.path}: has no label maps to learn from.",
                cure="Import the images again with --maps; see `cingulum import --help`.",
                path=shards.path,
            )
        return cls(shards.maps, shards.voxel_size, len(shards), section=config.task)

    def rows(self) -> tuple[int, ...]:
        """Return all rows: every volume has a map."""
        return tuple(range(self.volumes))

    def targets(self, rows: Sequence[int]) -> None:
        """Return None: maps are read from the shards."""

    def loss(self) -> PerSample:
        """Return Dice loss and cross entropy, or cross entropy alone (mean over voxels)."""
        return losses.of(self.section)

    def scores(self) -> PerSample:
        """Return the mean Dice coefficient of the classes but the background."""
        return losses.mean_dice

    def collected(
        self, targets: np.ndarray, outputs: np.ndarray, *, final: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return zeros (B,), and (B, 1 + 5 (K - 1)): the loss and `FIGURES` of each class; NaN: unknown."""
        loss = np.asarray(self.loss()(targets, outputs), np.float64)
        predicted = np.asarray(outputs).argmax(axis=-1).astype(np.uint8)
        rows = []
        for one_loss, true_map, predicted_map in zip(loss, np.asarray(targets), predicted, strict=True):
            found = label_maps.sample_statistics(
                true_map, predicted_map, self.classes, self.voxel_size, distances=final
            )
            rows.append([one_loss, *(found[name][kind] for name in self.classes[1:] for kind in FIGURES)])
        return np.zeros(len(rows), np.float32), np.array(rows, np.float32)  # None becomes NaN

    def metrics(
        self, targets: np.ndarray, outputs: np.ndarray, subjects: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return mean loss and `segmentation_metrics`."""
        return {
            "loss": float(np.mean(outputs[:, 0])),
            **label_maps.segmentation_metrics(
                self._column(outputs, "dice"), self._column(outputs, "hd95"), subjects
            ),
        }

    def table(
        self, rows: np.ndarray, targets: np.ndarray, outputs: np.ndarray, volumes: Sequence[Volume]
    ) -> tuple[list[str], list[list[Any]]]:
        """Return `FIGURES` of each class, in mm and mL of the scan; empty where undefined."""
        header = [
            "row",
            "subject",
            "session",
            *(f"{kind}_{name}" for name in self.classes[1:] for kind in FIGURES),
        ]
        return header, [
            [
                int(row),
                volumes[row].subject,
                volumes[row].session or "",
                *("" if np.isnan(v) else f"{v:.6g}" for v in output[1:] * self._in_scan(volumes[row])),
            ]
            for row, output in zip(rows, outputs, strict=True)
        ]

    def _in_scan(self, volume: Volume) -> np.ndarray:
        """Return what each of `FIGURES` of each class is multiplied by: a registered scan was scaled."""
        size = 1.0
        if volume.registration is not None:
            size = 1 / abs(float(np.linalg.det(np.asarray(volume.registration["world"], np.float64))))
        powers = {"dice": 0.0, "hd95": 1 / 3, "hausdorff": 1 / 3}
        return np.array([size ** powers.get(name, 1.0) for _ in self.classes[1:] for name in FIGURES])

    def to_json(self) -> dict[str, Any]:
        """Return name, target and classes."""
        return {"name": self.name, "target": "maps", "classes": list(self.classes)}

    def _column(self, outputs: np.ndarray, figure: str) -> dict[str, np.ndarray]:
        """One figure of every volume, (N,), by class."""
        place = 1 + FIGURES.index(figure)
        return {name: outputs[:, place + k * len(FIGURES)] for k, name in enumerate(self.classes[1:])}
