"""The charts of a report, as SVG; each returns None when there is nothing to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.metrics import roc_curve

from trainer.metrics.classification import wilson
from trainer.report.axes import Axes, Point
from trainer.report.story import Predictions, number

SHARE_TICKS = (0, 0.2, 0.4, 0.6, 0.8, 1)


def learning_curve(
    epochs: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *, y_label: str, best: int | None
) -> str | None:
    """Columns of metrics.jsonl over the epochs; `columns` maps a column to its class of line.

    Shares (everything but a loss) get the range 0 to 1; the best epoch is marked.
    """
    lines = {kind: _points(epochs, column) for column, kind in columns.items()}
    values = [y for points in lines.values() for _, y in points]
    if not values:
        return None
    last = max(x for points in lines.values() for x, _ in points)
    is_loss = any(column.endswith("loss") for column in columns)
    bounds = (0.0, max(values) * 1.05) if is_loss else (0.0, 1.0)
    axes = Axes(
        (1, last),
        bounds,
        x_label="epoch",
        y_label=y_label,
        title=f"{y_label} over {int(last)} epochs",
        x_ticks=_epoch_ticks(int(last)),
        y_ticks=None if is_loss else SHARE_TICKS,
    )
    if best is not None and 1 <= best <= last:
        axes.line([(best, bounds[0]), (best, bounds[1])], "best")
        right = best < 0.8 * last
        axes.text(
            best,
            bounds[1],
            f" best epoch: {best} ",
            "note best-note",
            "start" if right or last == 1 else "end",
        )
    for kind, points in lines.items():
        if points:
            axes.line(points, kind)
            axes.dot(*points[-1], kind, f"epoch {int(points[-1][0])}: {points[-1][1]:.3f}")
    return axes.svg()


def throughput(epochs: Sequence[Mapping[str, Any]]) -> str | None:
    """Samples per second in each epoch."""
    points = _points(epochs, "samples_per_second")
    if not points:
        return None
    last = max(x for x, _ in points)
    axes = Axes(
        (0.4, last + 0.6),
        (0, max(y for _, y in points) * 1.1 or 1),
        x_label="epoch",
        y_label="samples/s",
        title="Samples per second in each epoch",
        x_ticks=_epoch_ticks(int(last)),
        height=220,
    )
    for epoch, speed in points:
        axes.bar(epoch, speed, 0.7, "s1", f"epoch {int(epoch)}: {speed:.2f} samples/s")
    return axes.svg()


def learning_rate(epochs: Sequence[Mapping[str, Any]]) -> str | None:
    """The learning rate at the end of each epoch."""
    points = _points(epochs, "learning_rate")
    if not points:
        return None
    last = max(x for x, _ in points)
    axes = Axes(
        (1, last),
        (0, max(y for _, y in points) * 1.1 or 1),
        x_label="epoch",
        y_label="learning rate",
        title="Learning rate over epochs",
        x_ticks=_epoch_ticks(int(last)),
        height=220,
    )
    axes.line(points, "s3")
    for epoch, rate in points:
        axes.dot(epoch, rate, "s3", f"epoch {int(epoch)}: {rate:.3g}", radius=2.4)
    return axes.svg()


def roc(found: Predictions, baseline: Mapping[int, Sequence[float]]) -> str | None:
    """ROC curves: two classes, the network (and the linear baseline); more, each class against the rest.

    Args:
        found: the network's predictions.
        baseline: probabilities of the linear model by row; used when it has every row.
    """
    axes = Axes(
        (0, 1),
        (0, 1),
        x_label="false positive rate",
        y_label="true positive rate",
        title="Receiver operating characteristic on the held-out subjects",
        x_ticks=SHARE_TICKS,
        y_ticks=SHARE_TICKS,
        width=360,
        height=340,
    )
    axes.line([(0, 0), (1, 1)], "chance")
    binary = len(found.classes) == 2
    drawn = False
    if binary and baseline:
        other = np.array([baseline[int(row)][1] for row in found.rows])
        drawn = _roc_line(axes, found.true == 1, other, "s2")
    for number_of_class in [1] if binary else range(len(found.classes)):
        truth, share = found.true == number_of_class, found.probabilities[:, number_of_class]
        kind = "s1" if binary else f"s{1 + number_of_class % 6}"
        drawn = _roc_line(axes, truth, share, kind) or drawn
    return axes.svg() if drawn else None


def intervals(bars: Sequence[tuple[str, float, Sequence[float] | None, str]], label: str) -> str:
    """Estimates with intervals on one scale from 0 to 1, a line each: (name, value, interval, kind)."""
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
        axes.text(0, y + 0.28, name, "label")
        axes.text(1, y + 0.28, f"{value:.2f}", "label", "end")
    return axes.svg()


def probabilities(found: Predictions) -> str | None:
    """For two classes: every subject's probability of the second one, by true class."""
    if len(found.classes) != 2:
        return None
    axes = Axes(
        (0, 1),
        (0, 2),
        x_label=f"predicted probability of {found.classes[1]}",
        y_label="true class",
        title=f"Predicted probability of {found.classes[1]} for every held-out subject, by true class",
        x_ticks=SHARE_TICKS,
        y_ticks=(),
        width=360,
        height=340,
    )
    axes.line([(0.5, 0), (0.5, 2)], "chance")
    for k, name in enumerate(found.classes):
        axes.text(0, k + 0.86, f" {name}", "label")
        members = np.flatnonzero(found.true == k)
        for order, i in enumerate(members[np.argsort(found.probabilities[members, 1])]):
            # A fixed zigzag: dots of equal probability lie beside each other, not on top.
            y = k + 0.12 + 0.13 * (order % 5)
            p = float(found.probabilities[i, 1])
            kind = "right" if found.predicted[i] == k else "wrong"
            axes.dot(p, y, kind, f"{found.subjects[i]}: {p:.2f}", radius=4)
    return axes.svg()


def reliability(found: Predictions, bins: int = 5) -> str | None:
    """How often the network is right where it is about equally sure, for 20 subjects or more."""
    if len(found.true) < 20:
        return None
    lowest = 1 / len(found.classes)
    sure, right = found.probabilities.max(axis=1), found.predicted == found.true
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
    edges = np.linspace(lowest, 1, bins + 1)
    place = np.clip(np.digitize(sure, edges) - 1, 0, bins - 1)
    points: list[Point] = []
    for b in range(bins):
        inside = place == b
        if not inside.any():
            continue
        x, y = float(sure[inside].mean()), float(right[inside].mean())
        low, high = wilson(int(right[inside].sum()), int(inside.sum()))
        axes.line([(x, low), (x, high)], "s1 whisker")
        axes.dot(x, y, "s1", f"{int(inside.sum())} subjects: {y:.2f} right", radius=5)
        points.append((x, y))
    axes.line(points, "s1")
    return axes.svg()


def _roc_line(axes: Axes, truth: np.ndarray, share: np.ndarray, kind: str) -> bool:
    if truth.all() or not truth.any():
        return False
    false_positive, true_positive, _ = roc_curve(truth, share, drop_intermediate=False)
    points = [(float(x), float(y)) for x, y in zip(false_positive, true_positive, strict=True)]
    axes.area([*points, (1.0, 0.0)], kind)
    axes.line(points, kind)
    return True


def _points(epochs: Sequence[Mapping[str, Any]], column: str) -> list[Point]:
    pairs = ((number(row.get("epoch")), number(row.get(column))) for row in epochs)
    return [(epoch, value) for epoch, value in pairs if epoch is not None and value is not None]


def _epoch_ticks(last: int, most: int = 10) -> list[int]:
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**4, 10**6) if last / s <= most)
    return sorted({1, *range(step, last + 1, step)} - ({2} if step == 2 and last > 12 else set()))
