"""Charts of a classification: ROC, precision and recall, calibration, every scan, intervals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from trainer.metrics.classification import reliability as reliability_bins
from trainer.metrics.ranking import reached
from trainer.metrics.subjects import Subjects, share_interval
from trainer.report.axes import BOTTOM, LEFT, RIGHT, TOP, Axes, Point
from trainer.report.charts_training import SHARE_TICKS
from trainer.report.figure import Figure, table
from trainer.report.predictions import ClassPredictions

# Letters of a name that fit beside its value, on a phone too.
_FITS = 34

# Edge of a cell of the confusion matrix, and the width of a small letter in it, in units of the view box.
_CELL, _LETTER = 100, 6.6

# Of a curve: legend, truth (N,), score (N,), class of line.
Curve = tuple[str, np.ndarray, np.ndarray, str]


def curves_of(
    predictions: ClassPredictions, baseline: Mapping[int, Sequence[float]], name: str
) -> list[Curve]:
    """What ROC and precision-recall curves are drawn of: two classes, the network and the linear baseline;
    more, each class against the rest."""
    if len(predictions.classes) > 2:
        return [
            (label, predictions.true == k, predictions.probabilities[:, k], f"s{1 + k % 6}")
            for k, label in enumerate(predictions.classes)
        ]
    curves = [(name, predictions.true == 1, predictions.probabilities[:, 1], "s1")]
    if baseline:
        other = np.array([baseline[int(row)][1] for row in predictions.rows])
        curves.append(("tissue volumes", predictions.true == 1, other, "s2"))
    return curves


def roc(curves: Sequence[Curve]) -> Figure | None:
    """Return receiver operating characteristic; None where no curve has both kinds of subjects."""
    axes = _square(
        "false positive rate",
        "true positive rate",
        "ROC curve (receiver operating characteristic)",
    )
    axes.line([(0, 0), (1, 1)], "chance")
    legend, numbers = [], []
    for name, truth, score, kind in _drawable(curves):
        thresholds, hits, false = reached(truth, score)
        up, across = hits / hits[-1], false / false[-1]
        points = [(0.0, 0.0), *((float(x), float(y)) for x, y in zip(across, up, strict=True))]
        if len(curves) < 4:
            axes.area([*points, (1.0, 0.0)], kind)
        axes.line(points, kind)
        if kind != "faint":
            legend.append((kind, name))
        numbers += [(name, x, y, t) for (x, y), t in zip(points, [None, *thresholds.tolist()], strict=True)]
    if not legend:
        return None
    header = ["curve", "false_positive_rate", "true_positive_rate", "threshold"]
    thin = [("faint", "a fold")] if any(kind == "faint" for *_, kind in curves) else []
    keys = (*legend, *thin, ("chance", "chance"))
    return Figure("roc", "ROC curve", axes, table(header, numbers), keys)


def precision_recall(curves: Sequence[Curve]) -> Figure | None:
    """Return precision against recall; chance is the share of positive subjects."""
    axes = _square(
        "recall (sensitivity)", "precision (PPV)", "Precision against recall of the held-out scans"
    )
    legend, numbers = [], []
    drawable = _drawable(curves)
    for share in sorted({float(truth.mean()) for _, truth, _, _ in drawable})[:1]:
        axes.line([(0, share), (1, share)], "chance")
    for name, truth, score, kind in drawable:
        thresholds, hits, false = reached(truth, score)
        curve = list(zip((hits / hits[-1]).tolist(), (hits / (hits + false)).tolist(), strict=True))
        steps: list[Point] = []
        before = 0.0
        # As average precision counts: the precision at which a recall is first reached holds up to it.
        for r, p in curve:
            if r > before:
                steps += [(before, p), (r, p)]
                before = r
        axes.line(steps, kind)
        legend.append((kind, name))
        numbers += [(name, r, p, t) for (r, p), t in zip(curve[::-1], thresholds[::-1].tolist(), strict=True)]
    if not legend:
        return None
    header = ["curve", "recall", "precision", "threshold"]
    words = "share of positive scans" if len(drawable) < 3 else "share of the rarest class"
    return Figure(
        "precision-recall", "Precision and recall", axes, table(header, numbers), (*legend, ("chance", words))
    )


def intervals(
    bars: Sequence[tuple[str, float, Sequence[float] | None, str]],
    label: str,
    heading: str = "Against chance and a simple model",
) -> Figure:
    """Return estimates with intervals on one scale from 0 to 1, a line each: (name,
    value, interval, kind).
    """
    axes = Axes(
        (0.0, 1.0),
        (0, len(bars)),
        x_label=label,
        y_label="",
        title=f"{label}: " + ", ".join(f"{name} {value:.2f}" for name, value, _, _ in bars),
        y_ticks=(),
        x_ticks=SHARE_TICKS,
        height=70 + 52 * len(bars),
    )
    axes.line([(0.5, 0), (0.5, len(bars))], "chance")
    axes.text(0.49, 0.06, "chance", "note", "end")
    for place, (name, value, bounds, kind) in enumerate(bars):
        y = len(bars) - place - 0.62
        axes.line([(0, y), (1, y)], "track")
        if bounds:
            axes.line([(bounds[0], y), (bounds[1], y)], f"{kind} thick")
        axes.dot(value, y, kind, f"{name}: {value:.3f}", radius=7)
        axes.text(0, y + 0.28, name if len(name) <= _FITS else f"…{name[1 - _FITS :]}", "label")
        axes.text(1, y + 0.28, f"{value:.2f}", "label", "end")
    numbers = [(name, value, *(bounds or (None, None))) for name, value, bounds, _ in bars]
    return Figure(
        "auc",
        heading,
        axes,
        table(["what", "auc", "low", "high"], numbers),
        caption="Bars are 95 % intervals, by subject.",
        wide=True,
    )


def probabilities(predictions: ClassPredictions) -> Figure | None:
    """Return for two classes every scan's probability of the second one, by true class."""
    if len(predictions.classes) != 2:
        return None
    axes = _square(
        f"predicted probability of {predictions.classes[1]}",
        "true class",
        f"Predicted probability of {predictions.classes[1]} for every held-out scan, by true class",
        (0, 2),
    )
    axes.line([(0.5, 0), (0.5, 2)], "chance")
    numbers = []
    for k, name in enumerate(predictions.classes):
        axes.text(0, k + 0.86, f" {name}", "label")
        members = np.flatnonzero(predictions.true == k)
        for order, i in enumerate(members[np.argsort(predictions.probabilities[members, 1])]):
            # A fixed zigzag: dots of equal probability lie beside each other, not on top.
            y = k + 0.12 + 0.13 * (order % 5)
            p = float(predictions.probabilities[i, 1])
            kind = "right" if predictions.predicted[i] == k else "wrong"
            axes.dot(p, y, kind, f"{predictions.names[i]}: {p:.2f}", radius=4)
            numbers.append((predictions.subjects[i], name, p, predictions.session(i)))
    header = ["subject", "true", f"p_{predictions.classes[1]}", "session"]
    legend = (("dot right", "right"), ("dot wrong", "wrong"))
    return Figure("probabilities", "Every scan", axes, table(header, numbers), legend)


def calibration(predictions: ClassPredictions, ece: float | None) -> Figure | None:
    """Return how often the network is right where it is about equally sure, for 20 scans or more."""
    if len(predictions.true) < 20:
        return None
    lowest = 1 / len(predictions.classes)
    axes = Axes(
        (lowest, 1),
        (0, 1),
        x_label="how sure the network is",
        y_label="share that is right",
        title="Reliability: share right against confidence",
        y_ticks=SHARE_TICKS,
        width=360,
        height=340,
    )
    axes.line([(lowest, lowest), (1, 1)], "chance")
    bins = [b for b in reliability_bins(predictions.true, predictions.probabilities) if b["n"]]
    sure = predictions.probabilities.max(axis=1)
    right = (predictions.predicted == predictions.true).astype(float)
    subjects = Subjects.named(predictions.subjects)
    for b in bins:
        inside = (sure > b["low"]) & (sure <= b["high"])
        low, high = share_interval(right[inside], subjects.of(inside)) or (0.0, 1.0)
        axes.line([(b["confidence"], low), (b["confidence"], high)], "s1 whisker")
        words = f"{b['n']} scans: {b['accuracy']:.2f} right"
        axes.dot(b["confidence"], b["accuracy"], "s1", words, radius=5)
    axes.line([(b["confidence"], b["accuracy"]) for b in bins], "s1 faint")
    header = ["low", "high", "n", "confidence", "accuracy"]
    numbers = table(header, [[b[key] for key in header] for b in bins])
    remark = "" if ece is None else f" Expected calibration error {ece:.3f}."
    return Figure(
        "calibration",
        "Calibration",
        axes,
        numbers,
        (("s1", "this network, 95 % interval"), ("chance", "as sure as right")),
        caption=f"On the dashed line, a network that is 80 % sure is right in 80 % of cases.{remark}",
    )


def confusion(counts: Sequence[Sequence[int]], classes: Sequence[str]) -> Figure:
    """Return the confusion matrix; a cell is as dark as its share of the true class is large."""
    size = len(classes)
    names = [wrapped(name) for name in classes]
    middles = [k + 0.5 for k in range(size)]
    axes = Axes(
        (0, size),
        (0, size),
        x_label="what the network said",
        y_label="true class",
        title="Confusion matrix",
        x_ticks=middles,
        x_names=names,
        y_ticks=middles,
        y_names=names[::-1],
        width=max(320, LEFT + RIGHT + _CELL * size),
        height=max(300, TOP + BOTTOM + _CELL * size),
    )
    for k, row in enumerate(counts):
        y = size - k - 1
        for j, n in enumerate(row):
            part = n / sum(row) if sum(row) else 0.0
            low, high = (j + 0.03, y + 0.03), (j + 0.97, y + 0.97)
            axes.box(low, high, "s1" if j == k else "s2", "", 0.05 + 0.55 * part)
            axes.text(j + 0.5, y + 0.5, str(n), "label", "middle")
            axes.text(j + 0.5, y + 0.3, f"{part:.0%}", "note", "middle")
    rows = [[name, *row] for name, row in zip(classes, counts, strict=True)]
    return Figure("confusion", "Confusion matrix", axes, table(["true", *classes], rows))


def wrapped(name: str) -> str:
    """Return a class as lines that fit a cell of the confusion matrix, parted at blanks, dashes and
    underscores.
    """
    lines, room = [""], _CELL / _LETTER
    for part in re.findall(r"[^\s_-]*[\s_-]?", name):
        if _width(lines[-1]) + _width(part.rstrip()) > room and lines[-1]:
            lines.append("")
        for letter in part:
            if _width(lines[-1] + letter) > room and letter.strip():
                lines.append("")
            lines[-1] += letter
    return "\n".join(line.strip() for line in lines)


def _width(text: str) -> float:
    """About how wide it is, in small letters of the charts' font."""
    return sum(
        1.65 if c in "mwMW@%&" else 1.2 if c.isupper() else 1.0 if ord(c) < 0x2000 else 1.7 for c in text
    )


def _square(x_label: str, y_label: str, title: str, y: Point = (0, 1)) -> Axes:
    return Axes(
        (0, 1),
        y,
        x_label=x_label,
        y_label=y_label,
        title=title,
        x_ticks=SHARE_TICKS,
        y_ticks=SHARE_TICKS if y == (0, 1) else (),
        width=360,
        height=340,
    )


def _drawable(curves: Sequence[Curve]) -> list[Curve]:
    """Those with positive and negative scans."""
    return [curve for curve in curves if curve[1].any() and not curve[1].all()]
