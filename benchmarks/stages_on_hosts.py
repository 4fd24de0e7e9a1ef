#!/usr/bin/env python3
"""Hybrid, pure data, pure stages and GPipe on hosts with an accelerator each, of the same network and batch.

    sudo .venv/bin/python benchmarks/stages_on_hosts.py --rate 1gbit --out stages_on_hosts.json

Hosts and accelerators are emulated as in placement_on_hosts.py, which says how. Stages are planned for the
rate of the links, from the seconds that the accelerators will wait; the predicted step is that of the very
task lists. `data` is a chain of waiting layers under the ring, which takes as long as the network.
`torch-gpipe` and `torch-1f1b` are PyTorch's own schedules on a chain of modules that wait as long as the
stages of our `--planner dynamic`, and send as many bytes.

What an emulated accelerator takes beyond what it is asked for is taken from the step of one host, and what
ranks do themselves for messages is measured when they start; links have the rate that they are given.

Stopped and started again, it measures what `--out` does not hold yet.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import placement_on_hosts
import placement_rank
import placement_table
import stages_of_torch

from trainer import atomic
from trainer.bench.placement_worker import PlacementJob, network_of
from trainer.bench.spreads import spread
from trainer.errors import CingulumError

HERE = Path(__file__).resolve()
WAYS = ("data", "stages", "gpipe", "hybrid")
# PyTorch's own schedules; they need `--peers-python`.
PEERS = ("torch-gpipe", "torch-1f1b")
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
    way = cell["strategy"].removeprefix("torch-")
    if way != "data":
        section = {
            "name": "hybrid",
            "replicas": cell["replicas"],
            "micro_batches": cell["samples"] // cell["replicas"],
            "schedule": "gpipe" if way == "gpipe" else "1f1b",
            "planner": cell["planner"],
        }
    size = cell["size"]
    return PlacementJob(section, cell["model"], size, size, cell["samples"], cell["width"])


def plan_by(cell: dict[str, Any]) -> Any:
    """Return what tells a strategy of stages the seconds of the accelerators and links."""

    def tell(strategy: Any, job: PlacementJob, world: Any) -> None:
        if strategy.name != "hybrid":
            return
        from trainer.strategies.placed.profiling import measuring

        placement_rank.run_first(first=cell["first"])
        handled = measuring.measured_handling(world)
        placement_rank.run_first(first=False)
        strategy.profile = profile(cell, job, handled)

    return tell


def overhead(rows: list[dict[str, Any]]) -> list[float]:
    """Return seconds that a wait takes beyond what it asks for, and a unit or gradient beside its wait.

    They are those of the step of one rank, whatever its network; 0 before one was measured.
    """
    alone = next((row for row in rows if row["ranks"] == 1 and row["strategy"] == "stages"), None)
    if alone is None:
        return [0.0, 0.0]
    rank = alone["blocks"][placement_on_hosts.UNLIMITED][0][0]
    step, (waits, tasks) = statistics.median(steps(alone, placement_on_hosts.UNLIMITED)), rank["calls"]
    longer = (rank["waited_s"] - rank["planned_s"]) / waits
    return [max(0.0, longer), max(0.0, (step - rank["waited_s"]) / tasks)]


def profile(cell: dict[str, Any], job: PlacementJob, handled: Any = None) -> Any:
    """Return the profile of one volume on `cell["ranks"]` hosts, whose seconds are those that are waited.

    Args:
        cell: with what waits and tasks take besides, where that is known: see `overhead`.
        job: what is trained.
        handled: what messages cost ranks themselves.
    """
    import emulated_units

    from trainer.planning.profile import Profile
    from trainer.strategies.placed.reading import read

    ranks, speed = range(cell["ranks"]), cell["gflops"] * 1e9
    longer, each = cell.get("overhead_s", (0.0, 0.0))
    network = read(network_of(job), 1)
    rows = []
    for one in network.operations:
        waits = one.kind in emulated_units.KINDS
        forward = each + (one.flops / speed + longer if waits else 0.0) if one.readings else 0.0
        # Nobody asks for the gradient of the volume; those of inputs and weights are a task each.
        twice = waits and any(network[reading.tensor].readings for reading in one.readings)
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
        "handling": handled and handled.model_dump(),
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


def measure(cell: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Return what a cell's hosts take."""
    if cell["strategy"] not in PEERS:
        return placement_on_hosts.measure(cell, [args.rate], args.repeats, HERE, streams=False)
    job = job_of(cell)
    schedule, micro_batches = job.strategy["schedule"], job.strategy["micro_batches"]
    stages = stages_of_torch.chain(profile(cell, job), job, cell["ranks"], schedule)
    return stages_of_torch.measure(cell, stages, micro_batches, args.repeats, args.peers_python)


def steps(row: dict[str, Any], rate: str) -> list[float]:
    """Return seconds of every counted step: from when all ranks have done the one before until all have.

    A rank may end a step early and wait in the next one: the longest of each would be more than they take.
    """
    found = []
    for block in row["blocks"][rate]:
        ends = zip(
            *(itertools.accumulate([rank.get("began", 0.0), *rank["seconds"][1:]]) for rank in block),
            strict=True,
        )
        found += [after - before for before, after in itertools.pairwise(map(max, ends))]
    return found


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
    parser.add_argument("--ways", nargs="+", choices=(*WAYS, *PEERS), default=list(WAYS))
    parser.add_argument(
        "--peers-python", type=Path, help="with PyTorch, which all hosts see: .venv-peers/bin/python"
    )
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
    parser.add_argument(
        "--calibrated", type=Path, help="figures of one host, of any network, to predict by; default: --out"
    )
    parser.add_argument("--table", type=Path, help="write the table, in Markdown")
    parser.add_argument("--json", action="store_true", help="print all figures, not the table")
    parser.add_argument("--on-rank", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.on_rank:
        placement_rank.on_rank(args.on_rank, job_of(args.on_rank), plan_by(args.on_rank))
        return 0
    if args.peers_python is None and set(PEERS) & set(args.ways):
        parser.error(
            "--ways torch-...: give --peers-python, such as .venv-peers/bin/python (make bench-peers)"
        )
    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    known = json.loads(args.calibrated.read_text()) if args.calibrated else rows
    asked = cells(args)
    try:
        for number, cell in enumerate(asked, start=1):
            if any(cell.items() <= row.items() for row in rows):
                continue
            cell["overhead_s"] = overhead(known)
            said = f"{number}/{len(asked)}: {cell['strategy']}, {cell['ranks']} hosts"
            print(said, file=sys.stderr, flush=True)
            rows.append(measure(cell, args))
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
