"""The judgement of a segmentation."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.metrics.segmentation import segmentation_metrics
from trainer.report import charts_maps as charts
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
        figures=kept([charts.dice(predictions), charts.surface_distance(predictions)]),
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
