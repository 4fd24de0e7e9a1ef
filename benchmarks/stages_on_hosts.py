#!/usr/bin/env python3
"""Hybrid, pure data, pure stages and GPipe on hosts with an accelerator each, of the same network and batch.

    sudo .venv/bin/python benchmarks/stages_on_hosts.py --rate 1gbit --out stages_on_hosts.json

Hosts and accelerators are emulated as in placement_on_hosts.py, which says how. Stages are planned for the
rate of the links, from the seconds that the accelerators will wait; the predicted step is that of the very
task lists. `data` is a chain of waiting layers under the ring, which takes as long as the network.

Stopped and started again, it measures what `--out` does not hold yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import placement_on_hosts
import placement_rank
import placement_table

from trainer import atomic
from trainer.bench.placement_worker import PlacementJob
from trainer.bench.spreads import spread
from trainer.errors import CingulumError

HERE = Path(__file__).resolve()
WAYS = ("data", "stages", "gpipe", "hybrid")
# Of a message, beside its bytes: what two hosts of one machine need at least.
LATENCY_S = 2e-4
BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits_per_second(rate: str) -> float:
    """Return a rate such as 1gbit as a number."""
    unit = next(unit for unit in BITS if rate.endswith(unit))
    return float(rate.removesuffix(unit)) * BITS[unit]


def job_of(cell: dict[str, Any]) -> PlacementJob:
    """Return what the ranks of a cell train; a micro-batch is one volume of each replica."""
    section: dict[str, Any] = {"name": "data"}
    if cell["strategy"] != "data":
        section = {
            "name": "hybrid",
            "replicas": cell["replicas"],
            "micro_batches": cell["samples"] // cell["replicas"],
            "schedule": "gpipe" if cell["strategy"] == "gpipe" else "1f1b",
            "planner": cell["planner"],
        }
    size = cell["size"]
    return PlacementJob(section, cell["model"], size, size, cell["samples"], cell["width"])


def plan_by(cell: dict[str, Any]) -> Any:
    """Return what tells a strategy of stages the seconds of the accelerators and links."""

    def tell(strategy: Any, job: PlacementJob) -> None:
        if strategy.name == "hybrid":
            strategy.profile = profile(cell, job)

    return tell


def profile(cell: dict[str, Any], job: PlacementJob) -> Any:
    """Return the profile of one volume on `cell["ranks"]` hosts, whose seconds are those that are waited."""
    from trainer import models
    from trainer.bench import emulated_units
    from trainer.planning.profile import Profile
    from trainer.strategies.placed.reading import read

    ranks, speed = range(cell["ranks"]), cell["gflops"] * 1e9
    network = read(models.build(job.model, (job.size,) * 3 + (1,), 2, width=job.width), 1)
    rows = []
    for one in network.operations:
        forward = one.flops / speed if one.kind in emulated_units.KINDS else 0.0
        # Nobody asks for the gradient of the volume.
        twice = any(network[reading.tensor].readings for reading in one.readings)
        row = {"name": one.name, "kind": one.kind, "layer": one.layer, "measured": "", "flops": one.flops}
        row |= {"parameter_bytes": 0, "output_bytes": 0}
        row |= {"forward_s": [forward for _ in ranks], "backward_s": [(1 + twice) * forward for _ in ranks]}
        rows.append(row | {f"{way}_spread_s": [0.0 for _ in ranks] for way in ("forward", "backward")})
    link = {"latency_s": LATENCY_S, "bytes_per_second": bits_per_second(cell["rate"]) / 8}
    tree = {
        "version": 1, "network": job.model, "sample_shape": [job.size] * 3 + [1], "batch": 1,
        "precision": "float32", "made": {"time": "", "versions": {}},
        "devices": [{"host": f"n{rank}", "name": "emulated", "threads": 1} for rank in ranks],
        "operations": rows,
        "update": {"parameters": network.parameters, "seconds": [0.0 for _ in ranks],
                   "spread_s": [0.0 for _ in ranks]},
        "links": [[None if a == b else link for b in ranks] for a in ranks],
    }  # fmt: skip
    return Profile.parse(json.dumps(tree), "emulated")


def cells(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what to measure."""
    same = {name: getattr(args, name) for name in ("model", "width", "size", "samples", "gflops", "steps")}
    same |= {"first": args.first, "rate": args.rate, "planner": args.planner}
    found = []
    for ranks in args.ranks:
        for way in args.ways:
            several = [n for n in (2, 4) if way == "hybrid" and 2 * n <= ranks]
            if ranks == 1 and way != "stages":
                continue
            found += [
                {"strategy": way, "ranks": ranks, "replicas": replicas, **same}
                for replicas in (several if way == "hybrid" else [1])
            ]
    return found


def steps(row: dict[str, Any], rate: str) -> list[float]:
    """Return seconds of every counted step, of the slowest rank: one without a stage waits for nobody."""
    return [
        max(seconds)
        for block in row["blocks"][rate]
        for seconds in zip(*(rank["seconds"][1:] for rank in block), strict=True)
    ]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines in Markdown: one for each way and number of hosts."""
    lines = [
        "| strategy | hosts | replicas x ranks | s per step (lowest, highest) | speed-up | predicted, s "
        "| predicted / measured | accelerator idle | sent, MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    alone = next((row for row in rows if row["ranks"] == 1), None)
    for row in rows:
        rate = placement_on_hosts.UNLIMITED if row["ranks"] == 1 else row["rate"]
        step = spread("s", steps(row, rate))
        before = alone and statistics.median(steps(alone, placement_on_hosts.UNLIMITED))
        everyones = row["blocks"][rate][0]
        busy = statistics.mean(rank["waited_s"] for rank in everyones)
        predicted = everyones[0]["predicted_s"]
        counted, wire = placement_table.sent(row, rate)
        gain = "" if before is None else f"{before / step['s']:.2f}"
        shown = "" if predicted is None else f"{predicted:.3f} | {predicted / step['s']:.3f}"
        lines.append(
            f"| {row['strategy']} | {row['ranks']} | {row['replicas']} x {row['ranks'] // row['replicas']} "
            f"| {step['s']:.3f} ({step['s_min']:.3f}, {step['s_max']:.3f}) "
            f"| {gain} | {shown or ' | '} "
            f"| {1 - busy / step['s']:.0%} | {(wire if counted is None else counted) / 1e6:.2f} |"
        )
    return lines


def main() -> int:
    """Measure, keep all figures as JSON, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4, 8], help="one on each host")
    parser.add_argument("--rate", default="1gbit", help="of links, such as 10gbit")
    parser.add_argument("--model", default="resattnet18", help="a registered network")
    parser.add_argument("--width", type=int, default=16, help="of its first stage")
    parser.add_argument("--size", type=int, default=64, help="edge of the volumes, in voxels")
    parser.add_argument("--samples", type=int, default=8, help="volumes of an update, of all ranks")
    parser.add_argument("--planner", default="gabra", choices=("gabra", "dynamic", "milp"))
    parser.add_argument("--gflops", type=float, default=32.0, help="of an accelerator")
    parser.add_argument("--steps", type=int, default=5, help="per block; the first is not counted")
    parser.add_argument("--repeats", type=int, default=3, help="blocks")
    parser.add_argument("--first", action="store_true", help="ranks run in real time, before all else")
    parser.add_argument("--out", type=Path, default=Path("stages_on_hosts.json"), help="all figures")
    parser.add_argument("--table", type=Path, help="write the table, in Markdown")
    parser.add_argument("--json", action="store_true", help="print all figures, not the table")
    parser.add_argument("--on-rank", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.on_rank:
        placement_rank.on_rank(args.on_rank, job_of(args.on_rank), plan_by(args.on_rank))
        return 0
    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    asked = cells(args)
    try:
        for number, cell in enumerate(asked, start=1):
            if any(cell.items() <= row.items() for row in rows):
                continue
            said = f"{number}/{len(asked)}: {cell['strategy']}, {cell['ranks']} hosts"
            print(said, file=sys.stderr, flush=True)
            rows.append(placement_on_hosts.measure(cell, [args.rate], args.repeats, HERE))
            atomic.write_text(args.out, json.dumps(rows, indent=1) + "\n")
    except CingulumError as error:
        raise SystemExit(f"error: {error}") from None
    mine = [next(row for row in rows if cell.items() <= row.items()) for cell in asked]
    lines = table(mine)
    if args.table:
        args.table.write_text("\n".join(lines) + "\n")
    print(json.dumps(mine, indent=2) if args.json else "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
