"""Reports: figures, tables, one HTML file, of a run, of a cross-validation, of several runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path


def write(folder: Path, note: Callable[[str], object] | None = None) -> Path:
    """Write `report.html` into the folder of a run or of a cross-validation, and figures/ beside it.

    What the folder does not hold yet (a result, a test split, the shard set) is left out of the report.

    Args:
        folder: of the run or the cross-validation.
        note: is told of each section and figure that could not be made; the page has the others.

    Returns:
        The path of the page.

    Raises:
        RunError: the folder is neither.
        OSError: a file cannot be written.
    """
    # Metrics are needed on every rank, templates and pictures on one: import them when they are.
    from trainer.report import crossval_page, run_page, story
    from trainer.run_folder.crossval_folder import SUMMARY_NAME

    folder = Path(folder)
    if (folder / SUMMARY_NAME).is_file():
        return crossval_page.render(folder).save(folder, note)
    return run_page.render(story.read(folder)).save(folder, note)


def write_comparison(runs: Sequence[Path], folder: Path) -> Path:
    """Write `report.html` about several runs, and figures/ beside it, into a folder of its own.

    Raises:
        RunError: fewer than two runs, one is no run folder, or their tasks differ.
        OSError: a file cannot be written.
    """
    from trainer.report import comparison_page

    page = comparison_page.render([Path(run) for run in runs])
    folder.mkdir(parents=True, exist_ok=True)
    return page.save(folder)
