#!/usr/bin/env python3
"""Volume, balance and predicted step of placements that nobody designed, against every rule.

    .venv/bin/python benchmarks/hypergraph_table.py --out hypergraph.json --page hypergraph.md

Nothing is trained and no rank is launched: bytes are those of the task lists that ranks would play (tests see
that as many cross), seconds those of the same lists on the reference accelerator, 8 TFLOP/s with a link of
250 Gbit/s. Peers of the same command: ring all-reduce; samples, space, channels (with and without a master)
and whole layers, each cut by one rule; tiles on ranks at random. Stopped and started again, it makes what
`--out` does not hold yet.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import hypergraph_page
import numpy as np

from trainer import atomic
from trainer.quiet import import_tensorflow

# Name, width (None: the network's own), edge of the volume.
NETWORKS: dict[str, tuple[int | None, int]] = {
    "resnet18": (64, 96),
    "resattnet34": (None, 96),
    "densenet121": (None, 64),
    "unet3d": (16, 64),
    "vgg": (None, 64),
}
PLANS = (("volume", "total"), ("volume", "layers"), ("time", "total"))
SEED = 0


def cell(name: str, ranks: int, batch: int) -> dict[str, Any]:
    """Return what all ways to divide a network over ranks send, and take."""
    from trainer import models
    from trainer.planning.hypergraph import planning
    from trainer.planning.hypergraph.candidates import tilings
    from trainer.planning.hypergraph.groups import groups
    from trainer.planning.hypergraph.nets import hypergraph
    from trainer.planning.hypergraph.traffic import Traffic
    from trainer.planning.hypergraph.wanted import PartitionGoal
    from trainer.strategies.placed.reading import read

    width, size = NETWORKS[name]
    dense = name.startswith("unet")
    network = read(models.build(name, (size, size, size, 1), 2, width=width, dense=dense), batch)
    rows: list[dict[str, Any]] = []
    for objective, balance in PLANS:
        started = time.perf_counter()
        found = planning.plan(network, ranks, PartitionGoal(objective, balance))
        took = time.perf_counter() - started
        label = f"hypergraph, {objective}" + (", layers balanced" if balance == "layers" else "")
        rows.append({**_row(label, found.best), "planned_s": took, "start": found.best.label})
    rows += [_row(one.label, one) for one in found.uniform]
    some, draw = groups(network), np.random.default_rng(SEED)
    tilings_of = dict(tilings(some, ranks, ranks))
    # With many layers and ranks there would be too many tiles of both.
    finest = tilings_of.get(f"depth, channels in {ranks}") or tilings_of[f"depth in {ranks}"]
    tiles = hypergraph(network, some, finest)
    parts = draw.integers(ranks, size=len(tiles.weights)).tolist()
    crossing = Traffic(network, some).total(tiles.layouts(some, parts))
    rows.append({"label": "tiles at random", "bytes": crossing})
    return {
        "network": name,
        "width": width,
        "size": size,
        "ranks": ranks,
        "batch": batch,
        "parameters": network.parameters,
        "ring": 2 * (ranks - 1) * 4 * network.parameters,
        "rows": rows,
    }


def _row(label: str, one: Any) -> dict[str, Any]:
    return {
        "label": label,
        "bytes": dict(one.bytes),
        "step_s": one.step_s,
        "imbalance": one.imbalance,
        "layer_imbalance": one.layer_imbalance,
    }


def main() -> int:
    """Make all cells, keep them as JSON, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4, 8, 16])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16, 128], help="samples of an update")
    parser.add_argument("--out", type=Path, default=Path("hypergraph.json"), help="all figures")
    parser.add_argument("--page", type=Path, help="write the page, in Markdown")
    parser.add_argument("--no-more", action="store_true", help="make no cells: the page of those in --out")
    args = parser.parse_args()
    if min(*args.ranks, 2) < 2 or min(args.batches) < 1:
        parser.error("take two ranks or more, and one sample or more")
    import_tensorflow()
    cells = json.loads(args.out.read_text()) if args.out.exists() else []
    asked = [(n, k, b) for b in args.batches for k in args.ranks for n in args.networks]
    for number, (name, ranks, batch) in enumerate([] if args.no_more else asked, start=1):
        if not any((one["network"], one["ranks"], one["batch"]) == (name, ranks, batch) for one in cells):
            said = f"{number}/{len(asked)}: {name}, {ranks} ranks, {batch} sample(s)"
            print(said, file=sys.stderr, flush=True)
            cells.append(cell(name, ranks, batch))
            atomic.write_text(args.out, json.dumps(cells, indent=1) + "\n")
    lines = hypergraph_page.page(
        [one for one in cells if (one["network"], one["ranks"], one["batch"]) in asked]
    )
    if args.page:
        args.page.write_text("\n".join(lines) + "\n")
    else:
        print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
