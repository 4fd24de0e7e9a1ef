"""What a page says of predictions: figures in large, a verdict in words, charts, a table of scans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.metrics.subjects import TOO_FEW
from trainer.report.figure import Figure
from trainer.report.predictions import Scans
from trainer.report.story import number


@dataclass(frozen=True)
class Tile:
    """One number in large.

    Attributes:
        name: what it is.
        value: as words.
        range: its interval as words, or nothing.
        small: whether it comes after the main ones.
    """

    name: str
    value: str
    range: str = ""
    small: bool = True


@dataclass(frozen=True)
class ScanTable:
    """The table of all scans: (name, whether numbers) of each column, and the cells as words."""

    header: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, ...], ...]
    hint: str


@dataclass(frozen=True)
class Judgement:
    """How good the predictions of a split are.

    Attributes:
        metrics: as `trainer.metrics` gives them.
        tiles: the main numbers.
        verdict: what they say, in a sentence or two that claim no more than they can; or None.
        figures: charts.
        scans: all of them, the worst first.
        hidden: charts that go to the folder of figures and not on the page, which has a table instead.
        confusion: for classes, each count with its share of the true class; else None.
        classes: names to the confusion matrix.
    """

    metrics: dict[str, Any]
    tiles: tuple[Tile, ...]
    verdict: str | None
    figures: tuple[Figure, ...]
    scans: ScanTable
    hidden: tuple[Figure, ...] = field(default=())
    confusion: list[list[tuple[int, float]]] | None = None
    classes: tuple[str, ...] = field(default=())


def share(value: Any, places: int = 2) -> str:
    """Return a number with two decimals, or a dash."""
    known = number(value)
    return "–" if known is None else f"{known:.{places}f}"


def pair(bounds: Any) -> tuple[float, float] | None:
    """Return two finite numbers, or None for anything else."""
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2:
        return None
    low, high = number(bounds[0]), number(bounds[1])
    return None if low is None or high is None else (low, high)


def interval(bounds: Any, places: int = 2) -> str:
    """Return an interval as 'a to b', or nothing."""
    ends = pair(bounds)
    if ends is None:
        return ""
    # All resamples alike, as runs of older versions tell it: that is no certainty, so no interval.
    low, high = ends
    return f"{low:.{places}f} to {high:.{places}f}" if low < high else TOO_FEW


def told_interval(metrics: Mapping[str, Any], name: str) -> str:
    """Return the interval of a figure in words; nothing for a figure that is not known or never has one."""
    key = f"{name}_interval"
    if key not in metrics or number(metrics.get(name)) is None:
        return ""
    return interval(metrics[key]) or TOO_FEW


def scan_header(scans: Scans) -> list[tuple[str, bool]]:
    """Return the columns that say which scan it is: a session only where one is known."""
    return [("Subject", False), *([("Session", False)] if any(scans.sessions) else [])]


def scan_cells(scans: Scans) -> list[tuple[str, ...]]:
    """Return the cells of `scan_header` for every scan."""
    if any(scans.sessions):
        return list(zip(scans.subjects, scans.sessions, strict=True))
    return [(subject,) for subject in scans.subjects]


def kept(figures: Sequence[Figure | None]) -> tuple[Figure, ...]:
    """Return those that could be drawn."""
    return tuple(figure for figure in figures if figure is not None)
