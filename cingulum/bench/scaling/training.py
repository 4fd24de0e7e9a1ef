"""A short training of a cell, from shards, by `cingulum train`: accuracy against time.

The volumes are phantoms, made once for each size: what counts is how fast a strategy learns, not what.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from cingulum.bench.processes import Process, Running
from cingulum.bench.scaling import launching
from jobs.testbed import Testbed
from trainer.bench import hardware
from trainer.bench.scaling import variants
from trainer.bench.scaling.cells import Cell, MeasuredCell, key

SUBJECTS = 48
# A training that takes longer than this for an epoch hangs; starting may take the same again.
_EPOCH_S = 600.0
_CINGULUM = (sys.executable, "-m", "cingulum")
_MARK = "whole"


def train(
    cell: Cell,
    testbed: Testbed | None,
    progress: Callable[[str], None],
    *,
    hosts: Sequence[str] | None = None,
    folder: Path,
) -> MeasuredCell:
    """Train a cell's network for its epochs, one compute thread per rank.

    Args:
        cell: with `epochs`.
        testbed: that emulates its hosts, if any.
        progress: told what is going on.
        hosts: nodes of an allocation.
        folder: of the study; the shards are made in it, and the run's folder in `trainings`.

    Returns:
        A row with `curve`: for each epoch its row of metrics.jsonl, `seconds` being those since the training
        began, with validation and without saving.

    Raises:
        WorldError: the training failed.
        OSError: a file cannot be written or read.
    """
    shards = shards_of(folder, cell.size, progress)
    run = folder / "trainings" / key(cell)
    shutil.rmtree(run, ignore_errors=True)  # of one that was stopped: a curve is of one session
    run.parent.mkdir(exist_ok=True)
    config = run.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(configuration(cell, shards, run)), encoding="utf-8")
    line, environment = launching.command(
        cell,
        [*_CINGULUM, "train", str(config)],
        testbed=testbed,
        hosts=hosts,
        environment={"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    _run("the training", line, environment, _EPOCH_S * (cell.epochs + 1))
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    curve = points(run / "metrics.jsonl")
    return MeasuredCell(
        cell,
        samples_per_second=float(result["samples_per_second"]),
        machine=hardware.here(),
        curve=curve,
        facts={name: result[name] for name in ("staleness", "test") if name in result},
    )


def configuration(cell: Cell, shards: Path, run: Path) -> dict[str, Any]:
    """Return the run's configuration, as a tree for YAML."""
    from trainer import models

    dense = bool(models.describe(cell.model).dense)
    return {
        "name": run.name,
        "runs": str(run.parent.resolve()),
        "task": {"name": "segmentation" if dense else "classification"},
        "data": {
            "shards": str(shards.resolve()),
            "split": {"validation": 0.25, "test": 0.0},
            **({} if dense else {"classes": ["NC", "AD"]}),
        },
        "model": {"name": cell.model, **({"width": cell.width} if cell.width else {})},
        "train": {
            "epochs": cell.epochs,
            "global_batch": cell.global_batch,
            "threads": 1,
            "optimizer": {"name": "adamw", "learning_rate": 0.001},
            "schedule": {"name": "constant", "warmup_epochs": 0},
            "strategy": variants.section(cell.strategy, cell.options, cell.servers),
        },
        "checkpoint": {"every_epochs": cell.epochs, "keep": 1},
    }


def points(metrics: Path) -> tuple[dict[str, float], ...]:
    """Return the numbers of each row of metrics.jsonl, with seconds summed up over epochs."""
    rows = []
    seconds = 0.0
    for text in metrics.read_text(encoding="utf-8").splitlines():
        row = json.loads(text)
        seconds += row["seconds"]
        numbers = {
            name: value
            for name, value in row.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        rows.append({**numbers, "seconds": seconds})
    return tuple(rows)


def shards_of(folder: Path, size: int, progress: Callable[[str], None]) -> Path:
    """Return a shard set of phantoms of this size in the study's folder, with classes and tissue maps."""
    made = folder / f"phantoms-{size}"
    if not (made / _MARK).exists():
        progress(f"making {SUBJECTS} phantoms of {size}^3 voxels")
        cohort, shards = made / "cohort", made / "shards"
        made_of = ("--subjects", str(SUBJECTS), "--size", str(size), "--groups", "AD,NC", "--seed", "0")
        _run("phantom", [*_CINGULUM, "phantom", str(cohort), *made_of])
        options = ("--label", "diagnosis", "--size", str(size), "--maps", "probseg")
        _run("import", [*_CINGULUM, "import", str(cohort), str(shards), *options])
        (made / _MARK).touch()
    return made / "shards"


def _run(
    what: str, line: Sequence[str], environment: dict[str, str] | None = None, seconds: float = 3600.0
) -> None:
    """Run a command to its end; `what` it does is for messages.

    Raises:
        WorldError: it failed, or took longer than `seconds`.
    """
    with Running([Process("bench scaling", what, line, environment or {})]) as running:
        running.wait(seconds)
