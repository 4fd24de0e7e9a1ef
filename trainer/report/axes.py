"""A small plotter: a frame with ticks, and marks in data coordinates, written as SVG.

Why not matplotlib for the page: text stays text, colours are the page's own (so that a chart is right in
light, dark and on paper), and a chart takes 3 kB instead of 60.
`paper.py` draws the same marks with matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

Point = tuple[float, float]

LEFT, RIGHT, TOP, BOTTOM = 60, 14, 14, 40


@dataclass(frozen=True)
class Mark:
    """One thing drawn.

    Attributes:
        shape: what it is.
        points: in data coordinates; a bar has its lower left and upper right corner.
        kind: the page's classes, which give colour and width.
        words: the text itself, or what shows when the mark is pointed at.
        anchor: where a text begins, as in SVG.
        radius: of a dot, in units of the view box.
        opacity: of a bar, or None for the page's own.
    """

    shape: Literal["line", "area", "dot", "bar", "text"]
    points: tuple[Point, ...]
    kind: str
    words: str = ""
    anchor: str = "start"
    radius: float = 3.2
    opacity: float | None = None


class Axes:
    """One chart; `x` and `y` are the ranges of the data it shows.

    Args:
        x, y: lowest and highest value shown.
        x_label, y_label: what the axes are.
        title: what a screen reader says the chart is.
        width, height: in the units of its view box; the page scales it.
        x_ticks, y_ticks: values to mark; chosen where None.
        x_names, y_names: words at `x_ticks` and `y_ticks` instead of the values; named rows have no grid.
        left: units between the left edge and the data, where words at `y_ticks` are.
    """

    def __init__(
        self,
        x: Point,
        y: Point,
        *,
        x_label: str,
        y_label: str,
        title: str,
        width: int = 460,
        height: int = 300,
        x_ticks: Sequence[float] | None = None,
        y_ticks: Sequence[float] | None = None,
        x_names: Sequence[str] | None = None,
        y_names: Sequence[str] | None = None,
        left: int = LEFT,
    ) -> None:
        self.x, self.y = _widened(x), _widened(y)
        self.x_label, self.y_label, self.title = x_label, y_label, title
        self.width, self.height, self.left = width, height, left
        self.x_ticks = list(ticks(*self.x) if x_ticks is None else x_ticks)
        self.y_ticks = list(ticks(*self.y) if y_ticks is None else y_ticks)
        self.x_names = [short(value) for value in self.x_ticks] if x_names is None else list(x_names)
        self.y_names = [short(value) for value in self.y_ticks] if y_names is None else list(y_names)
        self.gridded = y_names is None
        self.marks: list[Mark] = []

    def at(self, x: float, y: float) -> Point:
        """Return where a data point lies in the view box."""
        (x0, x1), (y0, y1) = self.x, self.y
        return (
            self.left + (x - x0) / (x1 - x0) * (self.width - self.left - RIGHT),
            self.height - BOTTOM - (y - y0) / (y1 - y0) * (self.height - TOP - BOTTOM),
        )

    def line(self, points: Sequence[Point], kind: str) -> None:
        """Add a line through points, drawn in the page's class `kind`."""
        if len(points) == 1:
            self.dot(*points[0], kind)
        self.marks.append(Mark("line", tuple(points), kind))

    def area(self, points: Sequence[Point], kind: str) -> None:
        """Add the area inside of a line of points."""
        self.marks.append(Mark("area", tuple(points), kind))

    def dot(self, x: float, y: float, kind: str, tip: str = "", radius: float = 3.2) -> None:
        """Add a dot, with a text that shows when it is pointed at."""
        self.marks.append(Mark("dot", ((x, y),), kind, tip, radius=radius))

    def bar(self, x: float, y: float, width: float, kind: str, tip: str = "") -> None:
        """Add a bar from the bottom to `y`, centred at `x`."""
        self.box((x - width / 2, self.y[0]), (x + width / 2, y), kind, tip)

    def box(self, low: Point, high: Point, kind: str, tip: str = "", opacity: float | None = None) -> None:
        """Add a filled rectangle between two corners."""
        self.marks.append(Mark("bar", (low, high), kind, tip, opacity=opacity))

    def text(self, x: float, y: float, words: str, kind: str = "note", anchor: str = "start") -> None:
        """Add words at a data point."""
        self.marks.append(Mark("text", ((x, y),), kind, words, anchor))

    def svg(self) -> str:
        """Return the chart as an `<svg>` element."""
        across, down = (self.left + self.width - RIGHT) / 2, (TOP + self.height - BOTTOM) / 2
        parts = [
            *self._frame(),
            _text(across, self.height - 6, self.x_label, "axis", "middle"),
            f'<text class="axis" text-anchor="middle" transform="translate(12 {down:.1f}) rotate(-90)">'
            f"{escape(self.y_label)}</text>",
            *(self._drawn(mark) for mark in self.marks),
        ]
        return (
            f'<svg class="chart" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(self.title)}">{"".join(parts)}</svg>'
        )

    def _drawn(self, mark: Mark) -> str:
        places = [self.at(*point) for point in mark.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        tip = f"<title>{escape(mark.words)}</title>" if mark.words else ""
        x, y = places[0]
        if mark.shape == "line":
            return f'<polyline class="line {mark.kind}" points="{path}"/>'
        if mark.shape == "area":
            return f'<polygon class="area {mark.kind}" points="{path}"/>'
        if mark.shape == "dot":
            return (
                f'<circle class="dot {mark.kind}" cx="{x:.1f}" cy="{y:.1f}" r="{mark.radius}">{tip}</circle>'
            )
        if mark.shape == "bar":
            right, top = places[1]
            shade = "" if mark.opacity is None else f' style="opacity:{mark.opacity:.2f}"'
            return (
                f'<rect class="bar {mark.kind}"{shade} x="{x:.1f}" y="{top:.1f}" '
                f'width="{max(right - x, 1):.1f}" height="{max(y - top, 0):.1f}">{tip}</rect>'
            )
        return _text(x, y, mark.words, mark.kind, mark.anchor)

    def _frame(self) -> list[str]:
        parts = []
        (left, bottom), (right, _) = self.at(self.x[0], self.y[0]), self.at(self.x[1], self.y[0])
        for value, name in zip(self.y_ticks, self.y_names, strict=True):
            _, y = self.at(self.x[0], value)
            if self.gridded:
                parts.append(f'<path class="gridline" d="M{left:.1f} {y:.1f}H{right:.1f}"/>')
            parts.append(_text(left - 6, y + 3.5, name, "tick", "end"))
        for value, name in zip(self.x_ticks, self.x_names, strict=True):
            x, _ = self.at(value, self.y[0])
            parts.append(_text(x, bottom + 15, name, "tick", "middle"))
        return [*parts, f'<path class="base" d="M{left:.1f} {bottom:.1f}H{right:.1f}"/>']


def _text(x: float, y: float, words: str, kind: str, anchor: str) -> str:
    return f'<text class="{kind}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round values (1, 2 or 5 times a power of ten) inside of a range, at most `most`."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if (high - low) / (factor * power) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """Return a number in few characters: 0.25, 12, 2.5e-4."""
    if value and abs(value) < 1e-3:
        return f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")
    return f"{value:.4g}"


def _widened(bounds: Point) -> Point:
    """A range that is never empty."""
    low, high = bounds
    return (low, high) if high > low else (low - 0.5, low + 0.5)
