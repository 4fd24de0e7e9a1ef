"""A small plotter that writes SVG: a frame with ticks, and marks in data coordinates.

Why not matplotlib: text stays text, colours are the page's own (so that a chart is right in light, dark and
on paper), and a chart takes 3 kB instead of 60.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

Point = tuple[float, float]

LEFT, RIGHT, TOP, BOTTOM = 60, 14, 14, 40


class Axes:
    """One chart; `x` and `y` are the ranges of the data it shows.

    Args:
        x, y: lowest and highest value shown.
        x_label, y_label: what the axes are.
        title: what a screen reader says the chart is.
        width, height: in the units of its view box; the page scales it.
        x_ticks, y_ticks: values to mark; chosen where None.
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
    ) -> None:
        self._x, self._y = _widened(x), _widened(y)
        self._size = (width, height)
        self._title = title
        self._parts: list[str] = []
        self._frame(
            ticks(*self._x) if x_ticks is None else x_ticks, ticks(*self._y) if y_ticks is None else y_ticks
        )
        across, down = (LEFT + width - RIGHT) / 2, (TOP + height - BOTTOM) / 2
        self._text(across, height - 6, x_label, "axis", "middle")
        self._parts.append(
            f'<text class="axis" text-anchor="middle" transform="translate(12 {down:.1f}) rotate(-90)">'
            f"{escape(y_label)}</text>"
        )

    def at(self, x: float, y: float) -> Point:
        """Where a data point lies in the view box."""
        width, height = self._size
        (x0, x1), (y0, y1) = self._x, self._y
        return (
            LEFT + (x - x0) / (x1 - x0) * (width - LEFT - RIGHT),
            height - BOTTOM - (y - y0) / (y1 - y0) * (height - TOP - BOTTOM),
        )

    def line(self, points: Sequence[Point], kind: str) -> None:
        """A line through points, drawn in the page's class `kind`."""
        if len(points) == 1:
            self.dot(*points[0], kind)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*p) for p in points))
        self._parts.append(f'<polyline class="line {kind}" points="{path}"/>')

    def area(self, points: Sequence[Point], kind: str) -> None:
        """The area inside of a line of points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*p) for p in points))
        self._parts.append(f'<polygon class="area {kind}" points="{path}"/>')

    def dot(self, x: float, y: float, kind: str, tip: str = "", radius: float = 3.2) -> None:
        """A dot, with a text that shows when it is pointed at."""
        px, py = self.at(x, y)
        title = f"<title>{escape(tip)}</title>" if tip else ""
        self._parts.append(
            f'<circle class="dot {kind}" cx="{px:.1f}" cy="{py:.1f}" r="{radius}">{title}</circle>'
        )

    def bar(self, x: float, y: float, width: float, kind: str, tip: str = "") -> None:
        """A bar from the bottom to `y`, centred at `x`."""
        left, top = self.at(x - width / 2, y)
        right, bottom = self.at(x + width / 2, self._y[0])
        self._parts.append(
            f'<rect class="bar {kind}" x="{left:.1f}" y="{top:.1f}" width="{max(right - left, 1):.1f}" '
            f'height="{max(bottom - top, 0):.1f}"><title>{escape(tip)}</title></rect>'
        )

    def text(self, x: float, y: float, words: str, kind: str = "note", anchor: str = "start") -> None:
        """Words at a data point."""
        px, py = self.at(x, y)
        self._text(px, py, words, kind, anchor)

    def svg(self) -> str:
        """The chart as an `<svg>` element."""
        width, height = self._size
        return (
            f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(self._title)}">'
            f"{''.join(self._parts)}</svg>"
        )

    def _frame(self, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> None:
        for value in y_ticks:
            (left, y), (right, _) = self.at(self._x[0], value), self.at(self._x[1], value)
            self._parts.append(f'<path class="gridline" d="M{left:.1f} {y:.1f}H{right:.1f}"/>')
            self._text(left - 6, y + 3.5, short(value), "tick", "end")
        for value in x_ticks:
            x, y = self.at(value, self._y[0])
            self._text(x, y + 15, short(value), "tick", "middle")
        (left, bottom), (right, _) = self.at(self._x[0], self._y[0]), self.at(self._x[1], self._y[0])
        self._parts.append(f'<path class="base" d="M{left:.1f} {bottom:.1f}H{right:.1f}"/>')

    def _text(self, x: float, y: float, words: str, kind: str, anchor: str) -> None:
        self._parts.append(
            f'<text class="{kind}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
        )


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten) inside of a range, at most `most`."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if (high - low) / (factor * power) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number in few characters: 0.25, 12, 1e-05."""
    if value and abs(value) < 1e-4:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:.4g}"


def _widened(bounds: Point) -> Point:
    """A range that is never empty."""
    low, high = bounds
    return (low, high) if high > low else (low - 0.5, low + 0.5)
