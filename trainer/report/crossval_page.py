"""The page of a cross-validation: crossval.json and the run folders beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import RunError
from trainer.metrics.subjects import TOO_FEW
from trainer.report import charts_classes, charts_training, cohort, methods
from trainer.report.axes import Axes
from trainer.report.charts_training import SHARE_TICKS
from trainer.report.figure import Figure, table
from trainer.report.judgement import Tile, interval, share
from trainer.report.methods_training import trained_loss
from trainer.report.page import ReportPage, template
from trainer.report.predictions import ClassPredictions
from trainer.report.story import ReportMaterial, number, read
from trainer.report.strips import strips
from trainer.run_folder import crossval_folder

# The figures worth a tile or a column, in this order: name in crossval.json, words, decimals.
_NAMES: dict[str, tuple[str, int]] = {
    "auc": ("AUC", 2),
    "accuracy": ("Accuracy", 2),
    "balanced_accuracy": ("Balanced accuracy", 2),
    "sensitivity": ("Sensitivity", 2),
    "specificity": ("Specificity", 2),
    "pr_auc": ("Average precision", 2),
    "ece": ("Calibration error", 2),
    "brier": ("Brier score", 2),
    "mae": ("MAE", 2),
    "rmse": ("RMSE", 2),
    "r2": ("R²", 2),
    "pearson": ("Pearson r", 2),
    "bias": ("Bias", 2),
    "dice": ("Mean Dice", 2),
}
_LARGE = ("auc", "accuracy", "mae", "r2", "dice")


@dataclass(frozen=True)
class FoldRun:
    """One fold's run: its entry in crossval.json, and its folder where that is at hand."""

    fold: int
    seed: int
    entry: Mapping[str, Any]
    story: ReportMaterial | None

    @property
    def name(self) -> str:
        """Such as `fold 0, seed 1`."""
        return f"fold {self.fold}, seed {self.seed}"


def render(folder: Path) -> ReportPage:
    """Return the report of a cross-validation.

    Raises:
        RunError: crossval.json is damaged.
    """
    summary = crossval_folder.summary(folder)
    runs = _runs(folder, summary)
    stories = [run.story for run in runs if run.story is not None]
    names = [
        name for name in _NAMES if name in _part(summary, "pooled") or name in _part(summary, "over_folds")
    ]
    figures = _figures(runs, names)
    first = stories[0] if stories else None
    html = template("crossval.html.j2").render(
        name=summary.get("name") or folder.resolve().name,
        title=first.task.title if first else str(summary.get("task", "")).capitalize(),
        summary=summary,
        runs=runs,
        is_phantom=any(story.is_phantom for story in stories),
        tiles=_tiles(_part(summary, "pooled"), names),
        table=_table(summary, names),
        per_fold=_per_fold(runs, names),
        figures=figures,
        methods=methods.paragraphs(first, cohort.groups(first), [])[:2] if first else [],
        training=[
            p for p in methods.paragraphs(first, [], []) if p.part in ("network", "training", "software")
        ]
        if first
        else [],
        intervals=methods.INTERVALS.get(str(summary.get("task")), ""),
        missing=[run.name for run in runs if run.story is None],
        notes=[f"{run.name}: {note}" for run in runs if run.story for note in run.story.notes],
    )
    rows = [[run.fold, run.seed, *(_metric(run, name) for name in names)] for run in runs]
    return ReportPage(html, tuple(figures), {"folds": table(["fold", "seed", *names], rows).csv()}, {})


def _runs(folder: Path, summary: Mapping[str, Any]) -> list[FoldRun]:
    runs = []
    for entry in summary["per_fold"]:
        if not isinstance(entry, dict):
            continue
        fold, seed = int(number(entry.get("fold")) or 0), int(number(entry.get("seed")) or 0)
        # The last part alone: a run lies in this folder, whatever the file says.
        path = folder / Path(str(entry.get("run") or f"fold-{fold}-seed-{seed}")).name
        try:
            story = read(path)
        except RunError:
            story = None
        runs.append(FoldRun(fold, seed, entry, story))
    return runs


def _part(summary: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = summary.get(key)
    return value if isinstance(value, dict) else {}


def _metric(run: FoldRun, name: str) -> float | None:
    return number(_part(run.entry, "metrics").get(name))


def _tiles(pooled: Mapping[str, Any], names: Sequence[str]) -> list[Tile]:
    tiles = []
    for name in names:
        estimate, (words, places) = _part(pooled, name), _NAMES[name]
        if estimate:
            value = share(estimate.get("value"), places)
            tiles.append(Tile(words, value, _bounds(estimate, places), name not in _LARGE))
    return tiles


def _table(summary: Mapping[str, Any], names: Sequence[str]) -> list[tuple[str, str, str, str]]:
    """Each figure: pooled with interval, mean over folds (SD), mean over seeds (SD)."""
    rows = []
    for name in names:
        words, places = _NAMES[name]
        pooled = _part(_part(summary, "pooled"), name)
        bounds = _bounds(pooled, places)
        told = share(pooled.get("value"), places) + (f" ({bounds})" if bounds else "")
        folds, seeds = (_part(_part(summary, f"over_{kind}"), name) for kind in ("folds", "seeds"))
        rows.append((words, told, _spread(folds, places), _spread(seeds, places)))
    return rows


def _bounds(estimate: Mapping[str, Any], places: int) -> str:
    """The interval of a pooled figure in words; nothing where the figure itself is not known."""
    if number(estimate.get("value")) is None:
        return ""
    return interval(estimate.get("interval"), places) or TOO_FEW


def _spread(spread: Mapping[str, Any], places: int) -> str:
    mean, sd = share(spread.get("mean"), places), number(spread.get("sd"))
    return mean if sd is None else f"{mean} ({sd:.{places}f})"


def _per_fold(
    runs: Sequence[FoldRun], names: Sequence[str]
) -> tuple[list[tuple[str, bool]], list[tuple[str, ...]]]:
    """The table of runs, for sorting."""
    header = [("Run", False), ("Fold", True), ("Seed", True), ("Best epoch", True), ("n", True)]
    header += [(_NAMES[name][0], True) for name in names]
    rows = []
    for run in runs:
        facts = (run.entry.get("best_epoch"), _part(run.entry, "metrics").get("n"))
        cells = [share(_metric(run, name), _NAMES[name][1]) for name in names]
        rows.append(
            (
                run.name,
                str(run.fold),
                str(run.seed),
                *("–" if fact is None else str(fact) for fact in facts),
                *cells,
            )
        )
    return header, rows


def _figures(runs: Sequence[FoldRun], names: Sequence[str]) -> list[Figure]:
    shares = [name for name in names if name in SHARES]
    figures: list[Figure | None] = []
    values = {name: [_metric(run, name) for run in runs] for name in names}
    tips = [run.name for run in runs]
    if shares:
        groups = [(SHARES[name], values[name]) for name in shares]
        figures.append(over_folds("folds-shares", "Each fold", groups, tips))
    for name in names:
        if name in ("mae", "r2", "hd95"):
            figures.append(
                over_folds(
                    f"folds-{name}", f"Each fold: {_NAMES[name][0]}", [(_NAMES[name][0], values[name])], tips
                )
            )
    curves = _curves(runs)
    if curves:
        figures.insert(0, charts_classes.roc(curves))
    stories = [(run.name, run.story) for run in runs if run.story is not None]
    losses = [trained_loss(story) or name for name, story in stories]
    if stories:
        figures += charts_training.curves_of_runs([(name, s.epochs) for name, s in stories], losses)
    return [figure for figure in figures if figure is not None]


def _curves(runs: Sequence[FoldRun]) -> list[charts_classes.Curve]:
    """For two classes: a thin ROC curve for each fold and one of all its subjects for each seed."""
    by_seed: dict[int, list[ClassPredictions]] = {}
    thin: list[charts_classes.Curve] = []
    for run in runs:
        predictions = run.story.predictions.get("test") if run.story is not None else None
        if not isinstance(predictions, ClassPredictions) or len(predictions.classes) != 2:
            return []
        by_seed.setdefault(run.seed, []).append(predictions)
        thin.append((run.name, predictions.true == 1, predictions.probabilities[:, 1], "faint"))
    pooled = []
    for place, (seed, parts) in enumerate(by_seed.items()):
        truth = np.concatenate([part.true == 1 for part in parts])
        score = np.concatenate([part.probabilities[:, 1] for part in parts])
        name = "all folds" if len(by_seed) == 1 else f"all folds, seed {seed}"
        pooled.append((name, truth, score, f"s{1 + place % 6}"))
    return [*thin, *pooled]


# Charts of a cross-validation: the figures of every fold side by side.


# Figures between 0 and 1 that share an axis, in few letters: four of them must fit on a phone.
SHARES = {
    "auc": "AUC",
    "balanced_accuracy": "Bal. acc.",
    "sensitivity": "Sens.",
    "specificity": "Spec.",
    "dice": "Dice",
}


def over_folds(
    name: str, heading: str, groups: Sequence[tuple[str, Sequence[float | None]]], tips: Sequence[str]
) -> Figure | None:
    """Return each run's figures as dots.

    Args:
        name: of the figure's files.
        heading: of the figure.
        groups: name of a figure and its value in each run, None where not known.
        tips: names of the runs.
    """
    shown = [
        (label, [(t, v) for t, v in zip(tips, values, strict=True) if v is not None])
        for label, values in groups
    ]
    shown = [(label, values) for label, values in shown if values]
    if not shown:
        return None
    every = [v for _, values in shown for _, v in values]
    is_share = len(shown) > 1 or (min(every) >= 0 and max(every) <= 1)
    low, high = min(0.0, min(every) * 1.1), max(every) * 1.1 or 1.0
    axes = Axes(
        (0, len(shown)),
        (0.0, 1.0) if is_share else (low, high),
        x_label="",
        y_label="value of a run",
        title=f"{heading}: " + ", ".join(label for label, _ in shown),
        x_ticks=[k + 0.5 for k in range(len(shown))],
        x_names=[label for label, _ in shown],
        y_ticks=SHARE_TICKS if is_share else None,
        width=max(360, 95 * len(shown) + 80),
        height=320,
    )
    strips(
        axes,
        [(label, np.array([v for _, v in values])) for label, values in shown],
        [[f"{tip}: {v:.3f}" for tip, v in values] for _, values in shown],
    )
    rows = [(label, tip, v) for label, values in shown for tip, v in values]
    return Figure(
        name,
        heading,
        axes,
        table(["figure", "run", "value"], rows),
        (("dot s1", "a run"),),
        caption="Boxes: middle half of the runs, and their median. Folds share training subjects: the spread "
        "describes them and is no standard error.",
    )
