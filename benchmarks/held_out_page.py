"""What held_out.py has found, as a section of docs/prediction.md."""

from __future__ import annotations

import statistics
from typing import Any

import stages_on_hosts


def steps(blocks: list[Any]) -> list[float]:
    """Return seconds of every counted step, of the slowest rank."""
    return stages_on_hosts.steps({"blocks": {"": blocks}}, "")


def known(calibration: dict[str, Any], rate: str) -> dict[str, Any]:
    """Return what predictions go by, from what was measured on one host and on two.

    Args:
        calibration: of `held_out.calibrate`.
        rate: of the links of the two.
    """
    links = [rank for block in calibration["links"] for rank in block]
    update_s = statistics.median(rank["update_s"] for rank in calibration["alone"])
    latency, carried = (statistics.median(one["link"][at] for one in links) for at in (0, 1))
    found: dict[str, Any] = {
        "update_s": update_s,
        "update_s_per_parameter": update_s / calibration["alone"][0]["parameters"],
        "latency_s": latency,
        "carried": 8 * carried / stages_on_hosts.bits_per_second(rate),
        "handling": {
            key: statistics.median(value for one in links for value in one["handling"][key])
            for key in ("message_s", "byte_s")
        },
    }
    for way in ("whole", "divided"):
        blocks = calibration[way]
        step, rank = statistics.median(steps(blocks)), blocks[0][0]
        waits, tasks = rank["calls"]
        if way == "whole":
            longer, each = (step - update_s - rank["planned_s"]) / waits, 0.0
        else:
            waited = statistics.median(block[0]["waited_s"] for block in blocks)
            longer = (waited - rank["planned_s"]) / waits
            each = (step - update_s - waited) / tasks
        found[way] = {"step_s": step, "overhead_s": [max(0.0, longer), max(0.0, each)]}
    return found


def section(cells: list[dict[str, Any]], known: dict[str, Any]) -> list[str]:
    """Return lines in Markdown."""
    lines = ["| network | hosts | links | strategy | predicted, s | measured, s | error |", "| --- | --- | --- | --- | --- | --- | --- |"]
    errors: dict[str, list[float]] = {}
    for cell in cells:
        for row in cell["rows"]:
            for rate, blocks in row.get("measured", {}).items():
                took, said = statistics.median(steps(blocks)), row["simulated_s"][rate]
                errors.setdefault(row["label"], []).append(abs(said / took - 1))
                lines.append(f"| {cell['model']} | {cell['ranks']} | {rate} | {row['label']} | {said:.3f} | {took:.3f} | {said / took - 1:+.1%} |")
    for name, values in errors.items():
        lines.append(f"{name}: {statistics.mean(values):.1%}, at most {max(values):.1%}")
    return lines
