"""The plots of a scaling study: speed-up, efficiency, throughput, bytes, accuracy against time, staleness."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from trainer.bench.scaling.summary import Curve, LinePoint, TrainingCurve
from trainer.report.axes import Axes, short
from trainer.report.figure import Figure, table

MB = 1e6
IDEAL = "chance"
Value = Callable[[LinePoint], float | None]


def colour(place: int) -> str:
    """Return the CSS class of line number `place`, from 0; after six they come again, thinner."""
    return f"s{1 + place % 6}" + (" faint" if place % 12 >= 6 else "")


def file_name(*words: object) -> str:
    """Return words as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(map(str, words)).lower()).strip("-")


Named = Sequence[tuple[str, str, Curve]]  # words for the legend, colour, what was measured


def speed_up(name: str, heading: str, curves: Named) -> Figure | None:
    """Draw speed-up over ranks, both in powers of two; the ideal is dashed."""
    return _figure(name, heading, curves, "speed-up", lambda p: p.speed_up, doubling=True, ideal=lambda n: n)


def efficiency(name: str, heading: str, curves: Named) -> Figure | None:
    """Draw efficiency over ranks; the ideal, 1, is dashed."""
    return _figure(name, heading, curves, "efficiency", lambda p: p.efficiency, ideal=lambda n: 1)


def throughput(name: str, heading: str, curves: Named) -> Figure | None:
    """Draw samples per second of all ranks together, over ranks, both in powers of two."""
    return _figure(name, heading, curves, "samples/s", lambda p: p.samples_per_second, doubling=True)


def traffic(name: str, heading: str, curves: Named) -> Figure | None:
    """Draw MB per step sent or received by the busiest host, whichever is more; predictions are dashed."""

    def measured(point: LinePoint) -> float | None:
        return _more(point.busiest("sent"), point.busiest("received"))

    def predicted(point: LinePoint) -> float | None:
        return _more(point.predicted("sent"), point.predicted("received"))

    return _figure(name, heading, curves, "MB per step", measured, beside=predicted)


def _more(first: float | None, second: float | None) -> float | None:
    known = [value / MB for value in (first, second) if value is not None]
    return max(known) if known else None


def _figure(
    name: str,
    heading: str,
    curves: Named,
    y_label: str,
    value: Value,
    *,
    doubling: bool = False,
    ideal: Callable[[int], float] | None = None,
    beside: Value | None = None,
) -> Figure | None:
    """Draw lines over ranks; None where nothing was measured.

    Args:
        name: of the files.
        heading: on the page.
        curves: the lines.
        y_label: what is plotted.
        value: of a point.
        doubling: whether the vertical axis is in powers of two, as the horizontal one is.
        ideal: a dashed line through its values.
        beside: a second value of each point, dashed.
    """
    lines = [
        (
            words,
            kind,
            [(p, v) for p in curve.points if (v := value(p)) is not None and (v > 0 or not doubling)],
        )
        for words, kind, curve in curves
    ]
    lines = [line for line in lines if line[2]]
    if not lines:
        return None
    ranks = sorted({point.ranks for _, _, points in lines for point, _ in points})
    values = [v for _, _, points in lines for _, v in points]
    if beside is not None:
        values += [v for _, _, points in lines for p, _ in points if (v := beside(p)) is not None]
    if ideal is not None:
        values += [ideal(n) for n in ranks]

    def y(v: float) -> float:
        return math.log2(v) if doubling else v

    low = math.floor(y(min(values))) if doubling else 0.0
    high = math.ceil(y(max(values)) - 1e-9) if doubling else max(values) * 1.05
    axes = Axes(
        (math.log2(ranks[0]) - 0.1, math.log2(ranks[-1]) + 0.1),
        (low, high),
        x_label="ranks",
        y_label=y_label,
        title=f"{heading}: {y_label} over ranks",
        x_ticks=[math.log2(n) for n in ranks],
        x_names=[str(n) for n in ranks],
    )
    if doubling:
        step = max(1, math.ceil((axes.y[1] - axes.y[0]) / 7))
        axes.y_ticks = [float(n) for n in range(math.ceil(axes.y[0]), math.floor(axes.y[1]) + 1, step)]
        axes.y_names = [short(2.0**n) for n in axes.y_ticks]
    if ideal is not None:
        axes.line([(math.log2(n), y(ideal(n))) for n in ranks], IDEAL)
    legend = [(kind, words) for words, kind, _ in lines] if len(lines) > 1 else []
    numbers: list[tuple[object, ...]] = []
    for words, kind, points in lines:
        axes.line([(math.log2(p.ranks), y(v)) for p, v in points], kind)
        for point, v in points:
            axes.dot(math.log2(point.ranks), y(v), kind, f"{words}, {point.ranks} ranks: {v:.3g} {y_label}")
        expected = [(p, v) for p, _ in points if beside is not None and (v := beside(p)) is not None]
        if expected:
            axes.line([(math.log2(p.ranks), y(v)) for p, v in expected], IDEAL)
        known = {p.ranks: v for p, v in expected}
        numbers += [(words, p.ranks, v, known.get(p.ranks)) for p, v in points]
    header = ["strategy", "ranks", y_label, *(["predicted"] if beside else [])]
    rows = [row if beside else row[:3] for row in numbers]
    if beside is not None and any(row[3] is not None for row in numbers):
        legend.append((IDEAL, "predicted"))
    elif ideal is not None:
        legend.append((IDEAL, "ideal"))
    return Figure(name, heading, axes, table(header, rows), tuple(legend))


_SCORES = (
    ("val_accuracy", "validation accuracy"),
    ("val_dice", "validation Dice"),
    ("accuracy", "training accuracy"),
    ("dice", "training Dice"),
)


def accuracy(name: str, heading: str, trainings: Sequence[tuple[str, str, TrainingCurve]]) -> list[Figure]:
    """Draw score and validation loss against seconds of training, evaluation not counted.

    Args:
        name: of the files.
        heading: on the page.
        trainings: words for the legend, colour, what was measured.
    """
    figures = []
    score = next((pair for pair in _SCORES if any(pair[0] in t.row.curve[0] for _, _, t in trainings)), None)
    for column, label in filter(None, (score, ("val_loss", "validation loss"))):
        lines = [
            (words, kind, [(p["seconds"], p[column]) for p in t.row.curve if p.get(column) is not None])
            for words, kind, t in trainings
        ]
        lines = [line for line in lines if line[2]]
        if not lines:
            continue
        values = [v for _, _, points in lines for _, v in points]
        axes = Axes(
            (0.0, max(s for _, _, points in lines for s, _ in points) * 1.02),
            (0.0, 1.0 if column != "val_loss" else max(values) * 1.05),
            x_label="seconds of training",
            y_label=label,
            title=f"{heading}: {label} against seconds of training",
        )
        for words, kind, points in lines:
            axes.line(points, kind)
            axes.dot(*points[-1], kind, f"{words}: {points[-1][1]:.3f} after {points[-1][0]:.1f} s")
        rows = [(words, s, v) for words, _, points in lines for s, v in points]
        legend = tuple((kind, words) for words, kind, _ in lines)
        heading_of = f"{heading}: {label}"
        file = file_name(name, column)
        figures.append(Figure(file, heading_of, axes, table(["training", "seconds", column], rows), legend))
    return figures


def staleness(name: str, heading: str, trained: Sequence[tuple[str, str, TrainingCurve]]) -> Figure | None:
    """Share of updates by staleness, side by side for each training; None where none was asynchronous.

    Args:
        name: of the files.
        heading: on the page.
        trained: words for the legend, colour, what was measured; `facts["staleness"]["updates"]` of its row
            is the number of updates by staleness.
    """
    counted = []
    for words, kind, training in trained:
        updates = (training.row.facts.get("staleness") or {}).get("updates")
        if updates:
            counted.append((words, kind, {int(stale): int(count) for stale, count in updates.items()}))
    if not counted:
        return None
    last = max(max(updates) for _, _, updates in counted)
    shares = [(w, k, {s: n / sum(u.values()) for s, n in u.items()}) for w, k, u in counted]
    axes = Axes(
        (-0.5, last + 0.5),
        (0.0, max(max(share.values()) for _, _, share in shares) * 1.1),
        x_label="versions that an update was behind",
        y_label="share of updates",
        title=f"{heading}: share of updates by staleness",
    )
    axes.x_ticks = [float(s) for s in range(0, last + 1, max(1, -(-last // 10)))]
    axes.x_names = [f"{s:g}" for s in axes.x_ticks]
    width = 0.8 / len(shares)
    rows = []
    for place, (words, kind, share) in enumerate(shares):
        for stale, part in sorted(share.items()):
            centre = stale - 0.4 + (place + 0.5) * width
            axes.bar(centre, part, width * 0.9, kind, f"{words}: {part:.1%} of updates are {stale} behind")
            rows.append((words, stale, counted[place][2][stale]))
    legend = tuple((kind, words) for words, kind, _ in shares)
    return Figure(name, heading, axes, table(["training", "staleness", "updates"], rows), legend)


# In the order in which a step does them; what is overlapped lies within forward and backward.
STACKED = {
    "input_wait": ("s4", "input"),
    "forward": ("s1", "forward"),
    "backward": ("s6", "backward"),
    "exposed": ("s2", "communication, exposed"),
    "update": ("s3", "update"),
    "other": ("s5", "other"),
}
_MOST_BARS = 16


def breakdown(name: str, heading: str, curves: Named) -> Figure | None:
    """Draw seconds per step by part; None where none was measured.

    With several strategies, a letter over each bar says which one it is. The largest numbers of ranks are
    kept where there are too many bars.
    """
    bars = [
        (curve.line.strategy, point) for _, _, curve in curves for point in curve.points if point.timeline
    ]
    if not bars:
        return None
    strategies = list(dict.fromkeys(strategy for strategy, _ in bars))
    ranks = sorted({point.ranks for _, point in bars})
    ranks = ranks[-max(1, _MOST_BARS // len(strategies)) :]
    bars = [(strategy, point) for strategy, point in bars if point.ranks in ranks]
    highest = max(sum(_parts(point).values()) for _, point in bars)
    width = 1 / (len(strategies) + 1)
    axes = Axes(
        (0, len(ranks)),
        (0, highest * 1.12),
        x_label="ranks",
        y_label="seconds per step",
        title=f"{heading}: seconds per step by part",
        x_ticks=[place + 0.5 for place in range(len(ranks))],
        x_names=[str(n) for n in ranks],
    )
    letters = dict(zip(strategies, "ABCDEFGHIJKLMNOPQRSTUVWXYZ", strict=False))
    numbers = []
    for strategy, point in bars:
        centre = ranks.index(point.ranks) + (strategies.index(strategy) + 1) * width
        bottom = 0.0
        for part, seconds in _parts(point).items():
            kind, words = STACKED[part]
            tip = f"{strategy}, {point.ranks} ranks: {words} {seconds:.4f} s"
            left, right = centre - width * 0.42, centre + width * 0.42
            axes.box((left, bottom), (right, bottom + seconds), kind, tip)
            bottom += seconds
            numbers.append((strategy, point.ranks, part, seconds))
        if (hidden := point.timeline.get("overlapped")) is not None:
            numbers.append((strategy, point.ranks, "overlapped", hidden))
        if len(strategies) > 1:
            axes.text(centre, bottom + highest * 0.02, letters.get(strategy, ""), "note", "middle")
    parts = {part for _, point in bars for part in _parts(point)}
    legend = tuple((f"{kind} block", words) for part, (kind, words) in STACKED.items() if part in parts)
    said = "; ".join(f"{letters[s]}: {s}" for s in strategies if s in letters) if len(strategies) > 1 else ""
    columns = ["strategy", "ranks", "part", "seconds"]
    return Figure(name, heading, axes, table(columns, numbers), legend, caption=said)


def _parts(point: LinePoint) -> dict[str, float]:
    return {part: point.timeline[part] for part in STACKED if point.timeline.get(part)}
