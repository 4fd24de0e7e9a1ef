"""What lies in the folder of a cross-validation, for commands that read it; it imports nothing heavy.

`folds.plan` makes the runs from a configuration; here is what lies in the folder.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from trainer.errors import RunError, typed

CONFIG_NAME, SUMMARY_NAME = "crossval.yaml", "crossval.json"
_RUN = re.compile(r"fold-(\d+)-seed-(\d+)")


def is_crossval(folder: Path) -> bool:
    """Return whether a folder is that of a cross-validation."""
    return (folder / CONFIG_NAME).is_file() or (folder / SUMMARY_NAME).is_file()


def run(folder: Path, fold: int, seed: int) -> Path:
    """Return the run folder of a fold and a seed, whether or not it is there."""
    return folder / f"fold-{fold}-seed-{seed}"


def runs(folder: Path, *, first_seed: bool = False) -> list[Path]:
    """Return the run folders that are there, by seed and fold.

    Args:
        folder: of the cross-validation.
        first_seed: only those of the smallest seed, in which every subject is held out once.

    Raises:
        RunError: no run was started yet.
    """
    folds = []
    for path in folder.iterdir():
        named = _RUN.fullmatch(path.name)
        if named and (path / "config.yaml").is_file():
            folds.append((int(named[2]), int(named[1]), path))
    if not folds:
        raise RunError(
            f"{folder}: no fold of this cross-validation was started yet.", cure=_cure(folder), path=folder
        )
    folds.sort()
    return [path for seed, _, path in folds if not first_seed or seed == folds[0][0]]


def finished_runs(folder: Path) -> list[Path]:
    """Return `runs` of the first seed, all finished, each subject held out by one of them.

    Raises:
        RunError: a fold is not finished; it is named.
    """
    summary(folder)  # it is written when all are
    return runs(folder, first_seed=True)


def summary(folder: Path) -> dict[str, Any]:
    """Return crossval.json: the pooled figures of the folds.

    Raises:
        RunError: not all folds are finished yet, or the file is damaged.
    """
    path = folder / SUMMARY_NAME
    if not path.is_file():
        begun = runs(folder)
        done = sum((run / "result.json").is_file() for run in begun)
        raise RunError(
            f"{folder}: this cross-validation is not finished: {done} of its runs have a result, and "
            f"{SUMMARY_NAME} is missing.",
            cure=_cure(folder),
            path=folder,
        )
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not all(
        isinstance(value.get(key), kind)
        for key, kind in (("per_fold", list), ("pooled", dict), ("over_folds", dict), ("seeds", list))
    ):
        raise RunError(f"{path}: is damaged.", cure=_cure(folder), path=path)
    return value


def _cure(folder: Path) -> str:
    return f"Run its command again to continue: cingulum crossval {typed(folder / CONFIG_NAME)}"
