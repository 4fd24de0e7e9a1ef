"""Reports: figures, tables, one HTML file, of a run, of a cross-validation, of several runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.report.page import Page


def write(run_folder: Path) -> Path:
    """Write `report.html` into a run folder, and figures/ beside it; return the page's path.

    What the folder does not hold yet (a result, a test split, the shard set) is left out of the report.

    Raises:
        RunError: the folder is no run folder.
        OSError: a file cannot be written.
    """
    # Metrics are needed on every rank, templates and pictures on one: import them when they are.
    from trainer.report.page import render
    from trainer.report.story import read

    return _save(render(read(Path(run_folder))), Path(run_folder))


def _save(page: Page, folder: Path) -> Path:
    from trainer.atomic import write_bytes, write_text
    from trainer.report.figure import save

    beside = folder / "figures"
    save(page.figures, beside)
    for name, text in page.tables.items():
        write_text(beside / f"{name}.csv", text)
    for name, picture in page.pictures.items():
        write_bytes(beside / f"{name}.png", picture)
    path = folder / "report.html"
    write_text(path, page.html)
    return path
