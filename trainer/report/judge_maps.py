"""The judgement of a segmentation."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.metrics.segmentation import segmentation_metrics
from trainer.report.axes import Axes
from trainer.report.charts_training import SHARE_TICKS
from trainer.report.figure import Figure, table
from trainer.report.judgement import (
    Judgement,
    ScanTable,
    Tile,
    kept,
    scan_cells,
    scan_header,
    share,
    told_interval,
)
from trainer.report.predictions import Overlaps
from trainer.report.story import ReportMaterial
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


def judge(story: ReportMaterial, predictions: Overlaps) -> Judgement:
    """Return Dice and surface distance of each class, mean over scans."""
    metrics = segmentation_metrics(predictions.dice_by_class, predictions.hd95_by_class, predictions.subjects)
    per_class = metrics["per_class"]
    tiles = [Tile("Mean Dice", share(metrics["dice"]), told_interval(metrics, "dice"), small=False)]
    tiles += [
        Tile(f"Dice, {name}", share(told["dice"]), told_interval(told, "dice"))
        for name, told in per_class.items()
    ]
    tiles += [
        Tile(f"HD95, {name}", f"{share(told['hd95'], 1)} mm", f"median {share(told['hd95_median'], 1)}")
        for name, told in per_class.items()
        if told["hd95"] is not None
    ]
    return Judgement(
        metrics=metrics,
        tiles=tuple(tiles),
        verdict=_verdict(metrics),
        figures=kept([dice(predictions), surface_distance(predictions)]),
        scans=_scans(predictions),
    )


def _verdict(metrics: dict[str, Any]) -> str | None:
    """Only what the mean distances hide."""
    missed = {name: told["without_surface"] for name, told in metrics["per_class"].items()}
    said = [f"{name} in {n} scan{'' if n == 1 else 's'}" for name, n in missed.items() if n]
    if not said:
        return None
    return f"One of the two maps lacks {' and '.join(said)}: there the distances know of no failure."


def _scans(predictions: Overlaps) -> ScanTable:
    """The lowest Dice first."""
    means = predictions.mean_dice
    order = sorted(range(len(means)), key=lambda i: (np.nan_to_num(means[i], nan=2.0), predictions.names[i]))
    names = scan_cells(predictions)
    rows = [
        (
            *names[i],
            share(means[i], 3),
            *(share(v, 3) for v in predictions.dice[i]),
            *(share(v, 1) for v in predictions.hd95[i]),
        )
        for i in order
    ]
    header = [*scan_header(predictions), ("Mean Dice", True)]
    header += [(f"Dice, {name}", True) for name in predictions.classes]
    header += [(f"HD95, {name}, mm", True) for name in predictions.classes]
    return ScanTable(tuple(header), tuple(rows), "The lowest Dice first.")
