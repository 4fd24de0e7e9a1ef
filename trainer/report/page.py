"""An HTML page that needs nothing else, no network, no other file; and what is written beside it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jinja2
import markupsafe

from trainer import attempts
from trainer.atomic import make_folder, remove, write_bytes, write_text
from trainer.report import figure
from trainer.report.figure import Figure
from trainer.report.judgement import interval, share


@dataclass(frozen=True)
class ReportPage:
    """A page and what goes beside it.

    Attributes:
        html: the whole page.
        figures: its charts.
        tables: further tables by file name without ending, as CSV text.
        pictures: PNG by file name without ending.
        failures: what could not be made, a sentence each.
    """

    html: str
    figures: tuple[Figure, ...]
    tables: dict[str, str]
    pictures: dict[str, bytes]
    failures: tuple[str, ...] = ()

    def save(self, folder: Path, note: Callable[[str], object] | None = None) -> Path:
        """Write `report.html` and the folder `figures`; return the page's path.

        Args:
            folder: of the run, the cross-validation or the comparison.
            note: is told of each figure that could not be drawn as PNG, and of `failures`; default: such an
                error is raised.

        Raises:
            OSError: a file cannot be written.
        """
        beside = folder / "figures"
        make_folder(beside)
        if note is not None:
            for failure in self.failures:
                note(f"warning: {folder / 'report.html'}: {failure}")
        for chart in self.figures:
            try:
                figure.save((chart,), beside)
            except Exception as error:
                if note is None or isinstance(error, OSError):
                    raise
                note(f"warning: {beside / chart.name}.png could not be drawn ({attempts.reason(error)}).")
        for old in (*beside.glob("worst-*.png"), *beside.glob("typical-*.png")):
            remove(old)  # there may be fewer now
        for name, picture in self.pictures.items():
            write_bytes(beside / f"{name}.png", picture)
        for name, text in self.tables.items():
            write_text(beside / f"{name}.csv", text)
        path = folder / "report.html"
        write_text(path, self.html)
        return path


@functools.cache
def template(name: str) -> jinja2.Template:
    """Return a template of this package, with the filters that pages use."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trainer.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(share=share, interval=interval, blanks=blanks)
    return environment.get_template(name)


def blanks(text: str) -> markupsafe.Markup:
    """Return text with its [blanks] marked."""
    escaped = str(markupsafe.escape(text))
    marked = escaped.replace("[to be", '<mark class="blank">[to be')
    parts = marked.split('<mark class="blank">')
    return markupsafe.Markup(  # noqa: S704  what is not ours was escaped above
        parts[0] + "".join('<mark class="blank">' + p.replace("]", "]</mark>", 1) for p in parts[1:])
    )
