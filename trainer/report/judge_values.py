"""The judgement of a regression."""

from __future__ import annotations

from trainer.metrics.regression import regression_metrics
from trainer.report import charts_values as charts
from trainer.report.judgement import Judgement, ScanTable, Tile, scan_cells, scan_header, share, told_interval
from trainer.report.predictions import Values
from trainer.report.story import ReportMaterial


def judge(story: ReportMaterial, found: Values) -> Judgement:
    """Return mean absolute error, R² and the rest."""
    metrics = regression_metrics(found.true, found.predicted, found.subjects)
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
        figures=(charts.scatter(found, target, unit), charts.bland_altman(found, target, unit)),
        scans=_scans(found),
    )


def _verdict(metrics: dict[str, object], target: str) -> str | None:
    bounds = metrics["r2_interval"]
    if not isinstance(bounds, list):
        return None
    if bounds[0] > 0:
        return f"The network predicts {target} better than the mean of these subjects would."
    return f"These subjects do not show that the network predicts {target} better than their mean would."


def _scans(found: Values) -> ScanTable:
    """The largest errors first."""
    order = sorted(range(len(found.true)), key=lambda i: (-abs(found.errors[i]), found.names[i]))
    names = scan_cells(found)
    rows = [
        (
            *names[i],
            f"{found.true[i]:.2f}",
            f"{found.predicted[i]:.2f}",
            f"{found.errors[i]:.2f}",
            f"{abs(found.errors[i]):.2f}",
        )
        for i in order
    ]
    header = [("True", True), ("Predicted", True), ("Difference", True), ("Error", True)]
    return ScanTable((*scan_header(found), *header), tuple(rows), "The largest errors first.")
