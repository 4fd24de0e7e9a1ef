#!/usr/bin/env python3
"""One table of several finished runs on two classes, each beside the linear model on its own test subjects.

.venv/bin/python examples/adni_table.py runs/ad-cn runs/smci-pmci
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

HEAD = (
    "| run | task | test subjects | ROC-AUC (95 %) | sensitivity | specificity | linear model, ROC-AUC |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)


def table(runs: Sequence[Path]) -> str:
    """Return the table as Markdown, a row for each run.

    Raises:
        FileNotFoundError: a run is not finished.
        KeyError: a run has more than two classes.
    """
    return "\n".join([*HEAD, *map(_row, runs)])


def _row(run: Path) -> str:
    split = run / "evaluation" / "test.json"
    test = json.loads(split.read_text())
    low, high = test["auc_interval"]
    negative, positive = test["classes"]
    beside = run / "baseline.json"
    linear = f"{json.loads(beside.read_text())['auc']:.3f}" if beside.is_file() else "no tissue volumes"
    cells = (
        run.name,
        f"{negative} vs {positive}",
        str(test["n"]),
        f"{test['auc']:.3f} ({low:.3f}-{high:.3f})",
        f"{test['sensitivity']:.3f}",
        f"{test['specificity']:.3f}",
        linear,
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(table([Path(name) for name in sys.argv[1:]]))
