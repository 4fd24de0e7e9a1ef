"""Why a network is divided as it is, where nobody designed it: from plan.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.byte_sizes import as_text

# Rows that are shown; plan.json has all.
MOST_ROWS = 30
REASON_HEADER = ("From layer", "Groups", "Cut along", "Sends", "Most for", "More, if cut along")
RULE_HEADER = ("Divided", "All send", "Predicted step", "Imbalance", "Of a layer")


@dataclass(frozen=True)
class Reasons:
    """What the section shows.

    Attributes:
        rules: cells of `RULE_HEADER` of the plan, then of each way that follows one rule.
        rows: cells of `REASON_HEADER` of layers that are divided alike.
        rows_left_out: how many are not shown.
        is_measured: whether seconds are of a profile, not of the reference accelerator.
    """

    rules: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[str, ...], ...]
    rows_left_out: int
    is_measured: bool


def of(plan: Mapping[str, Any]) -> Reasons | None:
    """Return the section of a run's plan; None where a rule or a person divided the network.

    Raises:
        KeyError: the plan is damaged, as for TypeError, ValueError and AttributeError.
    """
    decided = plan.get("decided")
    if not decided:
        return None
    rows = [_row(row) for row in decided["rows"]]
    return Reasons(
        rules=tuple(_rule(one) for one in ({**decided, "label": "this plan"}, *decided["uniform"])),
        rows=tuple(rows[:MOST_ROWS]),
        rows_left_out=len(rows[MOST_ROWS:]),
        is_measured=decided["by"] == "profile",
    )


def _rule(plan: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(plan["label"]),
        as_text(sum(plan["bytes"].values())),
        f"{1e3 * plan['step_s']:.3g} ms",
        f"{plan['imbalance']:.1%}",
        f"{plan['layer_imbalance']:.1%}",
    )


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    total = sum(row["bytes"].values())
    most = max(row["bytes"], key=lambda cause: row["bytes"][cause]) if total else "-"
    sign = "-" if row["more_bytes"] < 0 else ""
    instead = f"{sign}{as_text(abs(row['more_bytes']))}: {row['instead']}" if row["instead"] else "-"
    return str(row["first"]), str(row["count"]), str(row["cut"]), as_text(total), most, instead
