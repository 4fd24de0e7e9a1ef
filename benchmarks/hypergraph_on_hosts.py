#!/usr/bin/env python3
"""A network divided by its hypergraph, layers, space, channels and data on hosts with an accelerator each.

    sudo .venv/bin/python benchmarks/hypergraph_on_hosts.py --first --out hypergraph_on_hosts.json

Hosts and accelerators are emulated as in placement_on_hosts.py, which says how. The ways, of one network and
the same samples:

    time            train.strategy=hypergraph with objective: time, planned for each rate of the links
    volume          the same with objective: volume and balance: total
    volume-layers   the same with objective: volume and balance: layers
    layers          whole layers, one rank after the other, cut where ranks have most equal FLOPs
    spatial         depth everywhere, small maps along channels
    filters         channels everywhere
    data            a chain of waiting layers under the ring, which takes as long as the network; where ranks
                    are more than samples, with one sample for each rank

All but `data` train by a plan's file. The predicted step is that of its task lists, with the seconds that the
accelerators wait and links of the rate. A speed-up is that of samples per second.

Stopped and started again, it measures what `--out` does not hold yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import placement_on_hosts
import placement_rank
import placement_table
import stages_on_hosts
from placement_on_hosts import UNLIMITED, link_rate, positive

from trainer import atomic
from trainer.bench.placement_worker import PlacementJob
from trainer.bench.spreads import spread
from trainer.errors import CingulumError

HERE = Path(__file__).resolve()
SEARCHED: dict[str, dict[str, Any]] = {
    "time": {"objective": "time"},
    "volume": {"objective": "volume"},
    "volume-layers": {"objective": "volume", "balance": "layers"},
}
WAYS = (*SEARCHED, "layers", "spatial", "filters", "data")


def job_of(cell: dict[str, Any]) -> PlacementJob:
    """Return what the ranks of a cell train."""
    way, size = cell["strategy"], cell["size"]
    batch = max(cell["samples"], cell["ranks"]) if way == "data" else cell["samples"]
    section = {"name": "data"} if way == "data" else {"name": "hypergraph", "plan": cell.get("plan")}
    return PlacementJob(section, cell["model"], size, size, batch, cell["width"])


def cells(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what to measure: each way, planned for any rate or for one; a single host has one way."""
    same = {name: getattr(args, name) for name in ("model", "width", "size", "samples", "gflops", "steps")}
    same["first"] = args.first
    return [
        {"strategy": way, "ranks": ranks, "planned_for": rate, **same}
        for ranks in args.ranks
        for way in (args.ways if ranks > 1 else ["layers"])
        for rate in (args.rates if way == "time" else [None])
    ]


def rates_of(cell: dict[str, Any], rates: list[str]) -> list[str]:
    """Return the rates that links of a cell take."""
    return rates if cell["planned_for"] is None else [cell["planned_for"]]


def planned(cell: dict[str, Any], rates: list[str]) -> tuple[Any, dict[str, Any]]:
    """Return a cell's plan as a `PlanFile`, and its label, bytes by cause, and predicted seconds by rate."""
    from trainer import models
    from trainer.planning.hypergraph import judging, planning
    from trainer.planning.hypergraph.planning import uniform
    from trainer.planning.hypergraph.wanted import PartitionGoal
    from trainer.planning.placement.plan_file import PlanFile
    from trainer.planning.placement.units import place
    from trainer.strategies.placed.reading import read

    job, ranks, way = job_of(cell), cell["ranks"], cell["strategy"]
    shape = (job.size,) * 3 + (1,)
    network = read(models.build(job.model, shape, 2, width=job.width), job.batch)
    profiles = {rate: stages_on_hosts.profile({**cell, "rate": rate}, job) for rate in rates}
    if way in SEARCHED:
        known = profiles[rates[0]] if way == "time" else None
        best = planning.plan(network, ranks, PartitionGoal(**SEARCHED[way]), profile=known).best
        label, layouts = best.label, best.layouts
    else:
        label, layouts = way, uniform(network, ranks, [1.0] * ranks)[way]
    judged = {rate: judging.judged(label, network, layouts, one, ranks) for rate, one in profiles.items()}
    told = {
        "label": label,
        "bytes": {str(cause): size for cause, size in judged[rates[0]].bytes.items()},
        "predicted_s": {UNLIMITED if ranks == 1 else rate: one.step_s for rate, one in judged.items()},
    }
    file = PlanFile.of(place(network, layouts), name=job.model, strategy="hypergraph", ranks=ranks)
    return file, told


def measure(cell: dict[str, Any], rates: list[str], repeats: int) -> dict[str, Any]:
    """Plan a cell, and time it on links of its rates; plain streams beside `data`."""
    if cell["strategy"] == "data":
        return placement_on_hosts.measure(cell, rates, repeats, HERE)
    with tempfile.TemporaryDirectory() as folder:
        file, told = planned(cell, rates)
        path = Path(folder) / "plan.json"
        path.write_text(file.text())
        asked = {**cell, "plan": str(path)}
        row = placement_on_hosts.measure(asked, rates, repeats, HERE, shared=Path(folder), streams=False)
    return {**row, **told}


def samples_per_second(row: dict[str, Any], rate: str) -> float:
    """Return samples that all ranks train together, over the median seconds of a step."""
    return job_of(row).batch / statistics.median(stages_on_hosts.steps(row, rate))


def table(rows: list[dict[str, Any]], rates: list[str]) -> list[str]:
    """Return lines in Markdown: one for each number of hosts, rate and way.

    Raises:
        ValueError: a rank has not sent what the plan says.
    """
    lines = [
        "| hosts | links | way | s per step (lowest, highest) | speed-up | predicted, s "
        "| predicted / measured | all send, MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    alone = next((row for row in rows if row["ranks"] == 1), None)
    before = alone and samples_per_second(alone, UNLIMITED)
    for ranks in dict.fromkeys(row["ranks"] for row in rows):
        for rate in [UNLIMITED] if ranks == 1 else rates:
            some = [row for row in rows if row["ranks"] == ranks and rate in row["blocks"]]
            lines += [_line(row, rate, before) for row in some]
    return lines


def _line(row: dict[str, Any], rate: str, before: float | None) -> str:
    step = spread("s", stages_on_hosts.steps(row, rate))
    gain = "" if before is None else f"{samples_per_second(row, rate) / before:.2f}"
    predicted = row.get("predicted_s", {}).get(rate)
    shown = "" if predicted is None else f"{predicted:.3f} | {predicted / step['s']:.2f}"
    placement_table.sent(row, rate)
    everyones = row["blocks"][rate][0]
    size = sum(rank["wire_bytes" if rank["sent_bytes"] is None else "sent_bytes"] for rank in everyones)
    return (
        f"| {row['ranks']} | {'' if row['ranks'] == 1 else rate} | {row['strategy']} "
        f"| {step['s']:.3f} ({step['s_min']:.3f}, {step['s_max']:.3f}) "
        f"| {gain} | {shown or ' | '} | {size / 1e6:.2f} |"
    )


def main() -> int:
    """Measure, keep all figures as JSON, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    number = positive(int)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--ranks", nargs="+", type=number, default=[1, 2, 4, 8], help="one on each host")
    parser.add_argument("--rates", nargs="+", type=link_rate, default=["200mbit", "1gbit"], help="of links")
    parser.add_argument("--model", default="resnet18", help="a registered network")
    parser.add_argument("--width", type=number, default=16, help="of its first stage")
    parser.add_argument("--size", type=number, default=96, help="edge of the volumes, in voxels")
    parser.add_argument("--samples", type=number, default=1, help="volumes of an update")
    parser.add_argument("--gflops", type=positive(float), default=32.0, help="of an accelerator")
    parser.add_argument("--steps", type=number, default=6, help="per block; the first is not counted")
    parser.add_argument("--repeats", type=number, default=3, help="blocks on each kind of link")
    parser.add_argument("--first", action="store_true", help="ranks run in real time, before all else")
    parser.add_argument("--out", type=Path, default=Path("hypergraph_on_hosts.json"), help="all figures")
    parser.add_argument("--table", type=Path, help="write the table, in Markdown")
    parser.add_argument("--json", action="store_true", help="print all figures, not the table")
    parser.add_argument("--on-rank", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.on_rank:
        placement_rank.on_rank(args.on_rank, job_of(args.on_rank))
        return 0
    if args.steps < 2:
        parser.error("--steps: take 2 or more: the first is not counted")
    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    asked = cells(args)
    try:
        for count, cell in enumerate(asked, start=1):
            rates = rates_of(cell, args.rates)
            if any(placement_on_hosts.holds(row, cell, rates, args.repeats) for row in rows):
                continue
            said = f"{count}/{len(asked)}: {cell['strategy']}, {cell['ranks']} hosts"
            print(said, file=sys.stderr, flush=True)
            row = measure(cell, rates, args.repeats)
            rows = [one for one in rows if not cell.items() <= one.items()] + [row]
            atomic.write_text(args.out, json.dumps(rows, indent=1) + "\n")
    except CingulumError as error:
        raise SystemExit(f"error: {error}") from None
    mine = [next(row for row in rows if cell.items() <= row.items()) for cell in asked]
    lines = table(mine, args.rates)
    if args.table:
        args.table.write_text("\n".join(lines) + "\n")
    print(json.dumps(mine, indent=2) if args.json else "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
