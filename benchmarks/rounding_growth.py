#!/usr/bin/env python3
"""How far the weights of several ranks are from those of plain Keras, step by step, and why.

    .venv/bin/python benchmarks/rounding_growth.py --picture rounding-growth.png

Every network is trained on the same batches in five ways: plain Keras in one process; the same with the
samples of each batch in another order, which changes nothing but the order of sums; on several ranks, with
synchronous batch norm; and the first and the last in float64 as well. Two results are compared by the length
of their difference over the length of the way from the first weights: 0 is equal, 1 is as far apart as the
training went. docs/explanation/equality.md tells what it printed.

One thread per process, deterministic operations. `--switches` also counts the inputs of ReLUs whose sign
before the first step is another one in float32 than in float64.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rounding import switches
from rounding.tables import draw, study, table

NETWORKS = ["tiny", "sfcn", "resattnet18", "resattnet18:group"]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description="How far ranks are from plain Keras, and how far rounding goes."
    )
    parser.add_argument(
        "--networks", nargs="+", default=NETWORKS, metavar="NAME[:NORMALISATION[:ACTIVATION]]"
    )
    parser.add_argument("--rates", nargs="+", type=float, default=[0.001, 0.01], help="of SGD")
    parser.add_argument("--worlds", nargs="+", type=int, default=[1, 2, 3, 4], help="numbers of ranks")
    parser.add_argument("--batch", type=int, default=12, help="samples over all ranks (default: 12)")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--edge", type=int, default=32, help="of the volumes, in voxels (default: 32)")
    parser.add_argument("--seeds", type=int, default=1, help="sets of weights and batches (default: 1)")
    parser.add_argument("--first-seed", type=int, default=0, help="number of the first set (default: 0)")
    parser.add_argument("--orders", type=int, default=1, help="other orders in one process (default: 1)")
    parser.add_argument(
        "--switches", action="store_true", help="count ReLUs whose input has another sign than in float64"
    )
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    args = parser.parse_args()
    for ranks in args.worlds:
        if ranks < 1 or args.batch % ranks:
            parser.error(f"--batch {args.batch} cannot be divided over {ranks} ranks")
    asked = (
        "networks",
        "rates",
        "batch",
        "steps",
        "edge",
        "seeds",
        "first_seed",
        "orders",
        "switches",
    )
    rows = study({name: getattr(args, name) for name in asked}, args.worlds)
    lines = [*table(rows), *(["", *switches.table(rows)] if args.switches else [])]
    print(json.dumps(rows, indent=2) if args.json else "\n".join(lines))
    if args.picture:
        draw(args.picture, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
