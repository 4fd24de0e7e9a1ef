"""Several runs side by side: what differs in their configurations, and how sure a difference is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.metrics import comparison
from trainer.report.methods import settings_of
from trainer.report.predictions import Found, as_table
from trainer.report.story import Story

# These differ between any two runs and say nothing.
_NAMES = ("name", "runs")
_WORDS = {"auc": "AUC", "accuracy": "Accuracy", "mae": "MAE", "dice": "Mean Dice"}


@dataclass(frozen=True)
class Pair:
    """Two runs on the same subjects.

    Attributes:
        first, second: names of the runs.
        figure: what is compared: AUC, accuracy, MAE or mean Dice.
        difference: of the first minus the second.
        interval: 95 %, or None where there is none.
        p_value: two-sided, or None.
        p_holm: the same, corrected for the number of pairs; None for one pair.
        method: how interval and p were found.
    """

    first: str
    second: str
    figure: str
    difference: float
    interval: tuple[float, float] | None
    p_value: float | None
    p_holm: float | None
    method: str


def differing(runs: Sequence[tuple[str, Story]]) -> list[tuple[str, list[str]]]:
    """Return dotted keys whose values are not the same in all runs, with each run's value in words."""
    flat = [_flat(settings_of(story)) for _, story in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    found = []
    for key in keys:
        values = [one.get(key) for one in flat]
        if key not in _NAMES and any(value != values[0] for value in values[1:]):
            found.append((key, ["–" if value is None else str(value) for value in values]))
    return found


def pairs(runs: Sequence[tuple[str, Found]], hashes: Sequence[str | None]) -> tuple[list[Pair], list[str]]:
    """Return every two runs on the same subjects, as `cingulum compare` compares them, and notes for a
    reader.

    Args:
        runs: name and predictions of each.
        hashes: content hash of each run's shard set, or None.

    Raises:
        RunError: they were judged on different subjects, or do not agree on what is true of one.
    """
    tables = [as_table(name, found, shards) for (name, found), shards in zip(runs, hashes, strict=True)]
    chosen, notes = comparison.aligned(tables)
    told = comparison.differences(chosen, [name for name, _ in runs])
    macro = ", macro" if len(chosen[0].classes) > 2 else ""
    return [_pair(pair, macro) for pair in told if pair["difference"] is not None], notes


def _pair(told: dict[str, Any], macro: str) -> Pair:
    bounds = told["interval"]
    return Pair(
        first=told["first"],
        second=told["second"],
        figure=_WORDS[told["metric"]] + (macro if told["metric"] == "auc" else ""),
        difference=told["difference"],
        interval=(bounds[0], bounds[1]) if bounds else None,
        p_value=told["p_value"],
        p_holm=told["p_holm"],
        method=told["test"],
    )


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of every leaf."""
    if isinstance(tree, dict) and tree:
        return {
            key: value
            for name, child in tree.items()
            for key, value in _flat(child, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    return {prefix: tree}
