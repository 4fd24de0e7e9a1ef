"""Choose one of several runs of a scan in a BIDS session (`--run`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from trainer.data.images.findings import Finding, bad
from trainer.data.sources.bids_names import entities
from trainer.errors import CohortError


def number(path: Path) -> int | None:
    """Return the run that a file name states, leading zeros ignored; None where it states none."""
    run = entities(path).get("run", "")
    return int(run) if run.isascii() and run.isdigit() else None


def check(paths: Iterable[Path], run: int, root: Path) -> None:
    """Raise CohortError for a run that no image has.

    Raises:
        CohortError: so it is; the cure lists the runs that there are.
    """
    runs = sorted({n for n in map(number, paths) if n is not None})
    if run not in runs:
        there = ", ".join(map(str, runs)) or "none"
        raise CohortError(
            f"{root}: no image has the run {run}.",
            cure=f"Its runs are: {there}. Choose one, or leave out --run.",
        )


def chosen(paths: Sequence[Path], run: int | None) -> list[tuple[Path, tuple[Finding, ...]]]:
    """Return the images to take of all that exist, with what is wrong with them.

    In a folder that has the run asked for, its images are taken; else those without a run in their names. In
    a folder that has other runs only, the first of these stands for the scan, as a bad image.
    """
    if run is None:
        return [(path, ()) for path in paths]
    taken: list[tuple[Path, tuple[Finding, ...]]] = []
    for folder in dict.fromkeys(path.parent for path in paths):
        beside = [path for path in paths if path.parent == folder]
        of_run = [path for path in beside if number(path) == run] or [p for p in beside if number(p) is None]
        if of_run:
            taken += [(path, ()) for path in of_run]
        else:
            there = sorted({n for n in map(number, beside) if n is not None})
            taken.append((beside[0], (_missing(run, there),)))
    return taken


def _missing(run: int, there: list[int]) -> Finding:
    names = ", ".join(map(str, there))
    cure = "Keep the run you mean under this number, or leave the subject out with --on-error skip."
    return bad("missing-run", f"has no run {run}, but {names}.", cure)
