"""The judgement of a classification."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from trainer.metrics.classification import classification_metrics
from trainer.metrics.comparison import auc_difference
from trainer.report import against_volumes
from trainer.report import charts_classes as charts
from trainer.report.figure import Figure
from trainer.report.judgement import (
    Judgement,
    ScanTable,
    Tile,
    kept,
    pair,
    scan_cells,
    scan_header,
    share,
    told_interval,
)
from trainer.report.predictions import ClassPredictions
from trainer.report.story import ReportMaterial, number


def judge(story: ReportMaterial, predictions: ClassPredictions) -> Judgement:
    """Return AUC, accuracy and the rest, against a linear model on tissue volumes where there is one."""
    metrics = classification_metrics(
        predictions.true, predictions.probabilities, predictions.classes, predictions.subjects
    )
    baseline = _baseline(story, predictions) if story.judged == "test" else {}
    linear = _metrics_of(baseline, predictions)
    curves = charts.curves_of(predictions, baseline, "this network")
    return Judgement(
        metrics=metrics,
        tiles=_tiles(metrics, linear),
        verdict=_verdict(predictions, metrics, baseline, story.config),
        figures=kept(
            [
                _against(story, metrics, linear),
                charts.roc(curves),
                charts.precision_recall(curves),
                charts.probabilities(predictions),
                charts.calibration(predictions, metrics["ece"]),
            ]
        ),
        scans=_scans(predictions),
        hidden=(charts.confusion(metrics["confusion"], predictions.classes),),
        confusion=[[(n, n / sum(row) if sum(row) else 0.0) for n in row] for row in metrics["confusion"]],
        classes=predictions.classes,
    )


def _metrics_of(baseline: dict[int, list[float]], predictions: ClassPredictions) -> dict[str, Any]:
    """The linear model's metrics, by subject as the network's, whatever an older version wrote."""
    if not baseline:
        return {}
    likely = np.array([baseline[int(row)] for row in predictions.rows])
    return classification_metrics(predictions.true, likely, predictions.classes, predictions.subjects)


def _tiles(metrics: dict[str, Any], linear: dict[str, Any]) -> tuple[Tile, ...]:
    positive = f" ({metrics['positive']})" if metrics["positive"] else ""
    tiles = [
        Tile("AUC", share(metrics["auc"]), told_interval(metrics, "auc"), small=False),
        Tile("Accuracy", share(metrics["accuracy"]), told_interval(metrics, "accuracy"), small=False),
        Tile(f"Sensitivity{positive}", share(metrics["sensitivity"])),
        Tile("Specificity", share(metrics["specificity"])),
        Tile("Balanced accuracy", share(metrics["balanced_accuracy"])),
        Tile("Average precision", share(metrics["pr_auc"]), told_interval(metrics, "pr_auc")),
        Tile("Calibration error", share(metrics["ece"])),
        Tile("Brier score", share(metrics["brier"])),
    ]
    if linear:
        tiles.append(Tile("Linear on volumes, AUC", share(linear["auc"]), told_interval(linear, "auc")))
    return tuple(tiles)


def _against(story: ReportMaterial, metrics: dict[str, Any], linear: dict[str, Any]) -> Figure | None:
    if metrics["auc"] is None:
        return None
    bars = [("this network", metrics["auc"], pair(metrics["auc_interval"]), "s1")]
    auc = linear.get("auc")
    if auc is None:
        return charts.intervals(bars, "AUC, 95 % interval")
    bars.append(("tissue volumes, linear", auc, pair(linear["auc_interval"]), "s2"))
    figure = charts.intervals(bars, "AUC, 95 % interval")
    features = ", ".join(map(str, story.baseline.get("features") or ["not named"]))
    seen = f" The linear model sees only the subject's tissue volumes: {features}."
    return dataclasses.replace(figure, caption=figure.caption + seen)


def _baseline(story: ReportMaterial, predictions: ClassPredictions) -> dict[int, list[float]]:
    """The linear model's probabilities by row, if it judged every one of these scans."""
    stored = story.baseline.get("predictions", {})
    wanted = [stored.get(str(int(row))) for row in predictions.rows]
    if not all(isinstance(p, list) and len(p) == len(predictions.classes) for p in wanted):
        return {}
    if any(number(value) is None for p in wanted if p for value in p):
        return {}
    return {int(row): p for row, p in zip(predictions.rows, wanted, strict=True) if p}


def _verdict(
    predictions: ClassPredictions,
    metrics: dict[str, Any],
    baseline: dict[int, list[float]],
    config: dict[str, Any],
) -> str:
    if metrics["auc"] is None:
        return "Not every class is among these scans, so there is no ROC curve to judge by."
    bounds = metrics["auc_interval"]
    if bounds is None:
        verdict = (
            "There is no interval to judge by: too few subjects, or not a single mistake in their order."
        )
    elif bounds[0] > 0.5:
        verdict = "The network tells the classes apart better than chance."
    else:
        verdict = "These subjects do not show that the network is better than chance."
    if not baseline:
        return verdict
    other = np.array([baseline[int(row)] for row in predictions.rows])
    difference = auc_difference(predictions.true, predictions.probabilities, other, predictions.subjects)
    if difference is None:
        return verdict
    value, (low, high) = difference
    return f"{verdict} {against_volumes.judged(value, low, high, config)}"


def _scans(predictions: ClassPredictions) -> ScanTable:
    """Mistakes first, the surest of them on top."""
    sure, right = predictions.probabilities.max(axis=1), predictions.predicted == predictions.true
    order = sorted(range(len(predictions.true)), key=lambda i: (right[i], -sure[i], predictions.names[i]))
    names = scan_cells(predictions)
    rows = [
        (
            *names[i],
            predictions.classes[predictions.true[i]],
            predictions.classes[predictions.predicted[i]],
            *(f"{p:.3f}" for p in predictions.probabilities[i]),
            "✓ right" if right[i] else "✗ wrong",
        )
        for i in order
    ]
    header = [*scan_header(predictions), ("True", False), ("Called", False)]
    header += [(f"P({name})", True) for name in predictions.classes]
    return ScanTable((*header, ("Verdict", False)), tuple(rows), "Mistakes first.")
