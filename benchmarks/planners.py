#!/usr/bin/env python3
"""Compare planners of stages on problems drawn at random: GABRA, LPT, the dynamic program, MILP, brute force.

    .venv/bin/python benchmarks/planners.py --json planners.json

Small problems have up to 10 partitions and 4 devices: what each planner finds over the optimum. Larger ones
have up to 20 and 8: wins, ties and losses of GABRA against each planner, and the gap to the bound that the
mixed-integer program proves. Needs one core; nothing is trained. Stopped and started again, it goes on with
what `--json` does not hold yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainer.planning.stages.dynamic import dynamic
from trainer.planning.stages.exhaustive import exhaustive
from trainer.planning.stages.gabra import gabra
from trainer.planning.stages.greedy import longest_first
from trainer.planning.stages.instances import FAMILIES, drawn
from trainer.planning.stages.milp import milp
from trainer.planning.stages.planners import bound_s, plan_gabra
from trainer.planning.stages.problem import SCHEDULES, StageProblem
from trainer.planning.stages.steps import fitness, longest_s

# Steps that differ by less are the same one, added up in another order.
SAME = 1e-9
WITHIN = 0.01

Row = dict[str, Any]
# By name: GABRA as published, with numbers of ours; more of it; each extension alone; as `plan` runs it.
SEARCHES: dict[str, Callable[[StageProblem, int], tuple[int, ...]]] = {
    "gabra as published": lambda problem, seed: gabra(problem, seed=seed).devices,
    "as published, population 300": lambda problem, seed: gabra(problem, seed=seed, population=300).devices,
    "started": lambda problem, seed: (
        gabra(problem, seed=seed, started=[longest_first(problem), dynamic(problem)]).devices
    ),
    "distinct": lambda problem, seed: gabra(problem, seed=seed, distinct=True).devices,
    "climbing": lambda problem, seed: gabra(problem, seed=seed, climbing=True).devices,
    "gabra as planned": plan_gabra,
}
# For larger problems.
FEW = ("gabra as published", "gabra as planned")


def problems(size: str, count: int, seed: int) -> Iterator[tuple[str, Row, StageProblem]]:
    """Yield key, description and problem; families and schedules take turns."""
    rng = np.random.default_rng([seed, size == "small"])
    for number in range(count):
        family = FAMILIES[number % len(FAMILIES)]
        schedule = SCHEDULES[number // len(FAMILIES) % len(SCHEDULES)]
        small = size == "small"
        # Every other small problem is of the largest size: there it is hardest.
        partitions = int(rng.integers(3, 11)) if small else int(rng.integers(12, 21))
        devices = int(rng.integers(2, 5)) if small else int(rng.integers(4, 9))
        if small and number // (len(FAMILIES) * len(SCHEDULES)) % 2 == 0:
            partitions, devices = 10, 4
        micro_batches = int(rng.choice([1, 4, 8] if small else [4, 8, 16]))
        about = {"partitions": partitions, "devices": devices, "micro_batches": micro_batches}
        problem = drawn(family, seed + number, schedule=schedule, **about)
        yield f"{size} {number}", {"family": family, "schedule": schedule, **about}, problem


def measure(size: str, problem: StageProblem, about: Row, seed: int, time_limit_s: float) -> Row:
    """Return what each planner finds: fitness, seconds it took, and whether it fits into memory."""
    found: dict[str, Row] = {}

    def note(name: str, planner: Callable[[], tuple[int, ...] | None]) -> None:
        begun = time.perf_counter()
        devices = planner() or longest_first(problem)
        took = time.perf_counter() - begun
        cost = float(fitness(problem, [devices])[0])
        found[name] = {"s": cost, "took_s": took, "fits": cost <= longest_s(problem)}

    solved = []
    for name, search in SEARCHES.items():
        if size == "small" or name in FEW:
            note(name, lambda search=search: search(problem, seed))
    note("lpt", lambda: longest_first(problem))
    note("dynamic", lambda: dynamic(problem))
    note("milp", lambda: solved.append(milp(problem, time_limit_s=time_limit_s)) or solved[0].devices)
    if size == "small":
        note("brute force", lambda: exhaustive(problem).devices)
    return {**about, "planners": found, "bound_s": bound_s(problem, solved[0])}


def over_the_optimum(rows: list[Row]) -> list[str]:
    """Return a table in Markdown: each planner's steps over those of brute force."""
    rows = [row for row in rows if row["planners"]["brute force"]["fits"]]
    lines = [
        f"{len(rows)} problems of up to 10 partitions x 4 devices that have an assignment within memory:",
        "",
        "| planner | within 1 % of the optimum | the optimum | median over it | worst over it "
        "| does not fit | median s taken |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in rows[0]["planners"]:
        fitting = [row for row in rows if row["planners"][name]["fits"]]
        over = [row["planners"][name]["s"] / row["planners"]["brute force"]["s"] - 1 for row in fitting]
        took = statistics.median(row["planners"][name]["took_s"] for row in rows)
        lines.append(
            f"| {name} | {_share(sum(one <= WITHIN for one in over), len(rows))} "
            f"| {_share(sum(one <= SAME for one in over), len(rows))} | {statistics.median(over):.2%} "
            f"| {max(over):.2%} | {len(rows) - len(fitting)} | {took:.2f} |"
        )
    bounds = [row["planners"]["brute force"]["s"] / row["bound_s"] - 1 for row in rows]
    worst = max(bounds)
    return [
        *lines,
        "",
        f"The optimum over the bound: median {statistics.median(bounds):.1%}, worst {worst:.1%}.",
    ]


def against(rows: list[Row]) -> list[str]:
    """Return a table in Markdown: GABRA as planned against each planner."""
    lines = [
        f"{len(rows)} problems of 12 to 20 partitions x 4 to 8 devices, GABRA as planned against each:",
        "",
        "| planner | wins | ties | losses | does not fit | median of its step over GABRA's | least | most "
        "| its median gap to the bound | worst | median s taken |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in rows[0]["planners"]:
        ratios, gaps, misfits = [], [], 0
        for row in rows:
            ours, theirs = row["planners"]["gabra as planned"], row["planners"][name]
            if theirs["fits"]:
                ratios.append(theirs["s"] / ours["s"] if ours["fits"] else 0.0)
                gaps.append(theirs["s"] / row["bound_s"] - 1)
            misfits += ours["fits"] and not theirs["fits"]
        wins, losses = sum(one > 1 + SAME for one in ratios), sum(one < 1 - SAME for one in ratios)
        took = statistics.median(row["planners"][name]["took_s"] for row in rows)
        lines.append(
            f"| {name} | {wins} | {len(ratios) - wins - losses} | {losses} | {misfits} "
            f"| {statistics.median(ratios):.3f} | {min(ratios):.3f} | {max(ratios):.3f} "
            f"| {statistics.median(gaps):.1%} | {max(gaps):.1%} | {took:.2f} |"
        )
    return lines


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}"


def main() -> None:
    """Measure, and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", type=int, default=120, help="how many small problems")
    parser.add_argument("--large", type=int, default=100, help="how many larger ones")
    parser.add_argument("--seed", type=int, default=0, help="of the problems, and of GABRA")
    parser.add_argument("--time-limit", type=float, default=2.0, help="seconds of the mixed-integer program")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    done: dict[str, Row] = {}
    if options.json and options.json.exists():
        done = json.loads(options.json.read_text())
    for size, count in (("small", options.small), ("large", options.large)):
        for key, about, problem in problems(size, count, options.seed):
            if key in done:
                continue
            done[key] = measure(size, problem, about, options.seed, options.time_limit)
            print(f"{key} of {count}: {about['family']}", file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(done, indent=1) + "\n")
        rows = [row for key, row in done.items() if key.startswith(size)]
        if rows:
            print("\n".join(over_the_optimum(rows) if size == "small" else against(rows)), end="\n\n")


if __name__ == "__main__":
    main()
