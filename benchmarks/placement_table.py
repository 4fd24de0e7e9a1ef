"""The figures of `placement_on_hosts.py` as a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from trainer.bench.spreads import spread

Row = dict[str, Any]
HEAD = [
    "| width | strategy | hosts | links | s per step (lowest, highest) | speed-up | accelerator, s "
    "| exposed, s | messages, s | sent, MB | on the wire, MB | a link carries, Gbit/s |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
]


def steps(row: Row, rate: str) -> list[float]:
    """Return seconds of every counted step on links of a rate: the mean of the ranks."""
    found: list[float] = []
    for block in row["blocks"][rate]:
        found += map(statistics.mean, zip(*(rank["seconds"][1:] for rank in block), strict=True))
    return found


def speed_up(rows: Sequence[Row], row: Row, rate: str) -> float | None:
    """Return volumes per second over those of one host; None where that was not measured."""
    alone = next((one for one in rows if one["ranks"] == 1 and _same(one, row)), None)
    if alone is None:
        return None
    volumes = row["ranks"] if row["strategy"] == "data" else 1
    before = statistics.median(steps(alone, next(iter(alone["blocks"]))))
    return volumes * before / statistics.median(steps(row, rate))


def _same(one: Row, other: Row) -> bool:
    return all(one[key] == other[key] for key in ("strategy", "width", "size", "gflops"))


def sent(row: Row, rate: str) -> tuple[float | None, float]:
    """Return bytes per step of the rank that sends most: counted as messages, and on the wire.

    Raises:
        ValueError: a rank has not sent what the plan says.
    """
    everyones = [rank for block in row["blocks"][rate] for rank in block]
    for rank in everyones:
        if rank["planned_bytes"] != rank["sent_bytes"]:
            raise ValueError(f"{rank['sent_bytes']} bytes per step were sent, of {rank['planned_bytes']}")
    counted = None if everyones[0]["sent_bytes"] is None else max(rank["sent_bytes"] for rank in everyones)
    return counted, max(rank["wire_bytes"] for rank in everyones)


def table(rows: Sequence[Row]) -> list[str]:
    """Return lines in Markdown: one for each placement and rate."""
    lines = list(HEAD)
    for row in rows:
        for rate in row["blocks"]:
            step = spread("s", steps(row, rate))
            ratio, (counted, wire) = speed_up(rows, row, rate), sent(row, rate)
            busiest = max(rank["planned_s"] for rank in row["blocks"][rate][0])
            messages = statistics.mean(rank["messages_s"] for block in row["blocks"][rate] for rank in block)
            link = row["streams_bits_s"].get(rate)
            lines.append(
                f"| {row['width']} | {row['strategy']} | {row['ranks']} | {rate if row['ranks'] > 1 else ''} "
                f"| {step['s']:.3f} ({step['s_min']:.3f}, {step['s_max']:.3f}) "
                f"| {'' if ratio is None else f'{ratio:.2f}'} | {busiest:.3f} | {step['s'] - busiest:.3f} "
                f"| {messages:.3f} "
                f"| {'' if counted is None else f'{counted / 1e6:.2f}'} | {wire / 1e6:.2f} "
                f"| {'' if link is None else f'{statistics.median(link) / 1e9:.2f}'} |"
            )
    return lines
