"""A plan beside others as tables for people, 80 columns wide."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from cingulum.cli import sizes
from trainer.forecast.outlooks import Comparison, Impossible, StrategyOutlook, ToldOutlook, Unlisted
from trainer.planning.hypergraph.judging import MOST_LISTED
from trainer.planning.placement.drawing import Strip, strips
from trainer.planning.placement.plan_file import layouts_of
from trainer.planning.placement.ways import Layouts
from trainer.strategies.placed.hypergraph_plan import Decided

# Rows of the drawing, and ranks that have a line each; --json has all.
MOST_ROWS = 20
MOST_RANKS = 16
# The solver's own tolerance.
EXACT = 1e-3


def show(comparison: Comparison) -> None:
    """Print all strategies, then of the chosen one each rank's part, and who computes what."""
    console = Console(highlight=False, markup=False)
    shape = "x".join(map(str, comparison.sample_shape))
    times = f", {comparison.accumulation} times per update" if comparison.accumulation > 1 else ""
    console.print(
        f"{comparison.network}: {comparison.batch} x {shape}{times}, {comparison.precision}, "
        f"{comparison.parameters:,} parameters"
    )
    console.print()
    if isinstance(comparison.chosen, Unlisted):
        _show_unlisted(console, comparison.chosen, comparison.ranks)
        return
    console.print(_strategies(comparison, comparison.chosen))
    for one in comparison.others:
        if isinstance(one, Impossible):
            console.print(f"{one.label}: not possible. {one.reason}")
    if comparison.chosen.cost is None:
        console.print("Seconds are predicted with --profile FILE; imbalance is that of FLOPs.")
    console.print()
    console.print(f"{comparison.chosen.label}: {comparison.chosen.way}")
    if isinstance(comparison.chosen, ToldOutlook):
        return
    console.print(_ranks(comparison.chosen, comparison.ranks))
    if comparison.ranks > MOST_RANKS:
        console.print(f"and {comparison.ranks - MOST_RANKS} more ranks; --json has all")
    if comparison.chosen.planners:
        console.print()
        console.print(_planners(comparison.chosen))
    if comparison.chosen.decided is not None:
        _show_decided(console, comparison.chosen.decided)
    _show_drawing(console, layouts_of(comparison.chosen.placement))


def _show_unlisted(console: Console, outlook: Unlisted, ranks: int) -> None:
    """Print what there is of a plan over many ranks."""
    console.print(f"{outlook.label}: {outlook.way}")
    most, mean = sizes.flops(max(outlook.flops)), sizes.flops(sum(outlook.flops) / ranks)
    console.print(
        f"A rank computes {most} forwards at most, {mean} on average, and holds "
        f"{sizes.size(max(outlook.held))} of variables at most."
    )
    console.print(
        f"Of more than {MOST_LISTED} ranks of a replica no messages are listed: bytes are exact, seconds are "
        "added up as if nothing overlapped, memory is not estimated, and other strategies are not compared."
    )
    _show_decided(console, outlook.decided)
    _show_drawing(console, outlook.layouts)


def _show_decided(console: Console, decided: Decided) -> None:
    console.print()
    console.print(_tried(decided))
    for line in (*_proven(decided), *decided.missing()):
        console.print(line)
    console.print()
    console.print(_reasons(decided))


def _show_drawing(console: Console, layouts: Layouts) -> None:
    console.print()
    drawn = strips(layouts)
    console.print(_drawing(drawn[:MOST_ROWS]))
    if len(drawn) > MOST_ROWS:
        console.print(f"and {len(drawn) - MOST_ROWS} more rows; --out has every operation")


def _table(*titles: str, numbers: Sequence[str] = ()) -> Table:
    table = Table(*titles, box=None, pad_edge=False)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _strategies(comparison: Comparison, chosen: StrategyOutlook | ToldOutlook) -> Table:
    """Return a row for each possible strategy; bytes, messages and memory are those of the rank with most."""
    seconds = ["step", "waits"] if chosen.cost else []
    table = _table(
        f"on {comparison.ranks} rank(s)", numbers=[*seconds, "sent", "messages", "memory", "imbalance"]
    )
    for outlook in (chosen, *comparison.others):
        if not isinstance(outlook, Impossible):
            times = []
            if outlook.cost is not None:
                waits = max(outlook.cost.waiting_s) / outlook.cost.step_s if outlook.cost.step_s else 0.0
                times = [sizes.time(outlook.cost.step_s), f"{waits:.0%}"]
            table.add_row(
                outlook.label,
                *times,
                sizes.size(max(rank.bytes for rank in outlook.sent)),
                str(max(rank.messages for rank in outlook.sent)),
                sizes.size(max(rank.total for rank in outlook.memory)),
                f"{outlook.imbalance:.1%}",
            )
    return table


def _planners(outlook: StrategyOutlook) -> Table:
    """Return how each planner places the same partitions; by FLOPs, seconds are of a rank of 1 FLOP/s."""
    table = _table(
        "planner", numbers=["step" if outlook.cost else "FLOP in turn", "above the bound", "planned in"]
    )
    table.add_column("partitions on ranks")
    for each in outlook.planners:
        step = sizes.time(each.step_s) if outlook.cost else f"{each.step_s:.3g}"
        where = " ".join(map(str, each.devices)) + ("" if each.fits else " (does not fit)")
        table.add_row(each.planner, step, f"{each.gap:.1%}", sizes.time(each.seconds_taken), where)
    return table


def _tried(decided: Decided) -> Table:
    """Return a table of the plan, beside the ways that follow one rule."""
    table = _table("divided by", numbers=["all send", "step", "imbalance", "of a layer"])
    best = {**dataclasses.asdict(decided), "label": "this plan"}
    for row in (best, *decided.uniform):
        table.add_row(
            row["label"],
            sizes.size(sum(row["bytes"].values())),
            sizes.time(row["step_s"]),
            f"{row['imbalance']:.1%}",
            f"{row['layer_imbalance']:.1%}",
        )
    return table


def _proven(decided: Decided) -> list[str]:
    """How far the division of the finest hypergraph that was solved exactly is from the least, if one was."""
    solved = [one for one in decided.hypergraphs if one["bound"] is not None]
    if not solved:
        return []
    one = max(solved, key=lambda each: each["vertices"])
    above = one["connectivity"] / one["bound"] - 1 if one["bound"] else 0.0
    most = "sends the least there is" if above < EXACT else f"sends at most {above:.1%} more than the least"
    return [f"Divided into {one['vertices']} tiles ({one['tiles']}), the network {most}."]


def _reasons(decided: Decided) -> Table:
    """Return why layers are divided as they are: what they send, and would send if cut otherwise."""
    table = Table(box=None, pad_edge=False)
    table.add_column("from layer", overflow="fold")
    table.add_column("x", justify="right")
    table.add_column("cut along", overflow="fold")
    table.add_column("sends", justify="right", no_wrap=True)
    table.add_column("most for", no_wrap=True)
    table.add_column("more, if cut along", overflow="fold")
    for row in decided.rows[:MOST_ROWS]:
        most = max(row["bytes"], key=lambda cause: row["bytes"][cause])
        total = sum(row["bytes"].values())
        more = ("-" if row["more_bytes"] < 0 else "") + sizes.size(abs(row["more_bytes"]))
        table.add_row(
            row["first"],
            str(row["count"]),
            row["cut"],
            sizes.size(total),
            most if total else "-",
            f"{more}: {row['instead']}" if row["instead"] else "-",
        )
    return table


def _ranks(outlook: StrategyOutlook, ranks: int) -> Table:
    work = ["busy"] if outlook.cost else ["FLOP"]
    table = _table(numbers=["rank", *work, "sent", "parameters", "updates", "variables", "slots", "working"])
    for rank in range(min(ranks, MOST_RANKS)):
        memory = outlook.memory[rank]
        table.add_row(
            str(rank),
            sizes.time(outlook.cost.busy_s[rank]) if outlook.cost else sizes.flops(outlook.flops[rank]),
            sizes.size(outlook.sent[rank].bytes),
            f"{outlook.held[rank]:,}",
            f"{outlook.owned[rank]:,}",
            *map(sizes.size, (memory.variables, memory.slots, memory.working)),
        )
    return table


def _drawing(drawn: Sequence[Strip]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("from operation", overflow="fold")
    table.add_column("x", justify="right")
    table.add_column("cut along", overflow="fold")
    table.add_column("by ranks", no_wrap=True)
    for one in drawn:
        table.add_row(one.first, str(one.count), ", ".join(one.axes) or "-", one.signs)
    return table
