"""Of several runs of one scan in a BIDS session, the one that was asked for (`--run`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from trainer.data.bids_names import entities
from trainer.data.findings import Finding, bad
from trainer.errors import CohortError


def number(path: Path) -> int | None:
    """The run that a file name states, leading zeros ignored; None where it states none."""
    run = entities(path).get("run", "")
    return int(run) if run.isascii() and run.isdigit() else None


def check(paths: Iterable[Path], run: int, root: Path) -> None:
    """Raise for a run that no image has.

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
    """The images to take of all that there are, with what is wrong with them.

    An image without a run in its name is taken in any case. Of those with one, the run asked for is taken;
    in a folder that has only other runs, the first of these stands for the scan, as a bad image.
    """
    if run is None:
        return [(path, ()) for path in paths]
    runs = {path: number(path) for path in paths}
    taken: list[tuple[Path, tuple[Finding, ...]]] = []
    for path in paths:
        siblings = [other for other in paths if other.parent == path.parent and runs[other] is not None]
        if runs[path] in (None, run):
            taken.append((path, ()))
        elif run not in (runs[other] for other in siblings) and path == siblings[0]:
            taken.append((path, (_missing(run, sorted({runs[other] or 0 for other in siblings})),)))
    return taken


def _missing(run: int, there: list[int]) -> Finding:
    names = ", ".join(map(str, there))
    cure = "Keep the run you mean under this number, or leave the subject out with --on-error skip."
    return bad("missing-run", f"has no run {run}, but {names}.", cure)
