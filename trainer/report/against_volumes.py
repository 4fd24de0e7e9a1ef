"""What to say, and to try, where a linear model on tissue volumes is ahead of the network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.report import story as stories
from trainer.report.story import number


def advice(config: Mapping[str, Any]) -> str:
    """Return what to try that a run does not do already; docs/explanation/recipes.md has the reasons."""
    model, data = _section(config, "model"), _section(config, "data")
    augment = _section(data, "augment")
    steps = []
    options = _section(model, "options")
    if model.get("name") != "small" or any(
        options.get(k, "none") != "none" for k in ("normalisation", "pool")
    ):
        steps.append("a small network without normalisation that sees where something is (model.name=small)")
    moved = (_section(augment, change).get("probability") for change in ("affine", "elastic"))
    if not augment.get("shift") and not any(moved):
        steps.append("data.augment.shift=1")
    steps.append("more subjects or epochs")
    return f"try {', '.join(steps)} (docs/explanation/recipes.md)"


def linear_line(folder: Path, test: Mapping[str, Any]) -> str | None:
    """Return one line about the linear model for the terminal.

    Args:
        folder: of the run, in which `baseline.json` may be.
        test: metrics of the network on the test subjects.

    Returns:
        Its AUC, and what to try where that is above the network's; None where one of the two is not known.
    """
    story = stories.read(folder)
    linear, network = number(story.baseline.get("auc")), number(test.get("auc"))
    if linear is None or network is None:
        return None
    line = f"linear model on tissue volumes, same scans: AUC {linear:.3f}"
    if linear <= network:
        return f"{line}, not above the network"
    return f"{line}, ahead of the network by {linear - network:.3f}: {advice(story.config)}"


def judged(difference: float, low: float, high: float, config: Mapping[str, Any]) -> str:
    """Return what an AUC difference, network less linear model, and its interval say, with what to try."""
    interval = f"95 % interval {low:+.2f} to {high:+.2f}"
    comparison = f"AUC {difference:+.2f} against a linear model on tissue volumes ({interval})"
    if low > 0:
        return f"{comparison}: more than the volumes alone give."
    if high < 0:
        return f"{comparison}: the volumes alone do better. Before this network is used, {advice(config)}."
    if difference < 0:
        return (
            f"{comparison}: the linear model is ahead, on too few subjects to be sure of it. "
            f"To catch up, {advice(config)}."
        )
    return f"{comparison}: too few subjects to say which is better."


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section, or nothing where a damaged file has something else there."""
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}
