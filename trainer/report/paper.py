"""The marks of a chart drawn with matplotlib, as a PNG of 300 dots per inch for a paper or a talk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes as Plot
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon, Rectangle

from trainer.atomic import write_by
from trainer.report.axes import BOTTOM, RIGHT, TOP, Axes, Mark

DPI = 300
_UNITS_PER_INCH = 110  # of a chart's view box: 460 units are 10.6 cm, a column and a half
_INK, _SOFT, _GRID = "#16202c", "#5b6776", "#e9edf1"
# The page's colours on white: templates/report.css.
_COLOURS = {
    "s1": "#0072b2",
    "s2": "#d55e00",
    "s3": "#009e73",
    "s4": "#cc79a7",
    "s5": "#9a7b00",
    "s6": "#56789a",
    "s7": "#56b4e9",
    "s8": _INK,
    "right": "#0072b2",
    "wrong": "#d55e00",
    "track": _GRID,
}
_WIDTHS = {"thick": 4.0, "whisker": 0.9, "chance": 0.8, "best": 0.8, "track": 4.0, "faint": 0.7, "move": 0.6}
_DASHED: tuple[float, Sequence[float]] = (0, (3, 3))
# Of lines and dots that are told apart without colours, too.
_STYLES: dict[str, tuple[float, Sequence[float]]] = {
    "chance": _DASHED,
    "best": _DASHED,
    "long": (0, (7, 2)),
    "short": (0, (1, 1.2)),
    "mixed": (0, (6, 1.5, 1, 1.5)),
}
_MARKERS = {"square": "s", "triangle": "^", "turned": "v", "diamond": "D", "cross": "X"}
_FLAT = {"start": "left", "middle": "center", "end": "right"}


def write_png(axes: Axes, legend: Sequence[tuple[str, str]], path: Path) -> None:
    """Draw a chart, its legend above it.

    Raises:
        OSError: the file cannot be written.
    """
    width, height = axes.width, axes.height
    figure = Figure(figsize=(width / _UNITS_PER_INCH, height / _UNITS_PER_INCH), dpi=DPI)
    FigureCanvasAgg(figure)
    inner = (
        axes.left / width,
        BOTTOM / height,
        (width - axes.left - RIGHT) / width,
        (height - TOP - BOTTOM) / height,
    )
    plot = figure.add_axes(inner, xlim=axes.x, ylim=axes.y)
    plot.set_xticks(axes.x_ticks, axes.x_names)
    plot.set_yticks(axes.y_ticks, axes.y_names)
    plot.set_xlabel(axes.x_label, fontsize=8, color=_INK)
    plot.set_ylabel(axes.y_label, fontsize=8, color=_INK)
    plot.tick_params(labelsize=7, length=0, colors=_SOFT)
    if axes.gridded:
        plot.grid(visible=True, axis="y", color=_GRID, linewidth=0.7)
    plot.set_axisbelow(True)
    for side in ("top", "right", "left"):
        plot.spines[side].set_visible(False)
    plot.spines["bottom"].set_color(_SOFT)
    for order, mark in enumerate(axes.marks):
        _draw(plot, mark, 3 + order)
    if legend:
        plot.legend(
            handles=[_key(kind, words) for kind, words in legend],
            loc="lower left",
            bbox_to_anchor=(0, 1.03),
            ncols=min(len(legend), 3),
            frameon=False,
            fontsize=7,
            handlelength=2.8 if any("marked" in kind for kind, _ in legend) else 1.4,
            columnspacing=1.0,
            borderaxespad=0.2,
        )
    # No date or version in the file: the same figures give the same bytes.
    write_by(
        path,
        lambda beside: figure.savefig(
            beside, format="png", bbox_inches="tight", pad_inches=0.05, metadata={"Software": None}
        ),
    )


def _draw(plot: Plot, mark: Mark, order: int) -> None:
    words = set(mark.kind.split())
    colour = next((_COLOURS[word] for word in mark.kind.split() if word in _COLOURS), _SOFT)
    width = next((_WIDTHS[word] for word in words if word in _WIDTHS), 1.4)
    style = next((_STYLES[word] for word in words if word in _STYLES), None)
    x, y = [p[0] for p in mark.points], [p[1] for p in mark.points]
    soft = 0.5 if words & {"thick", "faint"} else 0.7 if "whisker" in words else 1.0
    if mark.shape == "line":
        plot.add_line(
            Line2D(
                x, y, color=colour, linewidth=width, linestyle=style, alpha=soft, zorder=order, clip_on=False
            )
        )
    elif mark.shape == "area":
        plot.add_patch(Polygon(mark.points, color=colour, alpha=0.08, linewidth=0, zorder=order))
    elif mark.shape == "dot":
        size = mark.radius * 72 / _UNITS_PER_INCH * 2
        edge = _INK if "wrong" in words else "white"
        dot = Line2D(x, y, marker=_marker(words), markersize=size, color=colour)
        dot.set(zorder=order, clip_on=False, linestyle="none", markeredgecolor=edge, markeredgewidth=0.4)
        plot.add_line(dot)
    elif mark.shape == "bar":
        usual = 0.18 if "pale" in words else 1.0 if "pass" in words else 0.8
        shade = usual if mark.opacity is None else mark.opacity
        box = Rectangle((x[0], y[0]), x[1] - x[0], y[1] - y[0], color=colour, alpha=shade, linewidth=0)
        if "pass" in words:
            box.set(edgecolor="white", linewidth=0.4)
        box.set_zorder(order)
        plot.add_patch(box)
    else:
        plot.text(
            x[0],
            y[0],
            mark.words,
            fontsize=7.5 if "label" in words else 7,
            fontweight="bold" if "label" in words else "normal",
            color="white" if words >= {"inside", "s1"} else _INK if words & {"label", "inside"} else _SOFT,
            ha=_FLAT[mark.anchor],
            zorder=order,
        )


def _key(kind: str, words: str) -> Line2D:
    """The handle of one legend entry."""
    parts = kind.split()
    colour = next((_COLOURS[part] for part in parts if part in _COLOURS), _SOFT)
    if "dot" in parts:
        return Line2D([], [], marker="o", markersize=4, linestyle="none", color=colour, label=words)
    style = next((_STYLES[part] for part in parts if part in _STYLES), None)
    width, shade = (4.0, 0.3) if "idle" in parts else (1.4, 1.0)
    handle = Line2D([], [], color=colour, linewidth=width, alpha=shade, linestyle=style, label=words)
    if "marked" in parts:
        handle.set(marker=_marker(parts), markersize=4, markeredgecolor="white", markeredgewidth=0.4)
    return handle


def _marker(words: Iterable[str]) -> str:
    return next((_MARKERS[word] for word in words if word in _MARKERS), "o")
