"""The three files that a cross-validation leaves: crossval.json, crossval.csv, predictions.csv.

They hold no times and no speeds: the same runs give the same bytes, however often they were interrupted.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trainer.atomic import write_text
from trainer.crossval import figures, held_out
from trainer.crossval.folds import CrossValidation, Fold
from trainer.crossval.held_out import HeldOut
from trainer.errors import RunError, typed
from trainer.run_folder import record
from trainer.run_folder.crossval_folder import SUMMARY_NAME
from trainer.run_folder.run_record import RunRecord

TABLE_NAME, PREDICTIONS_NAME = "crossval.csv", "predictions.csv"
NOTE = (
    "pooled: over all held-out scans, 95 % intervals by subject, the networks given. over_folds: mean and "
    "standard deviation of the runs; folds share training subjects and are not independent (Bengio and "
    "Grandvalet 2004), so do not divide the standard deviation by the square root of their number."
)


def write(crossval: CrossValidation) -> dict[str, Any]:
    """Pool the finished runs and write the three files; returns the content of crossval.json.

    Raises:
        RunError: the runs do not hold every subject out exactly once per seed.
    """
    found = held_out.read(crossval)
    # What needs no computing comes first: no figure can keep it from being written.
    _write_csv(
        crossval.folder / PREDICTIONS_NAME, ["seed", "fold", *found.header], _predictions(found, crossval)
    )
    runs = [_run(fold) for fold in crossval.folds]
    _write_csv(crossval.folder / TABLE_NAME, *_table(runs))
    seeds = figures.per_seed(found)
    summary = {
        "name": crossval.config.name,
        "task": found.task,
        "classes": list(found.classes),
        "shards": RunRecord.read(crossval.folds[0].run.run).shards.content_hash,
        "folds": crossval.config.data.split.folds,
        "seeds": list(crossval.seeds),
        "volumes": len(found.rows),
        "subjects": len(set(found.subjects.tolist())),
        "pooled": figures.pooled(found),
        "over_folds": figures.spread([run["metrics"] for run in runs]),
        "over_seeds": figures.spread(seeds),
        "per_seed": [
            {"seed": s, "metrics": metrics} for s, metrics in zip(crossval.seeds, seeds, strict=True)
        ],
        "per_fold": runs,
        "intervals": {"unit": "subject", "level": 0.95},
        "note": NOTE,
    }
    record.write_json(crossval.folder / SUMMARY_NAME, summary)
    return summary


def headline(metrics: dict[str, Any]) -> str:
    """Return the figures of a run that one line has room for."""
    names = {
        "auc": "AUC",
        "balanced_accuracy": "balanced accuracy",
        "accuracy": "accuracy",
        "mae": "MAE",
        "r2": "R2",
        "dice": "Dice",
    }
    shown = [f"{names[key]} {metrics[key]:.3f}" for key in names if isinstance(metrics.get(key), float)]
    of = f" of {metrics['subjects']} subjects" if "subjects" in metrics else ""
    return ", ".join([*shown[:3], f"{metrics.get('n')} scans{of}"])


def _run(fold: Fold) -> dict[str, Any]:
    result = record.read_json(fold.run.result)
    if "test" not in result:
        raise RunError(
            f"{fold.run.result}: has no test metrics.",
            cure=f"Compute them: cingulum train {typed(fold.run.config)} --resume",
            path=fold.run.result,
        )
    other = record.other_epoch(result)
    return {
        "fold": fold.number,
        "seed": fold.seed,
        "run": fold.config.name,
        "epochs": result["epochs"],
        "best_epoch": (result.get("best") or {}).get("epoch"),
        "world_size": result["world_size"],
        "best_weights_sha256": result["best_weights_sha256"],
        "metrics": result["test"],
        **({"other_epoch": other} if other else {}),
    }


def _table(runs: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """One line per run: its figures, an interval as two columns."""
    facts = ["fold", "seed", "run", "epochs", "best_epoch", "world_size"]
    rows = [{**{name: run[name] for name in facts}, **_flat(run["metrics"])} for run in runs]
    header = list(dict.fromkeys(name for row in rows for name in row))
    return header, [[row.get(name) for name in header] for row in rows]


def _flat(metrics: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        if name.endswith("_interval"):
            low, high = value or (None, None)
            flat |= {f"{name[: -len('_interval')]}_low": low, f"{name[: -len('_interval')]}_high": high}
        elif not isinstance(value, list | dict):
            flat[name] = value
    return flat


def _predictions(found: HeldOut, crossval: CrossValidation) -> Iterable[list[Any]]:
    for k, seed in enumerate(crossval.seeds):
        for fold, line in zip(found.folds[k], found.lines[k], strict=True):
            yield [seed, int(fold), *(line[name] for name in found.header)]


def _write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(header)
    table.writerows(lines)
    write_text(path, text.getvalue())
