import json
import subprocess
import sys
from pathlib import Path

from trainer.telemetry import step_bench

SMALL = ["--model", "tiny", "--size", "16", "--batch", "2", "--steps", "2", "--repeats", "1", "--json"]


def bench(what):
    line = [str(Path(sys.executable).parent / "cingulum"), "bench", what, *SMALL]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_step_is_measured_against_copies_and_against_keras():
    figures = bench("step")
    # What was measured, not how fast: timed assertions do not belong in a test.
    ratio = figures["two_copies_step_s"] / figures["two_ranks_step_s"]
    assert abs(figures["efficiency"] - ratio) < 1e-9
    assert figures["efficiency_min"] <= figures["efficiency"] <= figures["efficiency_max"]
    assert figures["machine"]["cores"] >= 1


def test_every_way_to_reduce_is_timed():
    figures = bench("ring")
    assert set(figures["step_s"]) == {"no reduction", *(name for name, _, _ in step_bench.REDUCTIONS)}
    assert all(found["median"] > 0 for found in figures["step_s"].values())
