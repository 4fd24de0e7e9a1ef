"""Charts of a segmentation: every scan's Dice and surface distance, class by class."""

from __future__ import annotations

import numpy as np

from trainer.report.axes import Axes
from trainer.report.charts_training import SHARE_TICKS
from trainer.report.figure import Figure, table
from trainer.report.predictions import Overlaps
from trainer.report.strips import strips


def dice(predictions: Overlaps) -> Figure:
    """Return the Dice of every scan by class, with quartiles."""
    return _strips(
        "dice",
        "Dice",
        predictions,
        predictions.dice,
        "Dice",
        (0.0, 1.0),
        "1 is a perfect overlap with the true map.",
    )


def surface_distance(predictions: Overlaps) -> Figure | None:
    """Return the 95th percentile of every scan's Hausdorff distance by class; None without any."""
    if np.isnan(predictions.hd95).all():
        return None
    top = float(np.nanmax(predictions.hd95)) * 1.08 or 1.0
    caption = "95th percentile of the distances between the two surfaces; 0 is perfect."
    return _strips(
        "hd95", "Hausdorff distance, 95 %", predictions, predictions.hd95, "HD95, mm", (0.0, top), caption
    )


def _strips(
    name: str,
    heading: str,
    predictions: Overlaps,
    values: np.ndarray,
    label: str,
    bounds: tuple[float, float],
    caption: str,
) -> Figure:
    count = len(predictions.classes)
    axes = Axes(
        (0, count),
        bounds,
        x_label="class",
        y_label=label,
        title=f"{heading} of every held-out scan, by class",
        x_ticks=[k + 0.5 for k in range(count)],
        x_names=predictions.classes,
        y_ticks=SHARE_TICKS if bounds == (0.0, 1.0) else None,
        width=max(360, 90 * count + 90),
        height=320,
    )
    known = [np.flatnonzero(~np.isnan(values[:, k])) for k in range(count)]
    strips(
        axes,
        [(predictions.classes[k], values[known[k], k]) for k in range(count)],
        [[f"{predictions.names[i]}: {values[i, k]:.3f}" for i in known[k]] for k in range(count)],
    )
    rows = [
        (predictions.subjects[i], predictions.classes[k], float(values[i, k]), predictions.session(int(i)))
        for k in range(count)
        for i in known[k]
    ]
    return Figure(
        name,
        heading,
        axes,
        table(["subject", "class", name, "session"], rows),
        (("dot s1", "a scan"),),
        caption=f"{caption} Boxes: middle half of the scans, and their median.",
    )
