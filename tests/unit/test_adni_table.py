"""examples/adni_table.py shows finished runs of two tasks in one table."""

from __future__ import annotations

import csv
import json
import runpy
from pathlib import Path

import numpy as np
from pages import ROOT

from trainer.metrics import comparison, tables


def finished(run: Path, classes: list[str], linear: float | None) -> Path:
    """A finished run of 30 subjects with three scans each, which its network ranks with some mistakes."""
    rng = np.random.default_rng(0)
    (run / "evaluation").mkdir(parents=True)
    (run / "config.yaml").write_text("name: made-up\n")
    (run / "result.json").write_text("{}")
    with (run / "evaluation" / "test.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["row", "subject", "session", "label", "predicted", *(f"p_{name}" for name in classes)]
        )
        for subject in range(30):
            likely = min(0.9, max(0.1, 0.35 + 0.3 * (subject % 2) + rng.normal(0, 0.25)))
            for session in range(3):
                called = classes[likely > 0.5]
                cells = [classes[subject % 2], called, 1 - likely, likely]
                table.writerow([3 * subject + session, f"s{subject}", f"M{session}", *cells])
    if linear is not None:
        (run / "baseline.json").write_text(json.dumps({"auc": linear}))
    return run


def test_each_run_has_its_row_beside_the_linear_model(tmp_path):
    table = runpy.run_path(str(ROOT / "examples" / "adni_table.py"))["table"]
    first = finished(tmp_path / "ad-cn", ["CN", "AD"], 0.807)
    second = finished(tmp_path / "smci-pmci", ["sMCI", "pMCI"], None)
    one, other = table([first, second]).splitlines()[2:]
    found = comparison.metrics(tables.read(first, "test"))
    low, high = found["auc_interval"]
    assert one == (
        f"| ad-cn | CN vs AD | 90 | 30 | {found['auc']:.3f} ({low:.3f}-{high:.3f}) | "
        f"{found['sensitivity']:.3f} | {found['specificity']:.3f} | 0.807 |"
    )
    assert other.startswith("| smci-pmci | sMCI vs pMCI | 90 | 30 |") and other.endswith(
        "no tissue volumes |"
    )
