"""A simulation as tables for people, 80 columns wide."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from cingulum.cli import sizes
from trainer.forecast.forecasts import Forecast, RefusedForecast, Simulation

_COLUMNS = ("step", "samples/s", "eff.", "sent", "memory", "epoch", "energy", "cost")
_SHORT_S = 0.02
_HOUR, _DAY = 3600.0, 86400.0


def show(simulation: Simulation) -> None:
    """Print a table for each number of ranks, and why some strategies are not in it."""
    console = Console(highlight=False, markup=False)
    shape = "x".join(map(str, simulation.sample_shape))
    console.print(
        f"{simulation.network} of {shape}, {simulation.precision}, {simulation.parameters:,} parameters, "
        f"on {simulation.cluster}"
    )
    console.print(f"Seconds are from {simulation.seconds_from}.")
    for ranks in dict.fromkeys(one.ranks for one in simulation.rows):
        console.print()
        rows = [one for one in simulation.rows if one.ranks == ranks]
        possible = [one for one in rows if isinstance(one, Forecast)]
        if possible:
            console.print(_table(possible))
        for line in _refused([one for one in rows if isinstance(one, RefusedForecast)]):
            console.print(line)
    short = [one for one in simulation.rows if isinstance(one, Forecast) and one.step_s < _SHORT_S]
    if short and "estimated" in simulation.seconds_from:
        console.print(
            "\nSteps of less than 20 ms are bound by handing over operations, for which the cluster file has "
            "an estimate: 90 us were measured on an H200 with TensorFlow. `cingulum profile` measures yours."
        )
    lacking = sorted({one.label for one in simulation.rows if isinstance(one, Forecast) and not one.fits})
    if lacking:
        console.print("\n* needs more memory than a device has")


def _table(rows: list[Forecast]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(f"{rows[0].ranks:,} rank(s)", no_wrap=True)
    for title in _COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.label,
            sizes.time(row.step_s),
            rate(row.samples_per_s),
            f"{row.efficiency:.0%}",
            sizes.size(row.sent_bytes),
            sizes.size(row.memory_bytes) + ("" if row.fits else "*"),
            duration(row.epoch_s),
            energy(row.joules),
            "-" if row.dollars is None else f"${row.dollars:.2f}",
        )
    return table


def _refused(rows: list[RefusedForecast]) -> list[str]:
    """A line for each reason."""
    reasons: dict[str, list[str]] = {}
    for one in rows:
        reasons.setdefault(one.reason, []).append(one.label)
    return [f"{', '.join(labels)}: not possible. {reason}" for reason, labels in reasons.items()]


def duration(seconds: float) -> str:
    """Return seconds such as `38.3 ms`, `2.5 h` or `3.1 d`."""
    if seconds >= 2 * _DAY:
        return f"{seconds / _DAY:.1f} d"
    if seconds >= _HOUR:
        return f"{seconds / _HOUR:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 120 else sizes.time(seconds)


def energy(joules: float) -> str:
    """Return joules such as `96 J` or `4.2 kWh`."""
    hours = joules / 3600
    for unit, scale in (("MWh", 1e6), ("kWh", 1e3), ("Wh", 1.0)):
        if hours >= scale:
            return f"{_three(hours / scale)} {unit}"
    return f"{_three(joules)} J"


def rate(per_second: float) -> str:
    """Return samples per second such as `11.1 k`."""
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if per_second >= scale:
            return f"{_three(per_second / scale)} {unit}"
    return _three(per_second)


def _three(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
