#!/usr/bin/env python3
"""What the loop of a run takes between two steps, beside what the network computes.

    .venv/bin/python benchmarks/between_steps.py --json

A run as `cingulum train` makes it, on one rank, whose network computes nothing: a stub in place of the
compiled step. What is left is the loop itself: telemetry, the watchdog, the progress bar, agreeing with other
ranks; waiting for batches is left out, and so are the first steps of an epoch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RUN = """\
name: nothing
runs: {folder}/runs
data: {{shards: {folder}/shards, cache: memory}}
model: {{name: tiny}}
train: {{epochs: {epochs}, global_batch: 1}}
"""
SUBJECTS = 100


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600, help="to time, at least (default: 600)")
    parser.add_argument("--size", type=int, default=16, help="edge of the volumes, in voxels (default: 16)")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), asked.steps, asked.size)
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    print(
        f"{found['median_ms']:.3f} ms between two steps (a tenth take more than {found['tenth_ms']:.3f} ms); "
        f"with handing over batches {found['cpu_ms']:.3f} ms of processor time; {found['steps']} steps; "
        f"{found['processor']}"
    )


def measured(folder: Path, steps: int, size: int) -> dict[str, Any]:
    """Train, and return milliseconds between steps."""
    for words in (
        ["phantom", folder / "cohort", "--subjects", SUBJECTS, "--size", size, "--groups", "AD,NC"],
        ["import", folder / "cohort", folder / "shards", "--size", size],
    ):
        subprocess.run([sys.executable, "-m", "cingulum", *map(str, words)], check=True, capture_output=True)
    import trainer  # noqa: F401  # before TensorFlow: it chooses oneDNN
    import tensorflow as tf  # isort: skip

    from cingulum.__main__ import main as command
    from trainer import processor
    from trainer.runs.loop import Training
    from trainer.strategies.data import DistributedModel

    nothing = tf.constant(0.0)
    wall: list[float] = []
    cpu: list[float] = []
    last: list[tuple[float, float]] = []
    replan = Training.replan

    def computes_nothing(self: Any, x: Any, y: Any, w: Any) -> Any:
        return nothing

    def at_the_end_of_a_step(self: Any) -> bool:
        found = replan(self)
        now = time.perf_counter(), time.thread_time()
        if last and self.cursor.step % self.cursor.steps_per_epoch > 1:
            wall.append(now[0] - last[0][0] - self._waited)
            cpu.append(now[1] - last[0][1])
        last[:] = [now]
        return found

    DistributedModel.train_step = computes_nothing  # type: ignore[method-assign]
    Training.replan = at_the_end_of_a_step  # type: ignore[method-assign]
    path = folder / "run.yaml"
    path.write_text(RUN.format(folder=folder, epochs=-(-steps // (SUBJECTS // 2))))
    argv, sys.argv = sys.argv, ["cingulum", "train", str(path)]
    try:
        with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(SystemExit):
            command()
    finally:
        sys.argv = argv
    return {
        "median_ms": 1000 * statistics.median(wall),
        "tenth_ms": 1000 * statistics.quantiles(wall, n=10)[-1],
        "cpu_ms": 1000 * statistics.median(cpu),
        "steps": len(wall),
        "processor": str(processor.here()),
    }


if __name__ == "__main__":
    main()
