"""The three files that a cross-validation leaves: crossval.json, crossval.csv, predictions.csv.

They hold no times and no speeds: the same runs give the same bytes, however often they were interrupted.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.atomic import write_text
from trainer.crossval import by_site, held_out
from trainer.crossval.folds import CrossValidation, Fold
from trainer.crossval.held_out import HeldOut
from trainer.data.shards.shards import ShardSet
from trainer.data.splits import splits
from trainer.errors import RunError, typed
from trainer.metrics import ranking
from trainer.metrics.classification import classification_metrics
from trainer.metrics.regression import SCALES, mean, regression_figures
from trainer.metrics.segmentation import mean_dice
from trainer.metrics.subjects import Figure, Scale, Subjects, left_out, share_interval
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
    scans = held_out.read(crossval)
    # What needs no computing comes first: no figure can keep it from being written.
    _write_csv(
        crossval.folder / PREDICTIONS_NAME, ["seed", "fold", *scans.header], _predictions(scans, crossval)
    )
    runs = [_run(fold) for fold in crossval.folds]
    _write_csv(crossval.folder / TABLE_NAME, *_table(runs))
    seeds = per_seed(scans)
    summary = {
        "name": crossval.config.name,
        "task": scans.task,
        "classes": list(scans.classes),
        "shards": RunRecord.read(crossval.folds[0].run.run).shards.content_hash,
        "folds": crossval.config.data.split.folds,
        **({"by": crossval.config.data.split.by} if crossval.config.data.split.by else {}),
        "seeds": list(crossval.seeds),
        "volumes": len(scans.rows),
        "subjects": len(set(scans.subjects.tolist())),
        "pooled": pooled(scans),
        "over_folds": spread([run["metrics"] for run in runs]),
        "over_seeds": spread(seeds),
        "per_seed": [
            {"seed": s, "metrics": metrics} for s, metrics in zip(crossval.seeds, seeds, strict=True)
        ],
        "per_fold": runs,
        **_by_site(scans, crossval),
        "intervals": {"unit": "subject", "level": 0.95},
        "note": NOTE,
    }
    record.write_json(crossval.folder / SUMMARY_NAME, summary)
    return summary


def _by_site(scans: HeldOut, crossval: CrossValidation) -> dict[str, Any]:
    """Return the figures of each site, where the set has several."""
    volumes = ShardSet.open(crossval.config.data.shards).volumes
    home = splits.site_of(volumes, scans.rows.tolist())
    sites = [home[volumes[row].subject] for row in scans.rows.tolist()]
    parts = by_site.parts(sites)
    if len(parts) < 2:
        return {}
    each = [
        {
            "site": site,
            "volumes": len(places),
            "subjects": len(set(scans.subjects[places].tolist())),
            "pooled": pooled(by_site.at(scans, places)),
        }
        for site, places in parts.items()
    ]
    return {"by_site": {"sites": each, "differ": by_site.differ(scans, sites)}}


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


def _predictions(scans: HeldOut, crossval: CrossValidation) -> Iterable[list[Any]]:
    for k, seed in enumerate(crossval.seeds):
        for fold, line in zip(scans.folds[k], scans.lines[k], strict=True):
            yield [seed, int(fold), *(line[name] for name in scans.header)]


def _write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(header)
    table.writerows(lines)
    write_text(path, text.getvalue())


# Figures of a cross-validation, with intervals.
#
# Two kinds, because they answer different questions:
#
# - *pooled*: over all held-out scans, each with the prediction of the network that never saw its subject;
#   with several seeds, the mean over seeds of each seed's figure. The interval is by subject, with all its
#   scans and the predictions of all seeds (see `trainer.metrics.subjects`): it says how much the figure
#   depends on who was examined, the trained networks given.
# - *over folds*: mean and standard deviation of the runs' own figures. Training sets of folds overlap, so
#   the folds are not independent, and no unbiased estimate of the variance of their mean exists (Bengio and
#   Grandvalet, JMLR 5, 2004): the standard deviation is a description, never to be divided by sqrt(folds).


AREAS = ("auc", "pr_auc")


def pooled(scans: HeldOut) -> dict[str, dict[str, Any]]:
    """Return name of each figure -> `value` and 95 % `interval` ([low, high], or None where
    unknown).
    """
    subjects = Subjects.named(scans.subjects.tolist())
    by_seed = [figures(scans, k) for k in range(len(scans.values))]
    classes = scans.true if scans.task == "classification" else None
    shares = _shares(scans)
    result = {}
    for name in by_seed[0]:
        if name in shares:
            result[name] = _share(shares[name], subjects)
            continue
        without = left_out(subjects, _over_seeds([of_seed[name] for of_seed in by_seed]), classes)
        result[name] = {
            "value": _known(without.value),
            "interval": without.interval(_scale(name), normal=name in AREAS),
        }
    return result


def _over_seeds(figures: Sequence[Figure]) -> Figure:
    return lambda weights: np.mean([figure(weights) for figure in figures], axis=0)


def _scale(name: str) -> Scale:
    if name in SCALES:
        return SCALES[name]
    # Distances and volumes of a label map.
    return "share" if name in (*AREAS, "balanced_accuracy", "dice") or name.startswith("dice_") else "size"


def _shares(scans: HeldOut) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By name of a share of scans: bool (N,), which count, and float (N,), how many seeds are right."""
    if scans.task != "classification":
        return {}
    hits = np.mean([values.argmax(axis=1) == scans.true for values in scans.values], axis=0)
    shares = {"accuracy": (np.ones(len(hits), bool), hits)}
    if len(scans.classes) == 2:
        shares |= {"sensitivity": (scans.true == 1, hits), "specificity": (scans.true == 0, hits)}
    return shares


def _share(share: tuple[np.ndarray, np.ndarray], subjects: Subjects) -> dict[str, Any]:
    counted, hits = share
    if not counted.any():
        return {"value": None, "interval": None}
    hits = hits[counted]
    return {"value": float(hits.mean()), "interval": share_interval(hits, subjects.of(counted))}


def per_seed(scans: HeldOut) -> list[dict[str, Any]]:
    """Return for each seed the figures of all its scans together, without intervals."""
    if scans.task == "classification":
        every = [classification_metrics(scans.true, v, scans.classes, None) for v in scans.values]
        return [
            {name: value for name, value in metrics.items() if not name.endswith("_interval")}
            for metrics in every
        ]
    ones = np.ones((1, len(scans.rows)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return [
            {name: _known(figure(ones)[0]) for name, figure in figures(scans, k).items()}
            for k in range(len(scans.values))
        ]


def spread(metrics: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return mean and standard deviation (n - 1; None for one) of each figure that all of `metrics` know.

    Args:
        metrics: of runs or seeds; what is no number, an interval for example, is passed over.
    """
    result = {}
    for name in metrics[0]:
        values = [one.get(name) for one in metrics]
        if name not in ("n", "subjects") and all(
            isinstance(v, int | float) and not isinstance(v, bool) for v in values
        ):
            numbers = np.array(values, np.float64)
            sd = float(numbers.std(ddof=1)) if len(numbers) > 1 else None
            result[name] = {"mean": float(numbers.mean()), "sd": sd, "n": len(numbers)}
    return result


def figures(scans: HeldOut, seed: int) -> dict[str, Figure]:
    """Return the figures of the seed with this place among the seeds, as functions of the
    scans' weights.
    """
    values = scans.values[seed]
    if scans.task == "classification":
        return _of_classes(scans.true, values)
    if scans.task == "regression":
        return regression_figures(scans.true, values[:, 0])
    return _of_maps(scans.columns, values)


def _of_classes(true: np.ndarray, probabilities: np.ndarray) -> dict[str, Figure]:
    count = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    hit = (predicted == true).astype(float)

    def recall(k: int) -> Figure:
        return lambda w: mean(w * (true == k), hit)

    result: dict[str, Figure] = {
        "auc": lambda w: ranking.roc_areas(true, probabilities, w),
        "pr_auc": lambda w: ranking.average_precisions(true, probabilities, w),
        "accuracy": lambda w: mean(w, hit),
        "balanced_accuracy": lambda w: np.mean([recall(k)(w) for k in range(count)], axis=0),
    }
    return {**result, "sensitivity": recall(1), "specificity": recall(0)} if count == 2 else result


def _of_maps(columns: Sequence[str], values: np.ndarray) -> dict[str, Figure]:
    """Means over scans: `dice`, the mean over a scan's classes, and every column.

    A scan without a value, as of a class that neither map has, is left out of that mean.
    """

    def over(of_scan: np.ndarray) -> Figure:
        there = np.isfinite(of_scan)
        return lambda w: mean(w * there, np.where(there, of_scan, 0.0))

    every = {name: values[:, k] for k, name in enumerate(columns)}
    dice = {name: column for name, column in every.items() if name.startswith("dice_")}
    return {"dice": over(mean_dice(dice)), **{name: over(column) for name, column in every.items()}}


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
