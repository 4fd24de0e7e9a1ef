"""A plan beside others as tables for people, 80 columns wide."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from cingulum.cli import sizes
from trainer.forecast.outlooks import Comparison, Impossible, StrategyOutlook, Unlisted
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


def show(found: Comparison) -> None:
    """Print all strategies, then of the chosen one each rank's part, and who computes what."""
    console = Console(highlight=False, markup=False)
    shape = "x".join(map(str, found.sample_shape))
    times = f", {found.accumulation} times per update" if found.accumulation > 1 else ""
    console.print(
        f"{found.network}: {found.batch} x {shape}{times}, {found.precision}, {found.parameters:,} parameters"
    )
    console.print()
    if isinstance(found.chosen, Unlisted):
        _show_unlisted(console, found.chosen, found.ranks)
        return
    console.print(_strategies(found, found.chosen))
    for one in found.others:
        if isinstance(one, Impossible):
            console.print(f"{one.label}: not possible. {one.reason}")
    if found.chosen.cost is None:
        console.print("Seconds are predicted with --profile FILE; imbalance is that of FLOPs.")
    console.print()
    console.print(f"{found.chosen.label}: {found.chosen.way}")
    console.print(_ranks(found.chosen, found.ranks))
    if found.ranks > MOST_RANKS:
        console.print(f"and {found.ranks - MOST_RANKS} more ranks; --json has all")
    if found.chosen.planners:
        console.print()
        console.print(_planners(found.chosen))
    if found.chosen.decided is not None:
        _show_decided(console, found.chosen.decided)
    _show_drawing(console, layouts_of(found.chosen.placement))


def _show_unlisted(console: Console, one: Unlisted, ranks: int) -> None:
    """Print what there is of a plan over many ranks."""
    console.print(f"{one.label}: {one.way}")
    most, mean = sizes.flops(max(one.flops)), sizes.flops(sum(one.flops) / ranks)
    console.print(
        f"A rank computes {most} forwards at most, {mean} on average, and holds "
        f"{sizes.size(max(one.held))} of variables at most."
    )
    console.print(
        f"Of more than {MOST_LISTED} ranks of a replica no messages are listed: bytes are exact, seconds are "
        "added up as if nothing overlapped, memory is not estimated, and other strategies are not compared."
    )
    _show_decided(console, one.decided)
    _show_drawing(console, one.layouts)


def _show_decided(console: Console, found: Decided) -> None:
    console.print()
    console.print(_tried(found))
    for line in (*_proven(found), *found.missing()):
        console.print(line)
    console.print()
    console.print(_reasons(found))


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


def _strategies(found: Comparison, chosen: StrategyOutlook) -> Table:
    """A row for each strategy that is possible; of bytes, messages and memory those of the rank with most."""
    seconds = ["step", "waits"] if chosen.cost else []
    table = _table(f"on {found.ranks} rank(s)", numbers=[*seconds, "sent", "messages", "memory", "imbalance"])
    for one in (chosen, *found.others):
        if not isinstance(one, Impossible):
            times = []
            if one.cost is not None:
                waits = max(one.cost.waiting_s) / one.cost.step_s if one.cost.step_s else 0.0
                times = [sizes.time(one.cost.step_s), f"{waits:.0%}"]
            table.add_row(
                one.label,
                *times,
                sizes.size(max(rank.bytes for rank in one.sent)),
                str(max(rank.messages for rank in one.sent)),
                sizes.size(max(rank.total for rank in one.memory)),
                f"{one.imbalance:.1%}",
            )
    return table


def _planners(one: StrategyOutlook) -> Table:
    """What each planner makes of the same partitions; by FLOPs, seconds are those of a rank of 1 FLOP/s."""
    table = _table(
        "planner", numbers=["step" if one.cost else "FLOP in turn", "above the bound", "planned in"]
    )
    table.add_column("partitions on ranks")
    for each in one.planners:
        step = sizes.time(each.step_s) if one.cost else f"{each.step_s:.3g}"
        where = " ".join(map(str, each.devices)) + ("" if each.fits else " (does not fit)")
        table.add_row(each.planner, step, f"{each.gap:.1%}", sizes.time(each.seconds_taken), where)
    return table


def _tried(found: Decided) -> Table:
    """What was found, beside the ways that follow one rule."""
    table = _table("divided by", numbers=["all send", "step", "imbalance", "of a layer"])
    best = {**dataclasses.asdict(found), "label": "this plan"}
    for row in (best, *found.uniform):
        table.add_row(
            row["label"],
            sizes.size(sum(row["bytes"].values())),
            sizes.time(row["step_s"]),
            f"{row['imbalance']:.1%}",
            f"{row['layer_imbalance']:.1%}",
        )
    return table


def _proven(found: Decided) -> list[str]:
    """How far the division of the finest hypergraph that was solved exactly is from the least, if one was."""
    solved = [one for one in found.hypergraphs if one["bound"] is not None]
    if not solved:
        return []
    one = max(solved, key=lambda each: each["vertices"])
    above = one["connectivity"] / one["bound"] - 1 if one["bound"] else 0.0
    most = "sends the least there is" if above < EXACT else f"sends at most {above:.1%} more than the least"
    return [f"Divided into {one['vertices']} tiles ({one['tiles']}), the network {most}."]


def _reasons(found: Decided) -> Table:
    """Why layers are divided as they are: what they send, and would send if they were cut otherwise."""
    table = Table(box=None, pad_edge=False)
    table.add_column("from layer", overflow="fold")
    table.add_column("x", justify="right")
    table.add_column("cut along", overflow="fold")
    table.add_column("sends", justify="right", no_wrap=True)
    table.add_column("most for", no_wrap=True)
    table.add_column("more, if cut along", overflow="fold")
    for row in found.rows[:MOST_ROWS]:
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


def _ranks(one: StrategyOutlook, ranks: int) -> Table:
    work = ["busy"] if one.cost else ["FLOP"]
    table = _table(numbers=["rank", *work, "sent", "parameters", "updates", "variables", "slots", "working"])
    for rank in range(min(ranks, MOST_RANKS)):
        memory = one.memory[rank]
        table.add_row(
            str(rank),
            sizes.time(one.cost.busy_s[rank]) if one.cost else sizes.flops(one.flops[rank]),
            sizes.size(one.sent[rank].bytes),
            f"{one.held[rank]:,}",
            f"{one.owned[rank]:,}",
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
