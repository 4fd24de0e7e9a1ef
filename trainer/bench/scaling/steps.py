"""What a step is made of: stacked bars, one for each strategy and number of ranks."""

from __future__ import annotations

from trainer.bench.scaling.charts import Named
from trainer.bench.scaling.summary import Point
from trainer.report.axes import Axes
from trainer.report.figure import Figure, table

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


def _parts(point: Point) -> dict[str, float]:
    return {part: point.timeline[part] for part in STACKED if point.timeline.get(part)}
