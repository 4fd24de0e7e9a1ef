"""Charts of how training went: learning curves, throughput, learning rate; also of several runs at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.report.axes import Axes, Point
from trainer.report.figure import Figure, table
from trainer.report.story import number

SHARE_TICKS = (0, 0.2, 0.4, 0.6, 0.8, 1)
Rows = Sequence[Mapping[str, Any]]

# File, heading, axis, whether it is a share, and per column of metrics.jsonl its name in the legend.
# What is on one axis is one function, but for what the legend names.
_CURVES: tuple[tuple[str, str, str, bool, dict[str, str]], ...] = (
    ("loss", "Loss", "loss", False, {"loss": "training", "val_loss": "validation"}),
    ("cross-entropy", "Cross entropy", "cross entropy", False, {"val_cross_entropy": "validation"}),
    (
        "accuracy",
        "Accuracy and AUC",
        "accuracy, AUC",
        True,
        {"accuracy": "training accuracy", "val_accuracy": "validation accuracy", "val_auc": "validation AUC"},
    ),
    ("error", "Mean absolute error", "MAE", False, {"mae": "training", "val_mae": "validation"}),
    ("dice", "Dice", "mean Dice", True, {"dice": "training", "val_dice": "validation"}),
)


def learning_curves(
    epochs: Rows, best: int | None, unit: str = "", captions: Mapping[str, str] | None = None
) -> list[Figure]:
    """Return a curve for each metric that metrics.jsonl has, the best epoch marked.

    Args:
        epochs: rows of metrics.jsonl.
        best: number of the best epoch, if known.
        unit: of the target of a regression, with a space before it.
        captions: by file: `loss`, `cross-entropy`, `accuracy`, `error`, `dice`.
    """
    figures = []
    for file, heading, label, is_share, columns in _CURVES:
        lines = {column: _points(epochs, column) for column in columns}
        if not any(lines.values()):
            continue
        if file == "cross-entropy" and _is_same(lines["val_cross_entropy"], _points(epochs, "val_loss")):
            continue  # it is what is trained
        kinds = {column: f"s{place + 1}" for place, column in enumerate(columns)}
        y_label = f"{label},{unit}" if file == "error" and unit else label
        axes = _frame(list(lines.values()), y_label, is_share)
        _mark_best(axes, best)
        for column, points in lines.items():
            if points:
                axes.line(points, kinds[column])
                axes.dot(*points[-1], kinds[column], f"epoch {int(points[-1][0])}: {points[-1][1]:.3f}")
        legend = [(kinds[column], words) for column, words in columns.items() if lines[column]]
        kept = [column for column in columns if lines[column]]
        rows = [[row.get("epoch"), *(number(row.get(column)) for column in kept)] for row in epochs]
        caption = (captions or {}).get(file, "")
        numbers = table(["epoch", *kept], rows)
        figures.append(Figure(f"learning-curve-{file}", heading, axes, numbers, tuple(legend), caption))
    return figures


def _is_same(first: Sequence[Point], second: Sequence[Point]) -> bool:
    """Whether two columns hold the same numbers, but for rounding."""
    return len(first) == len(second) and all(
        math.isclose(one, other, rel_tol=1e-5) for (_, one), (_, other) in zip(first, second, strict=True)
    )


def curves_of_runs(runs: Sequence[tuple[str, Rows]], losses: Sequence[str]) -> list[Figure]:
    """Return the validation curves of several runs over each other.

    Of classifications the cross entropy, which is one function whatever each run trains.

    Args:
        runs: name and rows of metrics.jsonl of each.
        losses: what each run trains, in words; where they differ, their losses do not share an axis.
    """
    entropies = any("val_cross_entropy" in row for _, rows in runs for row in rows)
    metrics = (
        ("val_cross_entropy", "Validation cross entropy", False),
        *([] if entropies or len(set(losses)) > 1 else [("val_loss", "Validation loss", False)]),
        ("val_auc", "Validation AUC", True),
        ("val_mae", "Validation MAE", False),
        ("val_dice", "Validation Dice", True),
    )
    figures = []
    for column, heading, is_share in metrics:
        lines = [(name, _points(rows, column)) for name, rows in runs]
        if not any(points for _, points in lines):
            continue
        axes = _frame([points for _, points in lines], heading.removeprefix("Validation "), is_share)
        legend, numbers = [], []
        for place, (name, points) in enumerate(lines):
            kind = f"s{1 + place % 6}"
            if points:
                axes.line(points, kind)
                axes.dot(*points[-1], kind, f"{name}, epoch {int(points[-1][0])}: {points[-1][1]:.3f}")
                legend.append((kind, name))
                numbers += [(name, int(epoch), value) for epoch, value in points]
        file = f"learning-curves-{column.removeprefix('val_').replace('_', '-')}"
        figures.append(Figure(file, heading, axes, table(["run", "epoch", column], numbers), tuple(legend)))
    return figures


def throughput(epochs: Rows) -> Figure | None:
    """Return samples per second in each epoch."""
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
    numbers = table(["epoch", "samples_per_second"], points)
    return Figure(
        "throughput", "Throughput", axes, numbers, caption="Samples per second, all ranks together."
    )


def learning_rate(epochs: Rows) -> Figure | None:
    """Return the learning rate at the end of each epoch."""
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
    numbers = table(["epoch", "learning_rate"], points)
    return Figure("learning-rate", "Learning rate", axes, numbers, caption="At the end of each epoch.")


def _frame(lines: Sequence[Sequence[Point]], y_label: str, is_share: bool) -> Axes:
    """Axes for lines over epochs; shares get the range 0 to 1."""
    values = [y for points in lines for _, y in points]
    last = max(x for points in lines for x, _ in points)
    low = min(0.0, min(values) * 1.05)
    return Axes(
        (1, last),
        (0.0, 1.0) if is_share else (low, max(values) * 1.05),
        x_label="epoch",
        y_label=y_label,
        title=f"{y_label} over {int(last)} epochs",
        x_ticks=_epoch_ticks(int(last)),
        y_ticks=SHARE_TICKS if is_share else None,
    )


def _mark_best(axes: Axes, best: int | None) -> None:
    last = axes.x[1] if axes.x[0] == 1 else 1.0  # a single epoch has a widened axis
    if best is None or not 1 <= best <= last:
        return
    bottom, top = axes.y
    axes.line([(best, bottom), (best, top)], "best")
    right = best < 0.8 * last or last == 1
    axes.text(best, top, f" best epoch: {best} ", "note best-note", "start" if right else "end")


def _points(epochs: Rows, column: str) -> list[Point]:
    pairs = ((number(row.get("epoch")), number(row.get(column))) for row in epochs)
    return [(epoch, value) for epoch, value in pairs if epoch is not None and value is not None]


def _epoch_ticks(last: int, most: int = 10) -> list[int]:
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**4, 10**6) if last / s <= most)
    return sorted({1, *range(step, last + 1, step)} - ({2} if step == 2 and last > 12 else set()))
