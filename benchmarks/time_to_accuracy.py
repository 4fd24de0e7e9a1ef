#!/usr/bin/env python3
"""Epochs and seconds until a validation AUC is reached, by each way to divide the work over two ranks.

    cingulum phantom cohort --subjects 300 --size 48 --gap 4 --groups AD,NC --seed 0
    cingulum import cohort shards --label diagnosis --size 32
    .venv/bin/python benchmarks/time_to_accuracy.py shards --out time_to_accuracy.json

The recipe is that of examples/demo.yaml. Updates of all these ways are the same but for rounding: a way
reaches an accuracy sooner where its steps take less, and for no other reason. Seconds are those of epochs,
with validation. Stopped and started again, it trains what `--out` does not hold yet; `--limit` ends it early.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trainer import atomic

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
# Ranks, and changes of the configuration.
WAYS: dict[str, tuple[int, tuple[str, ...]]] = {
    "one rank": (1, ()),
    "data": (2, ()),
    "spatial": (2, ("train.strategy=spatial",)),
    "filters": (2, ("train.strategy=filters",)),
    "hybrid": (2, ("train.strategy=hybrid",)),
    "hypergraph": (2, ("train.strategy=hypergraph",)),
    "hypergraph, layers": (
        2,
        ("train.strategy=hypergraph", "train.strategy.objective=volume", "train.strategy.balance=layers"),
    ),
}
EPOCH_S = 60.0


def train(way: str, seed: int, shards: Path, epochs: int) -> dict[str, Any]:
    """Train once; return AUC and seconds of each epoch, and the rate of samples.

    Raises:
        subprocess.CalledProcessError: the training failed; its output was shown.
    """
    ranks, changes = WAYS[way]
    launch = [str(BIN / "mpirun"), "-np", str(ranks)] if ranks > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        line = [
            *launch, str(BIN / "cingulum"), "train", str(ROOT / "examples/demo.yaml"), "name=run",
            f"runs={folder}", f"data.shards={shards.resolve()}", "data.split.validation=0.3",
            "data.split.test=0.1", f"train.epochs={epochs}", f"train.seed={seed}", "train.threads=1",
            f"checkpoint.every_epochs={epochs}", *changes,
        ]  # fmt: skip
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, timeout=EPOCH_S * (epochs + 2))
        rows = [json.loads(text) for text in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
    return {
        "way": way,
        "seed": seed,
        "epochs": epochs,
        "auc": [row["val_auc"] for row in rows],
        "seconds": [row["seconds"] for row in rows],
        "samples_per_second": [row["samples_per_second"] for row in rows],
    }


def reached(row: dict[str, Any], target: float) -> int | None:
    """Return the epoch after which the AUC is as high; None where it never is."""
    return next((number for number, auc in enumerate(row["auc"], start=1) if auc >= target), None)


def table(rows: list[dict[str, Any]], target: float) -> list[str]:
    """Return a row for each way, of all its seeds."""
    lines = [
        f"| way | ranks | epochs to {target:g}, by seed | an epoch, s: median (lowest, highest) | all, s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for way, (ranks, _) in WAYS.items():
        own = sorted((row for row in rows if row["way"] == way), key=lambda row: row["seed"])
        # The first epoch traces the network.
        each = [seconds for row in own for seconds in row["seconds"][1:]]
        if not each:
            continue
        epochs = [reached(row, target) for row in own]
        middle = statistics.median(each)
        told = ", ".join("-" if one is None else str(one) for one in epochs)
        there = [one for one in epochs if one is not None]
        whole = f"{statistics.mean(there) * middle:.1f}" if there else "-"
        spread = f"{middle:.2f} ({min(each):.2f}, {max(each):.2f})"
        lines.append(f"| {way} | {ranks} | {told} | {spread} | {whole} |")
    return lines


def main() -> int:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--target", type=float, default=0.9, help="validation AUC")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="begin nothing after so many seconds"
    )
    parser.add_argument("--out", type=Path, default=Path("time_to_accuracy.json"), help="all figures")
    args = parser.parse_args()
    if args.epochs < 2:
        parser.error("--epochs: take 2 or more: the first is not counted")
    rows, began = json.loads(args.out.read_text()) if args.out.exists() else [], time.monotonic()
    for seed in args.seeds:
        for way in args.ways:
            known = any((row["way"], row["seed"], row["epochs"]) == (way, seed, args.epochs) for row in rows)
            if not known and time.monotonic() - began < args.limit:
                print(f"seed {seed}: {way}", file=sys.stderr, flush=True)
                rows.append(train(way, seed, args.shards, args.epochs))
                atomic.write_text(args.out, json.dumps(rows) + "\n")
    print("\n".join(table([row for row in rows if row["epochs"] == args.epochs], args.target)))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
