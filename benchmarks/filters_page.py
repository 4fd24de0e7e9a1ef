"""The figures of `filters_unequal.py` as tables, as a page of the docs, and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.bench import hardware
from trainer.report.axes import Axes
from trainer.report.paper import write_png

Row = dict[str, Any]
PUBLISHED = {"four CPUs": 3.28, "three GPUs": 2.45}
_ROOM_ABOVE = 0.15


def seconds(row: Row) -> float:
    """Return the median seconds of a step."""
    return float(statistics.median(row["steps_s"]))


def alone(rows: Sequence[Row], together: Row) -> list[float]:
    """Return seconds per step of each device of a row by itself."""
    found = {
        row["quotas"][0]: seconds(row)
        for row in rows
        if row["way"] is None and row["network"] == together["network"]
    }
    return [found[quota] for quota in together["quotas"]]


def speed_ups(rows: Sequence[Row], row: Row) -> dict[str, float]:
    """Return how much faster all devices are than the slowest, the mean and the fastest one."""
    each, own = alone(rows, row), seconds(row)
    return {
        "slowest": max(each) / own,
        "mean": statistics.mean(each) / own,
        "fastest": min(each) / own,
    }


def loss_differs(rows: Sequence[Row], row: Row) -> float:
    """Return the largest difference of a step's loss from that of one process, relative to it."""
    one = next(other for other in rows if other["way"] is None and other["network"] == row["network"])
    return max(abs(a - b) / abs(a) for a, b in zip(one["losses"], row["losses"], strict=True))


def tables(rows: Sequence[Row]) -> list[str]:
    """Return a table in Markdown for each set of devices."""
    lines = []
    for quotas in _sets(rows):
        lines += [
            f"### Devices {' : '.join(f'{one:g}' for one in quotas)}",
            "",
            "| network | divided | s per step (lowest, highest) | against slowest | mean | fastest | "
            "imbalance | sent by all, MB | losses differ by |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for row in (one for one in rows if one["way"] and one["quotas"] == quotas):
            ups = " | ".join(f"{value:.2f}" for value in speed_ups(rows, row).values())
            planned = row["planned"]
            imbalance = "" if planned is None else f"{planned['imbalance']:.2f}"
            lines.append(
                f"| {row['network']} | {', '.join(row['way'])} "
                f"| {seconds(row):.3g} ({min(row['steps_s']):.3g}, {max(row['steps_s']):.3g}) "
                f"| {ups} | {imbalance} | {sum(row['sent_per_update']) / 1e6:.1f} "
                f"| {loss_differs(rows, row):.0e} |"
            )
        lines.append("")
        each = {row["network"]: alone(rows, row) for row in rows if row["quotas"] == quotas}
        lines += ["Seconds per step of each device alone:", ""]
        lines += [f"- {name}: {', '.join(f'{s:.3g}' for s in found)}" for name, found in each.items()]
        lines.append("")
    return lines[:-1]


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Return what the figures say of each claim, as items of a list."""
    found = []
    for quotas in _sets(rows):
        by_name = _by_network(rows, quotas)
        named = " : ".join(f"{one:g}" for one in quotas)
        proportional = [ways["master", "speed"] / ways["master", "equal"] for ways in by_name.values()]
        found.append(
            f"- {named}: filters in proportion to speed take {_range(proportional)} of the time of equal "
            f"ones; {sum(p < 1 for p in proportional)} of {len(proportional)} networks are faster."
        )
        aware = [
            ways["master", "bandwidth"] / min(ways["master", "equal"], ways["master", "speed"])
            for ways in by_name.values()
        ]
        found.append(f"- {named}: by bandwidth, {_range(aware)} of the time of the better of these two.")
        growing = [
            speed_ups(rows, row)["slowest"]
            for name in by_name
            for row in rows
            if ":" in name
            and row["network"] == name
            and row["quotas"] == quotas
            and row["way"] == ["master", "bandwidth"]
        ]
        if len(growing) > 1:
            said = ", ".join(f"{one:.2f}" for one in growing)
            grows = "it grows" if growing == sorted(growing) else "it does not always grow"
            found.append(
                f"- {named}: speed-up against the slowest device, by size of network: {said}; {grows}."
            )
    worst = max(loss_differs(rows, row) for row in rows if row["way"])
    found.append(f"- Losses of every step are those of one process to {worst:.0e} of their value.")
    return found


_PAGE = """# Filters divided over unequal devices

[`train.strategy=filters`](../how-to/filters.md) after Marques, Falcao and Alexandre
([arXiv 1712.02546](https://arxiv.org/abs/1712.02546)), on the four networks that they name and on a network
for volumes. They report a speed-up of {told}, for 500:1500, on devices that
we do not have; what their networks have besides two convolutions of so many kernels is not known to us.
Ours is the registered network `conv2` on images of 32x32x3, and `vgg` of width 16 on volumes of 48³.
{batch} samples per step, SGD, one thread per rank.

**Emulated devices**: ranks on one machine, each on one core with a quota of its time, such as 1, 0.5 and
0.25. They have the same memory, and their link is that memory: faster than a network. A speed-up is the
time of a device that trains the whole network alone over that of all devices together, given for the
slowest, the mean and the fastest device.

{drawn}## What the figures say

{verdicts}

Why losses differ: SGD first makes those of `conv2` and `vgg` explode, which makes a last digit large. `vgg`
has batch norm, whose sums lose digits in Keras: on processors, it adds float32 one voxel after the other.
Divided networks do not: their losses agree with each other, and with one process that adds up as they do.

How speed-ups change with the size of the network: published is that they grow. Here the link is memory, and
convolutions are most of the smallest network's time already; so they do not.

## Figures

`imbalance` is that of computing convolutions, predicted: slowest over mean, minus 1. Seconds are medians of
{steps} steps.

{tables}

Measured on {cores} cores of {cpu} by one command:

<!-- not run: takes a quarter of an hour, and cgroups need root -->
```sh
sudo .venv/bin/python benchmarks/filters_unequal.py \\
    --page filters.md --picture filters.png
```
"""


def page(rows: Sequence[Row], picture: Path | None) -> str:
    """Return the page."""
    machine = hardware.here()
    return _PAGE.format(
        told=" and ".join(f"{speed} with {devices}" for devices, speed in PUBLISHED.items()),
        batch=rows[0]["batch"],
        drawn=f"![Speed-up against the slowest device](images/{picture.name})\n\n" if picture else "",
        verdicts="\n".join(verdicts(rows)),
        steps=len(rows[0]["steps_s"]),
        tables="\n".join(tables(rows)),
        cores=machine["cores"],
        cpu=machine["cpu"],
    )


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the speed-up against the slowest device of each network, for each set of devices."""
    names = list(dict.fromkeys(row["network"] for row in rows))
    sets = _sets(rows)
    found = {
        (tuple(quotas), name): speed_ups(rows, row)["slowest"]
        for quotas in sets
        for name in names
        for row in rows
        if row["network"] == name and row["quotas"] == quotas and row["way"] == ["master", "bandwidth"]
    }
    most = max(*found.values(), *PUBLISHED.values()) * (1 + _ROOM_ABOVE)
    # Beside the last network there is room for words.
    end = len(names) + 1.9
    axes = Axes(
        (0.5, end),
        (0, most),
        x_label="network",
        y_label="speed-up against the slowest device",
        title="Speed-up of filters divided over devices, by network",
        x_ticks=range(1, len(names) + 1),
        x_names=names,
    )
    for number, quotas in enumerate(sets, start=1):
        points = [
            (place, found[tuple(quotas), name])
            for place, name in enumerate(names, start=1)
            if (tuple(quotas), name) in found
        ]
        axes.line(points, f"s{number}")
        for place, value in points:
            axes.dot(place, value, f"s{number}")
    legend = [
        (f"s{number}", " : ".join(f"{q:g}" for q in quotas)) for number, quotas in enumerate(sets, start=1)
    ]
    for devices, value in PUBLISHED.items():
        axes.line([(0.5, value), (end, value)], "chance")
        axes.text(end, value + most / 100, f"published, {devices}", anchor="end")
    write_png(axes, legend, path)


def _sets(rows: Sequence[Row]) -> list[list[float]]:
    found: list[list[float]] = []
    for row in rows:
        if row["way"] and row["quotas"] not in found:
            found.append(row["quotas"])
    return found


def _by_network(rows: Sequence[Row], quotas: list[float]) -> dict[str, dict[tuple[str, str], float]]:
    found: dict[str, dict[tuple[str, str], float]] = {}
    for row in rows:
        if row["way"] and row["quotas"] == quotas:
            mode, balance = row["way"]
            found.setdefault(row["network"], {})[mode, balance] = seconds(row)
    return found


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"
