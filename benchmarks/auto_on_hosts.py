#!/usr/bin/env python3
"""What `train.strategy=auto` takes, beside what is fastest, on hosts with an accelerator each.

    sudo .venv/bin/python benchmarks/auto_on_hosts.py --first --out auto_on_hosts.json

Hosts and accelerators are emulated as in placement_on_hosts.py, which says how. Each case is a number of
samples, hosts, and a rate of their links. Its candidates are those of trainer/planning/choice.py, predicted
as `auto` predicts them, from the seconds that the accelerators will wait and links of the rate; then each is
timed.
`data` is a chain of waiting layers with the network's weights. With `--calibrated`, the figures of
held_out.py, predictions also know what waits, tasks, updates and messages take besides, as a run measures
these when it starts.

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

import held_out_page
import held_out_predicting
import placement_on_hosts
import placement_rank
import stages_on_hosts

from trainer import atomic
from trainer.bench.placement_worker import PlacementJob
from trainer.errors import CingulumError

HERE = Path(__file__).resolve()
# Hosts, width, edge of the volumes in voxels, samples, rate of links.
CASES = [
    (2, 16, 64, 2, "1gbit"),
    (2, 16, 64, 2, "100mbit"),
    (2, 32, 64, 2, "250mbit"),
    (2, 32, 48, 4, "250mbit"),
    (2, 8, 64, 8, "100mbit"),
    (2, 64, 32, 2, "1gbit"),
    (4, 16, 64, 4, "1gbit"),
    (4, 16, 64, 4, "250mbit"),
    (4, 32, 64, 4, "250mbit"),
    (4, 32, 48, 8, "1gbit"),
]
# Networks that no calibration has seen; of few samples, so that no candidate takes seconds.
OTHERS = {
    "vgg": [(2, 8, 32, 4, "100mbit"), (2, 8, 32, 4, "1gbit"), (4, 8, 32, 4, "100mbit")],
    "unet3d": [(2, 4, 16, 4, "100mbit"), (2, 4, 16, 4, "1gbit"), (4, 4, 16, 4, "100mbit")],
}
# An update within so much of the fastest one is as good.
CLOSE = 1.05


def cells(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the cases."""
    keys = ("ranks", "width", "size", "samples", "rate")
    same = {"model": args.model, "gflops": args.gflops, "steps": args.steps, "first": args.first}
    if args.calibrated:
        same["known"] = held_out_page.known_of(args.calibrated)
    cases = OTHERS.get(args.model, CASES)
    return [{**dict(zip(keys, case, strict=True)), **same} for case in cases[: args.cases]]


def job_of(cell: dict[str, Any]) -> PlacementJob:
    """Return what the ranks of a cell train."""
    size = cell["size"]
    section = cell.get("section", {"name": "data"})
    return PlacementJob(section, cell["model"], size, size, cell["samples"], cell["width"])


def profile(cell: dict[str, Any], job: PlacementJob) -> Any:
    """Return what candidates are predicted by: seconds that are waited, and what was calibrated."""
    if "known" not in cell:
        return stages_on_hosts.profile(cell, job)
    from trainer.planning.simulation import devices
    from trainer.planning.simulation.fabric import ClusterFabric

    hosts = ClusterFabric(held_out_predicting.cluster(cell["known"], cell["rate"]), cell["ranks"])
    return devices.scaled(held_out_predicting.profile(cell["known"], cell, {"name": "spatial"}), hosts)


def planned(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the candidates of a case: label, predicted seconds, section and plan's file."""
    from trainer import config as configuration
    from trainer import models
    from trainer.errors import InputError
    from trainer.forecast import plans
    from trainer.planning import choice

    job, ranks = job_of(cell), cell["ranks"]
    tree = {
        "name": "auto",
        "data": {"shards": "none"},
        "model": {"name": job.model, "width": job.width},
        "train": {"global_batch": job.batch, "strategy": "auto"},
    }
    config = configuration.parse(json.dumps(tree), [])
    model = models.build(job.model, (job.size,) * 3 + (1,), 2, width=job.width)
    asked = plans.DivisionRequest.of(config, model, ranks, profile(cell, job))
    found = []
    for section in choice.sections(
        config.train.strategy, ranks, job.batch, normalised=True, speeds=[1.0] * ranks
    ):
        try:
            outlook = plans.outlook(asked, section, planners_too=False)
        except InputError as error:
            print(f"{choice.label(section)}: {error}", file=sys.stderr)
            continue
        given: dict[str, Any] = {"name": section.name}
        keys = ("replicas", "micro_batches")
        given |= {key: getattr(section, key) for key in keys if hasattr(section, key)}
        found.append(
            {
                "label": choice.label(section),
                "predicted_s": outlook.cost and outlook.cost.step_s,
                "section": given,
                "file": None if section.name == "data" else outlook.file.text(),
            }
        )
    return found


def measure(cell: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Predict the candidates of a case, and time them."""
    rows = []
    for one in planned(cell):
        with tempfile.TemporaryDirectory() as folder:
            section = dict(one["section"])
            if one["file"] is not None:
                path = Path(folder) / "plan.json"
                path.write_text(one["file"])
                section["plan"] = str(path)
            asked = {**cell, "section": section, "strategy": section["name"]}
            row = placement_on_hosts.measure(
                asked, [cell["rate"]], repeats, HERE, shared=Path(folder), streams=False
            )
        steps = stages_on_hosts.steps(row, cell["rate"])
        told = {"label": one["label"], "predicted_s": one["predicted_s"]}
        rows.append({**told, "measured_s": statistics.median(steps), "steps": steps})
        print("  {label}: {predicted_s:.3f} s, {measured_s:.3f} s".format(**rows[-1]), file=sys.stderr)
    return {**cell, "candidates": rows}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines in Markdown: one for each case, and how often the choice is as good as the fastest."""
    lines = [
        "| network | hosts | width, edge, samples | links | auto takes | predicted, s | measured, s "
        "| fastest | measured, s | over it | candidates |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    good = 0
    for row in rows:
        some = row["candidates"]
        taken = min(some, key=lambda one: one["predicted_s"])
        best = min(some, key=lambda one: one["measured_s"])
        over = taken["measured_s"] / best["measured_s"]
        good += over <= CLOSE
        lines.append(
            f"| {row['model']} | {row['ranks']} | {row['width']}, {row['size']}, {row['samples']} "
            f"| {row['rate']} | {taken['label']} | {taken['predicted_s']:.3f} "
            f"| {taken['measured_s']:.3f} | {best['label']} "
            f"| {best['measured_s']:.3f} | {over - 1:.1%} | {len(some)} |"
        )
    every = [one["predicted_s"] / one["measured_s"] for row in rows for one in row["candidates"]]
    lines += [
        "",
        f"As good as the fastest, to {CLOSE - 1:.0%}: {good} of {len(rows)}. Predicted / measured, of "
        f"{len(every)} candidates: {min(every):.2f} to {max(every):.2f}, median "
        f"{statistics.median(every):.2f}.",
    ]
    return lines


def main() -> int:
    """Measure, keep all figures as JSON, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="resnet18", choices=("resnet18", *OTHERS), help="the network")
    parser.add_argument("--calibrated", type=Path, help="figures of held_out.py, to predict by")
    parser.add_argument(
        "--gflops", type=placement_on_hosts.positive(float), default=64.0, help="of an accelerator"
    )
    parser.add_argument("--steps", type=int, default=4, help="per block; the first is not counted")
    parser.add_argument("--repeats", type=int, default=1, help="blocks")
    parser.add_argument("--cases", type=int, default=len(CASES), help="so many of them")
    parser.add_argument("--first", action="store_true", help="ranks run in real time, before all else")
    parser.add_argument("--out", type=Path, default=Path("auto_on_hosts.json"), help="all figures")
    parser.add_argument("--on-rank", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.on_rank:
        placement_rank.on_rank(args.on_rank, job_of(args.on_rank))
        return 0
    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    asked = cells(args)
    try:
        for cell in asked:
            if any(cell.items() <= row.items() for row in rows):
                continue
            print(f"{cell['ranks']} hosts, {cell['rate']}", file=sys.stderr, flush=True)
            rows.append(measure(cell, args.repeats))
            atomic.write_text(args.out, json.dumps(rows, indent=1) + "\n")
    except CingulumError as error:
        raise SystemExit(f"error: {error}") from None
    print("\n".join(table([next(row for row in rows if cell.items() <= row.items()) for cell in asked])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
