"""BIDS file names: `key-value` entities joined by underscores, then a suffix such as `T1w`; `--run`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from trainer.data.images.findings import Finding, bad
from trainer.data.images.reading import stem
from trainer.errors import CohortError

# What derivatives call the space of the subject's own anatomical image (BIDS, "Spatial references").
_OWN_SPACE = frozenset({"T1w", "T2w", "anat", "orig", "individual", "scanner"})


def entities(path: Path) -> dict[str, str]:
    """Return the entities of a file name, in its order; the suffix is left out."""
    parts = (part.partition("-") for part in stem(path).split("_")[:-1])
    return {key: value for key, dash, value in parts if dash}


def bids_suffix(path: Path) -> str:
    """Return what comes after the last underscore: `T1w`, `dseg`, ..."""
    return stem(path).rsplit("_", 1)[-1]


def contradict(one: dict[str, str], other: dict[str, str]) -> bool:
    """Return whether two names cannot be of the same scan: their space or a shared entity differs.

    `desc`, `label`, `seg`, `atlas` and `res` say what was made of a scan, not which scan it was.
    """
    shared = (set(one) & set(other)) - {"desc", "label", "seg", "atlas", "res", "space"}
    return any(one[key] != other[key] for key in shared) or _space(one) != _space(other)


def best_match(image: Path, files: list[Path]) -> list[Path]:
    """Return the files of a folder that fit an image best.

    Most entities shared with the image's name, then fewest of their own. One file is a match, several are a
    tie, none means that all contradict the image's name.
    """
    own = entities(image)
    fitting = [file for file in files if not contradict(own, entities(file))]

    def rank(file: Path) -> tuple[int, int]:
        its = entities(file)
        same = sum(own.get(key) == value for key, value in its.items())
        return same, -len(its)

    best = max(map(rank, fitting), default=None)
    return [file for file in fitting if rank(file) == best]


def _space(names: dict[str, str]) -> str | None:
    space = names.get("space")
    return None if space in _OWN_SPACE else space


def run_of(path: Path) -> int | None:
    """Return the run that a file name states, leading zeros ignored; None where it states none."""
    run = entities(path).get("run", "")
    return int(run) if run.isascii() and run.isdigit() else None


def check_run(paths: Iterable[Path], run: int, root: Path) -> None:
    """Check that an image has the run.

    Raises:
        CohortError: none has it; the cure lists the runs that exist.
    """
    runs = sorted({n for n in map(run_of, paths) if n is not None})
    if run not in runs:
        there = ", ".join(map(str, runs)) or "none"
        raise CohortError(
            f"{root}: no image has the run {run}.",
            cure=f"Its runs are: {there}. Choose one, or leave out --run.",
        )


def of_run(paths: Sequence[Path], run: int | None) -> list[tuple[Path, tuple[Finding, ...]]]:
    """Return the images to take, and the findings on each.

    In a folder that has the run asked for, its images are taken; else those without a run in their names. In
    a folder that has other runs only, the first of these stands for the scan, as a bad image.
    """
    if run is None:
        return [(path, ()) for path in paths]
    taken: list[tuple[Path, tuple[Finding, ...]]] = []
    for folder in dict.fromkeys(path.parent for path in paths):
        beside = [path for path in paths if path.parent == folder]
        fitting = [p for p in beside if run_of(p) == run] or [p for p in beside if run_of(p) is None]
        if fitting:
            taken += [(path, ()) for path in fitting]
        else:
            there = sorted({n for n in map(run_of, beside) if n is not None})
            taken.append((beside[0], (_missing(run, there),)))
    return taken


def _missing(run: int, there: list[int]) -> Finding:
    names = ", ".join(map(str, there))
    cure = "Give the intended run this number, or leave the subject out with --on-error skip."
    return bad("missing-run", f"has no run {run}, but {names}.", cure)
