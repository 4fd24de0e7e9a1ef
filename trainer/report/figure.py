"""A figure of a report: a chart with its heading, its legend, and the numbers that were plotted."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.atomic import make_folder, write_text
from trainer.report.axes import Axes
from trainer.report.paper import write_png


@dataclass(frozen=True)
class FigureTable:
    """Numbers for a CSV file: column names and rows."""

    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def csv(self) -> str:
        """Return the table as CSV text; what is None is an empty cell."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.rows)
        return text.getvalue()


@dataclass(frozen=True)
class Figure:
    """One chart of a page, and its files.

    Attributes:
        name: of its files in the folder `figures`, without ending.
        heading: short title on the page.
        axes: the drawing.
        table: the plotted numbers.
        legend: pairs of the page's class and what it means; a class with `dot` is a dot.
        caption: a sentence under the heading.
        wide: whether it takes the whole width of the page.
    """

    name: str
    heading: str
    axes: Axes
    table: FigureTable
    legend: Sequence[tuple[str, str]] = field(default=())
    caption: str = ""
    wide: bool = False

    @property
    def svg(self) -> str:
        """Return the chart for the page."""
        return self.axes.svg()


def table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> FigureTable:
    """Return a `FigureTable` from any iterables."""
    return FigureTable(tuple(header), tuple(tuple(row) for row in rows))


def save(figures: Iterable[Figure], folder: Path) -> None:
    """Write NAME.png (300 dpi) and NAME.csv of each figure.

    Raises:
        OSError: a file cannot be written.
    """
    make_folder(folder)
    for figure in figures:
        write_png(figure.axes, figure.legend, folder / f"{figure.name}.png")
        write_text(folder / f"{figure.name}.csv", figure.table.csv())
