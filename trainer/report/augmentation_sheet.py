"""A picture of what augmentation makes of one volume: a row for each change, and one for all together."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trainer.config import AugmentConfig
from trainer.config.augment import active
from trainer.data import augment
from trainer.report import slices

TOGETHER = "all together"
_DPI = 100
_LEFT, _TOP, _GAP = 130, 26, 6


@dataclass(frozen=True)
class SheetRow:
    """One row of the sheet.

    Attributes:
        name: of the change, or `TOGETHER`.
        told: what was drawn for each sample, as JSON objects.
        pictures: of each sample, float (rows, columns, 3) from 0 to 1.
        seconds: that each sample took.
    """

    name: str
    told: list[dict[str, Any]]
    pictures: list[np.ndarray]
    seconds: list[float]


def rows(
    volume: np.ndarray,
    label_map: np.ndarray | None,
    config: AugmentConfig,
    *,
    seed: int,
    sample: int,
    samples: int,
    voxel_mm: tuple[float, float, float],
) -> list[SheetRow]:
    """Return what the first `samples` epochs make of a volume.

    Each change by itself, in every sample; then all of them together, as often as the configuration says:
    what training sees of this volume.

    Args:
        volume: float32 (D, H, W, C).
        label_map: uint8 (D, H, W), whose outlines are drawn; or None.
        config: the changes.
        seed: of the run.
        sample: number of the volume in its set.
        samples: how many.
        voxel_mm: edges of a voxel along D, H, W, in mm.
    """
    made = []
    for name, changes in {**single(config), TOGETHER: config}.items():
        row = SheetRow(name, [], [], [])
        for epoch in range(samples):
            began = time.perf_counter()
            drawn = augment.draw(changes, seed, epoch, sample, volume.shape, voxel_mm)
            changed, moved = drawn.applied(volume, label_map)
            row.seconds.append(time.perf_counter() - began)
            row.told.append(drawn.to_json())
            row.pictures.append(_picture(changed, moved, volume, voxel_mm))
        made.append(row)
    return made


def single(config: AugmentConfig) -> dict[str, AugmentConfig]:
    """Return for each change of the configuration one that has it alone, in every sample."""
    configs = {}
    for name, value in active(config.model_dump()).items():
        sure = {**value, "probability": 1.0} if isinstance(value, dict) and "probability" in value else value
        configs[name] = AugmentConfig.model_validate({name: sure})
    return configs


def sheet(
    title: str,
    volume: np.ndarray,
    label_map: np.ndarray | None,
    made: list[SheetRow],
    voxel_mm: tuple[float, float, float],
) -> bytes:
    """Return the sheet as PNG: the volume as it is stored, then the samples, each in three planes."""
    stored = _picture(volume, label_map, volume, voxel_mm)
    high, wide = stored.shape[:2]
    columns = 1 + len(made[0].pictures)
    width = _LEFT + columns * (wide + _GAP)
    height = 2 * _TOP + len(made) * (high + _GAP)
    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor="white")
    figure.text(0.5, 1 - 0.5 * _TOP / height, title, ha="center", va="center", fontsize=11)
    for column in range(columns):
        left = (_LEFT + column * (wide + _GAP)) / width
        heading = "as stored" if column == 0 else f"epoch {column - 1}"
        figure.text(
            left + wide / width / 2, 1 - 1.5 * _TOP / height, heading, ha="center", va="center", fontsize=9
        )
    for number, row in enumerate(made):
        bottom = 1 - (2 * _TOP + (number + 1) * (high + _GAP)) / height
        figure.text(
            6 / width, bottom + high / height / 2, row.name.replace("_", " "), va="center", fontsize=10
        )
        for column, picture in enumerate([stored, *row.pictures]):
            left = (_LEFT + column * (wide + _GAP)) / width
            axes = figure.add_axes((left, bottom, wide / width, high / height))
            axes.imshow(picture, interpolation="nearest", aspect="auto")
            axes.set_axis_off()
    file = io.BytesIO()
    FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()


def _picture(
    volume: np.ndarray,
    label_map: np.ndarray | None,
    stored: np.ndarray,
    voxel_mm: tuple[float, float, float],
) -> np.ndarray:
    """Three planes in the grey values of the stored volume, so that changes of intensity show."""
    window = slices.window_of(stored)
    if label_map is not None:
        return slices.with_contours(volume, voxel_mm, None, label_map, least=256, window=window)
    grey = slices.three_planes(volume, voxel_mm, least=96, window=window)
    return np.repeat(grey[..., None], 3, axis=2)
