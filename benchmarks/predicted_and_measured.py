#!/usr/bin/env python3
"""Train small networks on two ranks of this host, and show what each run predicted beside what it measured.

    .venv/bin/python benchmarks/predicted_and_measured.py --repeats 3

Each run is an ordinary `cingulum train`; the figures are those of its result.json. Medians over the repeats,
which take turns. Volumes are noise: what is learnt does not matter here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from jobs.local import mpirun
from trainer.data.shards.index import SetMeta, VolumeMeta
from trainer.data.shards.shard_writer import ShardWriter

SIDE = 32
NETWORKS: dict[str, dict[str, Any]] = {
    "tiny, width 32": {"name": "tiny", "width": 32},
    "resattnet18, width 8": {"name": "resattnet18", "width": 8},
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "data": {"name": "data"},
    "parameter-server": {"name": "parameter-server", "count": 2, "placement": "colocated"},
}
FIGURES = ("counted_bytes", "communication_s", "exposed_s", "step_s")


def make_shards(folder: Path, subjects: int = 48) -> Path:
    """Write noise of two classes."""
    random = np.random.default_rng(0)
    writer = ShardWriter(
        folder, (SIDE,) * 3 + (1,), "float16", meta=SetMeta("diagnosis", "noise", (6.0,) * 3)
    )
    rows = [
        (
            random.normal(0, 1, (SIDE,) * 3 + (1,)).astype("float16"),
            VolumeMeta(
                subject=f"sub-{number:03d}",
                source=f"sub-{number:03d}.nii",
                source_sha256=f"{number:064x}",
                affine=np.eye(4).tolist(),
                label=("AD", "NC")[number % 2],
            ),
        )
        for number in range(subjects)
    ]
    writer.finish([writer.write_shard(0, rows)])
    return folder


def train(folder: Path, name: str, network: dict[str, Any], strategy: dict[str, Any]) -> dict[str, Any]:
    """Train on two ranks; return `prediction` of result.json."""
    config = {
        "name": name,
        "runs": str(folder),
        "data": {"shards": str(folder / "shards"), "split": {"validation": 0.0}},
        "model": network,
        "train": {"epochs": 4, "global_batch": 4, "strategy": strategy, "sync_batch_norm": False},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    line, additions = mpirun.command(2, [sys.executable, "-m", "cingulum", "train", str(path)])
    done = subprocess.run(
        line, env={**os.environ, **additions}, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads((folder / name / "result.json").read_text())["prediction"]
    made = json.loads((folder / name / "prediction.json").read_text())
    print(name, json.dumps(made), file=sys.stderr, flush=True)  # what a wrong prediction was made of
    return found


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_shards(folder / "shards")
        for repeat in range(repeats):
            for network, model in NETWORKS.items():
                for strategy, section in STRATEGIES.items():
                    name = f"{model['name']}-{strategy}-{repeat}"
                    found.setdefault((network, strategy), []).append(train(folder, name, model, section))
                    print(name, json.dumps(found[network, strategy][-1]), file=sys.stderr, flush=True)
    print("| network, strategy | figure | predicted | measured | ratio of each run |")
    print("| --- | --- | --- | --- | --- |")
    for (network, strategy), runs in found.items():
        for figure in FIGURES:
            told = [
                statistics.median(run[figure][which] for run in runs) for which in ("predicted", "measured")
            ]
            words = [f"{v:,.0f} B" if figure == "counted_bytes" else f"{1000 * v:.1f} ms" for v in told]
            ratios = ", ".join(f"{run[figure]['ratio']:.2f}" for run in runs)
            print(f"| {network}, {strategy} | `{figure}` | {words[0]} | {words[1]} | {ratios} |")


if __name__ == "__main__":
    main()
