"""Samples per second over ranks, by each strategy, as a picture."""

from __future__ import annotations

import math
from pathlib import Path

from trainer.config.strategy import SECTIONS
from trainer.forecast.forecasts import Forecast, Simulation
from trainer.report.axes import Axes, short
from trainer.report.paper import write_png

# Colour, line and marker of each row, the same in every picture; of a strategy of one's own the last one.
KINDS = {label: kind for one in SECTIONS for label, kind in one.lines.items()}
OWN = "s7 marked short cross"


def draw(simulation: Simulation, path: Path) -> None:
    """Write a PNG, both axes in powers of two; dashed: every rank as fast as one alone.

    Raises:
        OSError: it cannot be written.
    """
    rows = [one for one in simulation.rows if isinstance(one, Forecast)]
    ranks = sorted({one.ranks for one in rows})
    ideal = [(one.ranks, one.samples_per_s / one.efficiency) for one in rows]
    rates = [math.log2(rate) for rate in (*(rate for _, rate in ideal), *(one.samples_per_s for one in rows))]
    low, high = math.floor(min(rates)), math.ceil(max(rates))
    axes = Axes(
        (math.log2(ranks[0]) - 0.1, math.log2(ranks[-1]) + 0.1),
        (low, max(high, low + 1)),
        x_label="ranks",
        y_label="samples/s",
        title=f"{simulation.network} on {simulation.cluster}: samples per second over ranks",
        x_ticks=[math.log2(count) for count in ranks],
        x_names=[str(count) for count in ranks],
    )
    step = max(1, math.ceil((axes.y[1] - axes.y[0]) / 7))
    axes.y_ticks = [float(n) for n in range(round(axes.y[0]), round(axes.y[1]) + 1, step)]
    axes.y_names = [_named(2.0**n) for n in axes.y_ticks]
    axes.line([(math.log2(count), math.log2(rate)) for count, rate in sorted(set(ideal))], "chance")
    legend = [("chance", "ideal")]
    for label in dict.fromkeys(one.label for one in rows):
        kind = KINDS.get(label, OWN)
        points = [(math.log2(one.ranks), math.log2(one.samples_per_s)) for one in rows if one.label == label]
        axes.line(points, kind)
        for x, y in points:
            axes.dot(x, y, kind, label)
        legend.append((kind, label))
    write_png(axes, legend, path)


def _named(rate: float) -> str:
    """A power of two, rounded where it is large."""
    for unit, least, scale in (("M", 1e6, 1e6), ("k", 1e4, 1e3)):
        if rate >= least:
            return f"{rate / scale:.0f} {unit}"
    return short(rate)
