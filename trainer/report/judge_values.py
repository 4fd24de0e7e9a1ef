"""The judgement of a regression."""

from __future__ import annotations

from trainer.metrics.regression import regression_metrics
from trainer.report import charts_values as charts
from trainer.report.judgement import Judgement, ScanTable, Tile, scan_cells, scan_header, share, told_interval
from trainer.report.predictions import Values
from trainer.report.story import ReportMaterial


def judge(story: ReportMaterial, predictions: Values) -> Judgement:
    """Return mean absolute error, R² and the rest."""
    metrics = regression_metrics(predictions.true, predictions.predicted, predictions.subjects)
    target, unit = story.task.target or "age", story.task.unit
    tiles = (
        Tile(f"MAE,{unit}" if unit else "MAE", share(metrics["mae"]), told_interval(metrics, "mae"), False),
        Tile("R²", share(metrics["r2"]), told_interval(metrics, "r2"), False),
        Tile("RMSE", share(metrics["rmse"])),
        Tile("Pearson r", share(metrics["pearson"])),
        Tile("Bias", share(metrics["bias"])),
    )
    return Judgement(
        metrics=metrics,
        tiles=tiles,
        verdict=_verdict(metrics, target),
        figures=(charts.scatter(predictions, target, unit), charts.bland_altman(predictions, target, unit)),
        scans=_scans(predictions),
    )


def _verdict(metrics: dict[str, object], target: str) -> str | None:
    bounds = metrics["r2_interval"]
    if not isinstance(bounds, list):
        return None
    if bounds[0] > 0:
        return f"The network predicts {target} better than the mean of these subjects would."
    return f"These subjects do not show that the network predicts {target} better than their mean would."


def _scans(predictions: Values) -> ScanTable:
    """The largest errors first."""
    order = sorted(
        range(len(predictions.true)), key=lambda i: (-abs(predictions.errors[i]), predictions.names[i])
    )
    names = scan_cells(predictions)
    rows = [
        (
            *names[i],
            f"{predictions.true[i]:.2f}",
            f"{predictions.predicted[i]:.2f}",
            f"{predictions.errors[i]:.2f}",
            f"{abs(predictions.errors[i]):.2f}",
        )
        for i in order
    ]
    header = [("True", True), ("Predicted", True), ("Difference", True), ("Error", True)]
    return ScanTable((*scan_header(predictions), *header), tuple(rows), "The largest errors first.")
