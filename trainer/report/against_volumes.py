"""What to say, and to try, where a linear model on tissue volumes is ahead of the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer import record
from trainer.errors import CingulumError
from trainer.report.story import number

TRY = (
    "try a small network without normalisation (model.name=tiny model.width=16 "
    "model.options.normalisation=none), data.augment.shift=1, a batch of 8, more epochs; "
    "docs/explanation/recipes.md tells why"
)


def linear_line(folder: Path, test: dict[str, Any]) -> str | None:
    """One line about the linear model for the terminal.

    Args:
        folder: of the run, in which `baseline.json` may be.
        test: metrics of the network on the test subjects.

    Returns:
        Its AUC, and what to try where that is above the network's; None where one of the two is not known.
    """
    path = folder / "baseline.json"
    try:
        linear = number(record.read_json(path).get("auc")) if path.is_file() else None
    except (CingulumError, OSError, ValueError):
        return None  # damaged: the report says so
    network = number(test.get("auc"))
    if linear is None or network is None:
        return None
    line = f"linear model on tissue volumes, same volumes: AUC {linear:.3f}"
    if linear <= network:
        return f"{line}, not above the network"
    return f"{line}, ahead of the network by {linear - network:.3f}: {TRY}"


def judged(difference: float, low: float, high: float) -> str:
    """What an AUC difference, network less linear model, and its 95 % interval say, with what to try."""
    interval = f"95 % interval {low:+.2f} to {high:+.2f}"
    said = f"AUC {difference:+.2f} against a linear model on tissue volumes ({interval})"
    if low > 0:
        return f"{said}: more than the volumes alone give."
    if high < 0:
        return f"{said}: the volumes alone do better. Before this network is used, {TRY}."
    if difference < 0:
        return f"{said}: the linear model is ahead, on too few subjects to be sure of it; {TRY}."
    return f"{said}: too few subjects to say which is better."
