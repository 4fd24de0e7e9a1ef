"""Advice as sentences and a table for people, 80 columns wide."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from cingulum.cli import sizes
from cingulum.cli.simulate_display import duration, energy, rate
from trainer.forecast.advising import USEFUL, WAITING, Advice
from trainer.planning.simulation.cluster import Cluster


def show(advice: Advice, cluster: Cluster) -> None:
    """Print how training grows, then what holds on the ranks that were asked for."""
    console = Console(highlight=False, markup=False)
    console.print(_growth(advice))
    console.print(
        f"\nUseful ranks: up to {advice.useful:,} (twice as many are {USEFUL:g} times as fast up to there)."
    )
    row = advice.row
    console.print(
        f"\nOn {row.ranks:,} rank(s), {row.label}: {sizes.time(row.step_s)} for {row.samples:,} samples, "
        f"of which most goes to: {row.limit}."
    )
    for line in (_links(advice, cluster), _batch(advice), *_break_even(advice, cluster)):
        console.print(line)
    if advice.is_cut_short:
        console.print("Planning took long: larger batches were not looked at (--within).")
    console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("if there were")
    table.add_column("times as fast", justify="right")
    for what, factor in advice.upgrades:
        table.add_row(what, f"{factor:.2f}")
    console.print(table)
    if advice.bucket is not None:
        size, factor = advice.bucket
        console.print(
            f"\nWith train.strategy.bucket_mb={size:g} it would be {factor:.2f} times as fast: the same "
            "gradients, sent in other parts."
        )
    cost = "" if advice.dollars is None else f", ${advice.dollars:.2f}"
    saved = row.interrupted
    console.print(
        f"\n{advice.epochs:,} epoch(s): {duration(advice.seconds)}, {energy(advice.joules)}{cost}, "
        "failures included."
    )
    console.print(
        f"Save every {duration(saved.interval_s)} (Daly; {duration(advice.young_s)} by Young): a checkpoint "
        f"takes {duration(saved.checkpoint_s)}, a host fails every {duration(saved.between_failures_s)}. "
        f"Both cost {saved.factor - 1:.2%} of the time."
    )


def _growth(advice: Advice) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("ranks", "samples/s", "eff.", "step", "waits for"):
        table.add_column(title, justify="left" if title == "waits for" else "right", no_wrap=True)
    for row in advice.growth:
        table.add_row(
            f"{row.ranks:,}",
            rate(row.samples_per_s),
            f"{row.efficiency:.0%}",
            sizes.time(row.step_s),
            row.limit,
        )
    return table


def _links(advice: Advice, cluster: Cluster) -> str:
    if advice.row.ranks == 1:
        return "One rank waits for nobody."
    if advice.links_factor is None:
        return f"Ranks wait more than {WAITING:.0%} of a step whatever the links' rate: for latency."
    now = cluster.hosts[0].interface.bytes_per_second.value
    words = (
        f"Ranks wait less than {WAITING:.0%} of a step from {advice.links_factor:g} times the links' rate on"
    )
    return f"{words} ({8 * advice.links_factor * now / 1e9:.3g} Gbit/s of each interface between hosts)."


def _break_even(advice: Advice, cluster: Cluster) -> list[str]:
    compared = advice.break_even
    if compared is None:
        return []
    now = 8 * cluster.hosts[0].interface.bytes_per_second.value / 1e9
    named = {
        "times the links' rate": (
            compared.links,
            compared.rates,
            lambda at: f"{at:g} x ({at * now:.3g} Gbit/s)",
        ),
        "samples of each rank": (compared.batch, compared.batches, lambda at: f"{at:,.0f}"),
    }
    lines = []
    for what, (turns, ends, words) in named.items():
        if ends is None:
            lines.append(f"Against {compared.against}, over {what}: never are both possible.")
            continue
        told = ", ".join(f"{one.faster} from {words(one.since)} on" for one in turns)
        lines.append(f"Faster, over {ends[0]:g} to {ends[1]:,g} {what}: {told}.")
    return lines


def _batch(advice: Advice) -> str:
    if advice.batch is None and advice.is_cut_short:
        return f"With no batch that was looked at do ranks wait less than {WAITING:.0%} of a step."
    if advice.batch is None:
        return f"No batch that fits into memory makes ranks wait less than {WAITING:.0%} of a step."
    return f"Ranks wait less than {WAITING:.0%} of a step from {advice.batch:,} sample(s) of each rank on."
