"""examples/adni_table.py shows finished runs of two tasks in one table."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from pages import ROOT


def finished(run: Path, classes: list[str], linear: float | None) -> Path:
    (run / "evaluation").mkdir(parents=True)
    figures = {
        "n": 200,
        "auc": 0.9361,
        "auc_interval": [0.901, 0.965],
        "sensitivity": 0.86,
        "specificity": 0.87,
    }
    (run / "evaluation" / "test.json").write_text(json.dumps({"classes": classes, **figures}))
    if linear is not None:
        (run / "baseline.json").write_text(json.dumps({"auc": linear}))
    return run


def test_each_run_has_its_row_beside_the_linear_model(tmp_path):
    table = runpy.run_path(str(ROOT / "examples" / "adni_table.py"))["table"]
    first = finished(tmp_path / "ad-cn", ["CN", "AD"], 0.807)
    second = finished(tmp_path / "smci-pmci", ["sMCI", "pMCI"], None)
    assert table([first, second]).splitlines()[2:] == [
        "| ad-cn | CN vs AD | 200 | 0.936 (0.901-0.965) | 0.860 | 0.870 | 0.807 |",
        "| smci-pmci | sMCI vs pMCI | 200 | 0.936 (0.901-0.965) | 0.860 | 0.870 | no tissue volumes |",
    ]
