"""The page that compares runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import RunError
from trainer.metrics import comparison
from trainer.report import charts_classes, charts_training, facts
from trainer.report.figure import Figure, table
from trainer.report.judgement import Judgement, pair
from trainer.report.methods import settings_of
from trainer.report.methods_training import trained_loss
from trainer.report.page import ReportPage, template
from trainer.report.predictions import ClassPredictions, Found, as_table
from trainer.report.run_page import judge
from trainer.report.sentences import count
from trainer.report.story import ReportMaterial, read


def render(folders: Sequence[Path]) -> ReportPage:
    """Return the report of several runs.

    Raises:
        RunError: fewer than two, one is no run folder, or they have different tasks or classes.
    """
    if len(folders) < 2:
        raise RunError("a comparison needs two runs or more.", cure="cingulum report runs/first runs/second")
    stories = [read(folder) for folder in folders]
    _check_tasks(stories)
    runs = list(zip(_names(stories), stories, strict=True))
    judged = _judged(runs)
    judgements = {name: judge(story, found) for name, story, found in judged}
    compared, matching, unlike = _compared(judged)
    differing = differing_settings(runs)
    figures = [*_figures(judged, judgements), *_training(runs)]
    tiles = _tiles(judgements)
    html = template("comparison.html.j2").render(
        title=stories[0].task.title,
        names=[name for name, _ in runs],
        stories=stories,
        splits=sorted({story.judged or "none" for story in stories}),
        is_phantom=any(story.is_phantom for story in stories),
        unlike=unlike,
        unjudged=[name for name, story in runs if story.judged is None],
        differing=differing,
        tiles=tiles,
        pairs=compared,
        compared_on=_people(judged),
        figures=figures,
        run_facts=_facts(runs),
        notes=[*matching, *(f"{name}: {note}" for name, story in runs for note in story.notes)],
    )
    tables = {
        "metrics": table(["run", *tiles[0]], [[name, *cells] for name, cells in tiles[1].items()]).csv(),
        "configurations": table(
            ["key", *(name for name, _ in runs)], [[key, *values] for key, values in differing]
        ).csv(),
        "differences": _pairs_table(compared),
    }
    return ReportPage(html, tuple(figures), tables, {})


def _check_tasks(stories: Sequence[ReportMaterial]) -> None:
    first = stories[0]
    for story in stories[1:]:
        if story.task.name != first.task.name or (
            story.task.name != "regression" and story.task.classes != first.task.classes
        ):
            raise RunError(
                f"{story.folder}: its task is {_words(story)}, that of {first.folder} is {_words(first)}.",
                cure="Compare runs of one task and the same classes.",
            )


def _words(story: ReportMaterial) -> str:
    return f"{story.task.name} ({', '.join(story.task.classes) or story.task.target or 'no classes'})"


def _names(stories: Sequence[ReportMaterial]) -> list[str]:
    """Names of the runs; where two have the same, as much of their folders as tells them apart."""
    paths = [story.folder.resolve().parts for story in stories]
    choices = [[story.name for story in stories]]
    choices += [["/".join(parts[-depth:]) for parts in paths] for depth in range(1, max(map(len, paths)) + 1)]
    return next((names for names in choices if len(set(names)) == len(names)), choices[-1])


def _judged(runs: Sequence[tuple[str, ReportMaterial]]) -> list[tuple[str, ReportMaterial, Found]]:
    """Those with predictions."""
    return [(name, story, story.predictions[story.judged]) for name, story in runs if story.judged]


def _compared(
    judged: Sequence[tuple[str, ReportMaterial, Found]],
) -> tuple[list[Pair], list[str], str | None]:
    """The pairs, notes on how subjects were matched, and why there are no pairs where there are none."""
    if len(judged) < 2:
        return [], [], None
    hashes = [story.facts.shards.content_hash or None for _, story, _ in judged]
    try:
        pairs, notes = compare_pairs([(name, found) for name, _, found in judged], hashes)
    except RunError as error:
        return [], [], error.message
    return pairs, notes, None


def _people(judged: Sequence[tuple[str, ReportMaterial, Found]]) -> str:
    """How many scans of how many subjects, of runs that are compared."""
    first = judged[0][2] if judged else None
    return "" if first is None else f"{len(first.rows)} of {count(first.people, 'subject')}"


def _tiles(judgements: dict[str, Judgement]) -> tuple[list[str], dict[str, list[str]]]:
    """The figures that all runs have: their names, and each run's values with intervals in words."""
    kept: list[str] = []
    for judgement in judgements.values():
        names = [tile.name for tile in judgement.tiles]
        kept = [name for name in (kept or names) if name in names]
    rows = {}
    for name, judgement in judgements.items():
        tiles = {tile.name: tile for tile in judgement.tiles}
        rows[name] = [
            f"{tiles[k].value} ({tiles[k].range})" if tiles[k].range else tiles[k].value for k in kept
        ]
    return kept, rows


def _figures(
    judged: Sequence[tuple[str, ReportMaterial, Found]], judgements: dict[str, Judgement]
) -> list[Figure]:
    """Charts of the runs over each other; ROC curves for two classes."""
    figures: list[Figure | None] = []
    bars = []
    curves: list[charts_classes.Curve] = []
    for place, (name, _, predictions) in enumerate(judged):
        metrics, kind = judgements[name].metrics, f"s{1 + place % 6}"
        if metrics.get("auc") is not None:
            bars.append((name, metrics["auc"], pair(metrics["auc_interval"]), kind))
        if isinstance(predictions, ClassPredictions) and len(predictions.classes) == 2:
            curves.append((name, predictions.true == 1, predictions.probabilities[:, 1], kind))
    if bars:
        figures.append(charts_classes.intervals(bars, "AUC, 95 % interval", "AUC of each run"))
    if curves:
        figures += [charts_classes.roc(curves), charts_classes.precision_recall(curves)]
    return [figure for figure in figures if figure is not None]


def _training(runs: Sequence[tuple[str, ReportMaterial]]) -> list[Figure]:
    losses = [trained_loss(story) or name for name, story in runs]
    return charts_training.curves_of_runs([(name, story.epochs) for name, story in runs], losses)


def _facts(runs: Sequence[tuple[str, ReportMaterial]]) -> list[tuple[str, list[str]]]:
    """Facts of each run, side by side."""
    told = [dict(facts.run_facts(story)) for _, story in runs]
    names = dict.fromkeys(name for one in told for name in one)
    return [(name, [one.get(name, "–") for one in told]) for name in names]


def _pairs_table(compared: Sequence[Pair]) -> str:
    header = ["first", "second", "figure", "difference", "low", "high", "p_value", "p_holm", "method"]
    rows = [
        (
            *(p.first, p.second, p.figure, p.difference),
            *(p.interval or (None, None)),
            *(p.p_value, p.p_holm, p.method),
        )
        for p in compared
    ]
    return table(header, rows).csv()


# Several runs side by side: what differs in their configurations, and how sure a difference is.


# These differ between any two runs and say nothing.
_NAMES = ("name", "runs")
_WORDS = {"auc": "AUC", "accuracy": "Accuracy", "mae": "MAE", "dice": "Mean Dice"}


@dataclass(frozen=True)
class Pair:
    """Two runs on the same subjects.

    Attributes:
        first, second: names of the runs.
        figure: what is compared: AUC, accuracy, MAE or mean Dice.
        difference: of the first minus the second.
        interval: 95 %, or None where there is none.
        p_value: two-sided, or None.
        p_holm: the same, corrected for the number of pairs; None for one pair.
        method: how interval and p were found.
    """

    first: str
    second: str
    figure: str
    difference: float
    interval: tuple[float, float] | None
    p_value: float | None
    p_holm: float | None
    method: str


def differing_settings(runs: Sequence[tuple[str, ReportMaterial]]) -> list[tuple[str, list[str]]]:
    """Return dotted keys whose values are not the same in all runs, with each run's value in words."""
    flat = [_flat(settings_of(story)) for _, story in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    differing = []
    for key in keys:
        values = [one.get(key) for one in flat]
        if key not in _NAMES and any(value != values[0] for value in values[1:]):
            differing.append((key, ["–" if value is None else str(value) for value in values]))
    return differing


def compare_pairs(
    runs: Sequence[tuple[str, Found]], hashes: Sequence[str | None]
) -> tuple[list[Pair], list[str]]:
    """Return every two runs on the same subjects, as `cingulum compare` compares them, and notes for a
    reader.

    Args:
        runs: name and predictions of each.
        hashes: content hash of each run's shard set, or None.

    Raises:
        RunError: they were judged on different subjects, or do not agree on what is true of one.
    """
    tables = [as_table(name, found, shards) for (name, found), shards in zip(runs, hashes, strict=True)]
    chosen, notes = comparison.aligned(tables)
    told = comparison.differences(chosen, [name for name, _ in runs])
    macro = ", macro" if len(chosen[0].classes) > 2 else ""
    return [_pair(pair, macro) for pair in told if pair["difference"] is not None], notes


def _pair(compared: dict[str, Any], macro: str) -> Pair:
    bounds = compared["interval"]
    return Pair(
        first=compared["first"],
        second=compared["second"],
        figure=_WORDS[compared["metric"]] + (macro if compared["metric"] == "auc" else ""),
        difference=compared["difference"],
        interval=(bounds[0], bounds[1]) if bounds else None,
        p_value=compared["p_value"],
        p_holm=compared["p_holm"],
        method=compared["test"],
    )


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value of every leaf."""
    if isinstance(tree, dict) and tree:
        return {
            key: value
            for name, child in tree.items()
            for key, value in _flat(child, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    return {prefix: tree}
