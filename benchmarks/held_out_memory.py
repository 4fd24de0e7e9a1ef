"""Bytes of parameters and of what is kept for the backward pass, predicted and counted.

An emulated accelerator keeps nothing, so these are ranks of this host that compute: the program of
tests/parallel/test_placed_memory.py, which counts the blocks that are given out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from jobs.local import mpirun

PROGRAM = Path(__file__).resolve().parents[1] / "tests" / "parallel" / "programs" / "placed_memory.py"
# As the test has it: TensorFlow takes its tensors from `malloc`, which counts blocks of so many bytes.
ENVIRONMENT = {
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
    "MALLOC_MMAP_THRESHOLD_": "8192",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYTHONPATH": os.pathsep.join(map(str, (PROGRAM.parents[3], PROGRAM.parent))),
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
# Samples are four of each network that is cut into micro-batches.
PAIRS = [
    (network, strategy) for network in ("resnet18", "unet", "vgg") for strategy in ("spatial", "filters")
] + [("vgg of 4", "1f1b")]
RANKS = (2, 4)


def counted() -> list[dict[str, Any]]:
    """Return a row for each network, strategy and rank, as the program has it.

    Raises:
        SystemExit: ranks failed.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in RANKS:
            path = Path(folder) / f"{ranks}.json"
            words = [sys.executable, str(PROGRAM), str(path), *(word for pair in PAIRS for word in pair)]
            line, additions = mpirun.command(ranks, words)
            done = subprocess.run(
                line, env={**os.environ, **additions, **ENVIRONMENT}, capture_output=True, text=True,
                timeout=600, check=False,
            )  # fmt: skip
            if done.returncode:
                raise SystemExit(f"error: memory was not counted:\n{done.stderr[-2000:]}")
            rows += json.loads(path.read_text())
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines in Markdown: the rank of each row that keeps most, and the largest errors of all ranks."""
    lines = [
        "| network | strategy | ranks | parameters and slots, MiB | counted | kept, MiB | counted | error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key in dict.fromkeys((row["network"], row["strategy"], row["ranks"]) for row in rows):
        mine = [row for row in rows if (row["network"], row["strategy"], row["ranks"]) == key]
        most = max(mine, key=lambda row: row["kept"][1])
        told = [f"{value / 2**20:.2f}" for value in (*most["state"], *most["kept"])]
        cells = " | ".join(told)
        lines.append(f"| {key[0]} | {key[1]} | {key[2]} | {cells} | {off(most):+.1%} |")
    return lines


def off(row: dict[str, Any]) -> float:
    """Return the error of what is predicted of a rank: parameters, slots, and what is kept, together.

    Messages that may come before they are asked for are there or not, as ranks are fast or slow.
    """
    said, found = (sum(row[key][at] for key in ("state", "kept")) for at in (0, 1))
    early = min(max(0, found - said), row["early"])
    return (said + early) / found - 1
