"""The judgement of a regression."""

from __future__ import annotations

import numpy as np

from trainer.metrics.regression import regression_metrics
from trainer.report.axes import Axes
from trainer.report.figure import Figure, table
from trainer.report.judgement import Judgement, ScanTable, Tile, scan_cells, scan_header, share, told_interval
from trainer.report.predictions import Values
from trainer.report.story import ReportMaterial


def scatter(predictions: Values, target: str, unit: str) -> Figure:
    """Return predicted against true values; on the dashed line they are equal."""
    bounds = _around(np.concatenate([predictions.true, predictions.predicted]))
    axes = Axes(
        bounds,
        bounds,
        x_label=f"true {target}{_in(unit)}",
        y_label=f"predicted {target}{_in(unit)}",
        title=f"Predicted against true {target} of the held-out scans",
        width=360,
        height=340,
    )
    axes.line([(bounds[0], bounds[0]), (bounds[1], bounds[1])], "chance")
    for name, x, y in zip(predictions.names, predictions.true, predictions.predicted, strict=True):
        axes.dot(float(x), float(y), "s1", f"{name}: {x:.1f}, predicted {y:.1f}", radius=4)
    numbers = zip(
        predictions.subjects,
        predictions.true.tolist(),
        predictions.predicted.tolist(),
        map(predictions.session, range(len(predictions.rows))),
        strict=True,
    )
    return Figure(
        "scatter",
        "Predicted against true",
        axes,
        table(["subject", "target", "predicted", "session"], numbers),
        (("dot s1", "a scan"), ("chance", "equal")),
    )


def bland_altman(predictions: Values, target: str, unit: str) -> Figure:
    """Return difference against mean with the limits of agreement (Bland and Altman, Lancet
    1986;327:307-310).
    """
    means, errors = (predictions.true + predictions.predicted) / 2, predictions.errors
    bias = float(errors.mean())
    spread = float(errors.std(ddof=1)) if len(errors) > 1 else 0.0
    low, high = bias - 1.96 * spread, bias + 1.96 * spread
    across = _around(means)
    axes = Axes(
        across,
        _around(np.array([*errors, low, high, 0.0])),
        x_label=f"mean of true and predicted {target}{_in(unit)}",
        y_label=f"predicted minus true{_in(unit)}",
        title=f"Bland-Altman plot: bias {bias:.2f}, limits of agreement {low:.2f} to {high:.2f}",
        width=360,
        height=340,
    )
    axes.line([(across[0], bias), (across[1], bias)], "s2")
    for limit in (low, high):
        axes.line([(across[0], limit), (across[1], limit)], "chance")
    for name, x, y in zip(predictions.names, means, errors, strict=True):
        axes.dot(float(x), float(y), "s1", f"{name}: {y:+.1f}", radius=4)
    numbers = zip(
        predictions.subjects,
        means.tolist(),
        errors.tolist(),
        map(predictions.session, range(len(predictions.rows))),
        strict=True,
    )
    return Figure(
        "bland-altman",
        "Bland-Altman",
        axes,
        table(["subject", "mean", "difference", "session"], numbers),
        (("s2", f"bias {bias:+.2f}"), ("chance", f"limits of agreement {low:+.2f} to {high:+.2f}")),
    )


def _around(values: np.ndarray) -> tuple[float, float]:
    """A range with a margin about values."""
    low, high = float(values.min()), float(values.max())
    margin = 0.06 * (high - low or 1.0)
    return low - margin, high + margin


def _in(unit: str) -> str:
    return f",{unit}" if unit else ""


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
        figures=(scatter(predictions, target, unit), bland_altman(predictions, target, unit)),
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
