#!/usr/bin/env python3
"""One table of several finished runs on two classes, each beside the linear model on its own test scans.

.venv/bin/python examples/adni_table.py runs/ad-cn runs/smci-pmci
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.metrics import comparison, tables
from trainer.metrics.subjects import TOO_FEW

HEAD = (
    "| run | task | test scans | subjects | ROC-AUC (95 %) | sensitivity | specificity | linear model |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
)


def table(runs: Sequence[Path]) -> str:
    """Return the table as Markdown, a row for each run.

    Raises:
        RunError: a run is not finished.
        ValueError: a run has more than two classes.
    """
    return "\n".join([*HEAD, *map(_row, runs)])


def _row(run: Path) -> str:
    predictions = tables.read(run, "test")
    test = comparison.metrics(predictions)
    negative, positive = predictions.classes
    bounds = test["auc_interval"]
    interval = f"{bounds[0]:.3f}-{bounds[1]:.3f}" if bounds else TOO_FEW
    beside = run / "baseline.json"
    linear = f"{json.loads(beside.read_text())['auc']:.3f}" if beside.is_file() else "no tissue volumes"
    cells = (
        run.name,
        f"{negative} vs {positive}",
        str(test["n"]),
        str(test["subjects"]),
        f"{test['auc']:.3f} ({interval})",
        f"{test['sensitivity']:.3f}",
        f"{test['specificity']:.3f}",
        linear,
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(table([Path(name) for name in sys.argv[1:]]))
