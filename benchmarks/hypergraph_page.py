"""The figures of `hypergraph_table.py` as a page of the docs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Cell = dict[str, Any]
CLAIM = 0.93
GAIN = 0.95
TOTAL, LAYERS, TIME = "hypergraph, volume", "hypergraph, volume, layers balanced", "hypergraph, time"


def volume(row: dict[str, Any]) -> int:
    """Return the bytes of all causes."""
    return int(sum(row["bytes"].values()))


def less(cell: Cell, label: str) -> float | None:
    """Return which part of the ring's bytes a way does not send; None where it cannot divide the network."""
    row = row_of(cell, label)
    return None if row is None else 1 - volume(row) / cell["ring"]


def row_of(cell: Cell, label: str) -> dict[str, Any] | None:
    """Return the row of a way."""
    return next((row for row in cell["rows"] if row["label"] == label), None)


def step(cell: Cell, label: str) -> float:
    """Return the predicted seconds of a way that there is."""
    row = row_of(cell, label)
    if row is None:
        raise KeyError(label)
    return float(row["step_s"])


def break_even(cell: Cell) -> float:
    """Return up to which batch the plan of one sample, layers balanced, sends less than a ring.

    Its activations, halos and statistics grow with the batch, and its weights do not.
    """
    row = row_of(cell, LAYERS) or {}
    weights = row["bytes"]["weights"]
    return float((cell["ring"] - weights) / max(1, volume(row) - weights))


def fastest_rule(cell: Cell) -> dict[str, Any]:
    """Return the way by one rule with the shortest predicted step."""
    rules = [row for row in cell["rows"] if "step_s" in row and "planned_s" not in row]
    return min(rules, key=lambda row: row["step_s"])


def sentences(cells: Sequence[Cell]) -> list[str]:
    """Return what the figures say, each checked against them."""
    small = [one for one in cells if one["batch"] == 1]
    lines = []
    if small:
        missed = [one for one in small if (less(one, TOTAL) or 0) < CLAIM]
        named = ", ".join(f"{one['network']} on {one['ranks']} ({less(one, TOTAL):.1%})" for one in missed)
        lines.append(
            f"At one sample per update, the work of ranks balanced to 10 %, {len(small) - len(missed)} of "
            f"{len(small)} plans send at least {CLAIM:.0%} less than a ring"
            + (f"; not {named}." if missed else ".")
        )
    claimed = [one for one in small if one["network"] == "resnet18" and one["ranks"] in (2, 4)]
    if claimed:
        each = " and ".join(f"{less(one, LAYERS):.1%} on {one['ranks']}" for one in claimed)
        lines.append(f"With every layer balanced, ResNet-18 of width 64 at 96³ sends {each} ranks less.")
    gains = [step(one, TIME) / fastest_rule(one)["step_s"] for one in cells]
    lines.append(
        f"Plans for time are predicted to take {min(gains):.2f} to {max(gains):.2f} of the seconds of the "
        f"fastest rule; at most 0.95 in {sum(one <= GAIN for one in gains)} of {len(gains)} cases."
    )
    slow = [step(one, TOTAL) / step(one, TIME) for one in small]
    if slow:
        lines.append(
            f"At one sample, the plan of least volume takes {min(slow):.1f} to {max(slow):.1f} times as long "
            "as that for time: it puts whole layers on ranks, which wait for each other."
        )
    return lines


_HEAD = """# Placements that nobody designs, against rules

[`train.strategy=hypergraph`](../how-to/hypergraph.md) after Eserol (MSc thesis, Bilkent University 2019), who
reports 93 % less communication than data parallelism. Made by one command:

<!-- not run: it takes an hour or two -->
```sh
.venv/bin/python benchmarks/hypergraph_table.py --batches 1 16 128 --page hypergraph.md
```

**Planned, not trained**: bytes are those of the task lists that ranks would play, and tests see that as many
cross. Seconds are **predicted**, of the same lists on an accelerator of 8 TFLOP/s with a link of 250 Gbit/s.
*Less* is against 2(K - 1)M, what all K ranks of a ring all-reduce send of M bytes of weights. Bytes of model
parallelism grow with the batch, and those of data parallelism do not: read no figure without it.

## What the figures say
"""
_BREAK_EVEN = """
## Break-even batch

Samples per update up to which the plan of one sample, with every layer balanced, sends less than a ring:
"""
_VOLUMES = """
## Less than a ring sends

`total`, `layers`: hypergraph, least volume, with the work of ranks or of every layer balanced to 10 %.
`time`: hypergraph, least time. Negative: it sends more. `-`: the rule cannot divide the network.
"""
_STEPS = """
## Predicted step and balance

Milliseconds; in brackets the imbalance of the worst layer, slowest rank over mean, minus 1.
"""


def page(cells: Sequence[Cell]) -> list[str]:
    """Return the lines of the page."""
    said = [f"- {line}" for line in sentences(cells)]
    parts = (
        (_HEAD, said),
        (_BREAK_EVEN, _break_evens(cells)),
        (_VOLUMES, _volumes(cells)),
        (_STEPS, _steps(cells)),
    )
    return [line for text, lines in parts for line in (*text.split("\n"), *lines)]


def _break_evens(cells: Sequence[Cell]) -> list[str]:
    small = {(one["network"], one["ranks"]): break_even(one) for one in cells if one["batch"] == 1}
    ranks = sorted({count for _, count in small})
    lines = [
        "| network | " + " | ".join(f"{count} ranks" for count in ranks) + " |",
        "| --- |" + " --- |" * len(ranks),
    ]
    for name in dict.fromkeys(name for name, _ in small):
        each = (small.get((name, count)) for count in ranks)
        lines.append(f"| {name} | " + " | ".join("-" if one is None else f"{one:.0f}" for one in each) + " |")
    return lines


_RULES = ("spatial", "filters", "filters, master", "layers", "tiles at random")


def _volumes(cells: Sequence[Cell]) -> list[str]:
    head = ["network", "ranks", "samples", "total", "layers", "time", *_RULES]
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    for one in cells:
        parts = [less(one, label) for label in (TOTAL, LAYERS, TIME, *_RULES)]
        told = ["-" if part is None else f"{100 * part:.1f} %" for part in parts]
        lines.append(f"| {one['network']} | {one['ranks']} | {one['batch']} | " + " | ".join(told) + " |")
    return lines


def _steps(cells: Sequence[Cell]) -> list[str]:
    labels = {TOTAL: "total", LAYERS: "layers", TIME: "time", "data": "data", "spatial": "spatial"}
    labels |= {"filters": "filters", "filters, master": "master", "layers": "whole layers"}
    head = ["network", "ranks", "samples", *labels.values()]
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    for one in cells:
        told = []
        for label in labels:
            row = row_of(one, label)
            told.append("-" if row is None else f"{1e3 * row['step_s']:.2f} ({row['layer_imbalance']:.0%})")
        lines.append(f"| {one['network']} | {one['ranks']} | {one['batch']} | " + " | ".join(told) + " |")
    return lines
