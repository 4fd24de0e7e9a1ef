"""The report of a run: figures, tables, one HTML file."""

from __future__ import annotations

from pathlib import Path


def write(run_folder: Path) -> Path:
    """Write `report.html` into a run folder and return its path.

    What the folder does not hold yet (a result, a test split, the shard set) is left out of the report.

    Raises:
        RunError: the folder is no run folder.
        OSError: the file cannot be written.
    """
    # Metrics are needed on every rank, templates and pictures on one: import them when they are.
    from trainer.atomic import write_text
    from trainer.report.page import render
    from trainer.report.story import read

    html = render(read(Path(run_folder)))
    path = Path(run_folder) / "report.html"
    write_text(path, html)
    return path
