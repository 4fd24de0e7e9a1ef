"""Several runs judged on the same subjects: their figures, and whether a difference is more than chance."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from trainer.errors import RunError
from trainer.metrics import ranking
from trainer.metrics import tables as predictions
from trainer.metrics.classification import auc_left_out, classification_metrics
from trainer.metrics.regression import regression_metrics
from trainer.metrics.segmentation import mean_dice, segmentation_metrics
from trainer.metrics.subjects import (
    LEAST,
    LeftOut,
    Subjects,
    exchange_p,
    interval_of_shares,
    mean_left_out,
)
from trainer.metrics.tables import EvaluationTable
from trainer.run_folder.record import RunFolder

EXCHANGE = "exchange by subject"
MCNEMAR = "McNemar by subject"


def compare(tables: Sequence[EvaluationTable]) -> dict[str, Any]:
    """Return the figures of each run, and the differences of each pair of runs.

    Args:
        tables: as of `aligned`.

    Returns:
        task, n (scans), subjects (how many), classes, runs (run and metrics of each, in order) and
        comparisons: for each pair metric, first, second, difference (first - second), interval (95 %),
        p_value (two-sided, of `exchange_p`), p_holm, test. Compared are AUC and accuracy, the mean absolute
        error, or the mean Dice. With more than two runs p_holm holds p corrected for the number of pairs
        within a metric (Holm, Scandinavian Journal of Statistics 6 (1979) 65), else None. What is undefined
        is None.
    """
    names = _names(tables)
    return {
        "task": tables[0].task,
        "n": len(tables[0].rows),
        "subjects": len(set(tables[0].subjects)),
        "classes": list(tables[0].classes),
        "runs": [{"run": name, "metrics": metrics(table)} for name, table in zip(names, tables, strict=True)],
        "comparisons": differences(tables, names),
    }


def differences(tables: Sequence[EvaluationTable], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the `comparisons` of `compare`, with these names for the runs."""
    subjects = Subjects.named(tables[0].subjects)
    areas = [_area(table, subjects) for table in tables]
    pairs = [
        {"metric": metric, "first": names[i], "second": names[j], **figures}
        for i, j in itertools.combinations(range(len(tables)), 2)
        for metric, figures in _differences((tables[i], areas[i]), (tables[j], areas[j]), subjects).items()
    ]
    comparisons = []
    for metric in dict.fromkeys(pair["metric"] for pair in pairs):
        family = [pair for pair in pairs if pair["metric"] == metric]
        corrected = holm([pair["p_value"] for pair in family]) if len(tables) > 2 else [None] * len(family)
        comparisons += [{**pair, "p_holm": p} for pair, p in zip(family, corrected, strict=True)]
    return comparisons


def aligned(
    tables: Sequence[EvaluationTable], *, common: bool = False
) -> tuple[list[EvaluationTable], list[str]]:
    """Return the same scans of every table, in the same order, and notes for the reader.

    Lines belong together by the row of the shard set, if all runs had the same one; else by subject and
    session, or where a table does not tell the session, by the order of a subject's lines where every table
    has equally many.

    Args:
        tables: at least two.
        common: leave scans out that are not in all of them, instead of refusing.

    Raises:
        RunError: the runs had different tasks or classes, were judged on different subjects, or do not agree
            on what is true of one.
    """
    first = tables[0]
    for other in tables[1:]:
        _check_same_task(first, other)
    tables = [first, *(other.with_classes(first.classes) for other in tables[1:])]
    notes = []
    one_set = first.shards is not None and len({table.shards for table in tables}) == 1
    if not one_set:
        notes.append("The runs had different shard sets; subjects were matched by name.")
    keys = _keys(tables, one_set)
    shared = set.intersection(*map(set, keys))
    alone = set.union(*map(set, keys)) - shared
    if alone:
        some = sorted({str(key[0]) for key in alone})
        kind = "scans" if len({frozenset(table.subjects) for table in tables}) == 1 else "subjects"
        what = f"{len(alone)} of {len(alone) + len(shared)} scans are not in all of them ({_listed(some)})"
        if not shared or not common:
            raise RunError(
                f"The runs were judged on different {kind}: {what}.",
                cure=f"--common compares them on the {len(shared)} common scans."
                if shared
                else "Train them on the same data.shards, data.split and seed.",
            )
        notes.append(f"Compared on the {len(shared)} common scans only: {what}.")
    order = [key for key in keys[0] if key in shared]
    places = [{key: place for place, key in enumerate(own)} for own in keys]
    chosen = [table.taken([where[key] for key in order]) for table, where in zip(tables, places, strict=True)]
    for other in chosen[1:]:
        _check_same_truth(chosen[0], other)
    return chosen, notes


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number, after Holm (1979); None stays None and is not counted."""
    counted = [i for i, p in enumerate(p_values) if p is not None]
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(counted, key=lambda i: p_values[i] or 0.0)):
        largest = max(largest, min(1.0, (len(counted) - rank) * (p_values[i] or 0.0)))
        corrected[i] = largest
    return corrected


def metrics(table: EvaluationTable) -> dict[str, Any]:
    """Return the figures of a table, by its task."""
    if table.task == "classification":
        return classification_metrics(table.true, table.values, table.classes, table.subjects)
    if table.task == "regression":
        return regression_metrics(table.true, table.values[:, 0], table.subjects)
    return segmentation_metrics(table.dice, table.hd95, table.subjects)


def stored_metrics(folder: RunFolder, split: str, stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the content of evaluation/<split>.json with intervals by subject.

    Older versions counted scans, and wrote no number of subjects: then the figures are those of the table
    beside it; where that cannot be read, the content as it is.
    """
    if "subjects" in stored or not (folder.evaluation / f"{split}.csv").is_file():
        return stored
    try:
        return {**stored, **metrics(predictions.read(folder.path, split))}
    except RunError:
        return stored


def auc_difference(
    true: np.ndarray, first: np.ndarray, second: np.ndarray, subjects: Sequence[str]
) -> tuple[float, list[float]] | None:
    """Return AUC of `first` minus that of `second` on the same scans, and its 95 % interval; None without
    one.

    Args:
        true: int (N,); first, second: float (N, classes), the probabilities of two classifiers.
        subjects: whose scan each is, (N,).
    """
    people = Subjects.named(subjects)
    difference = auc_left_out(true, first, people) - auc_left_out(true, second, people)
    bounds = difference.interval_of_difference(normal=True)
    return None if bounds is None else (difference.value, bounds)


def _area(table: EvaluationTable, subjects: Subjects) -> LeftOut | None:
    return auc_left_out(table.true, table.values, subjects) if table.task == "classification" else None


def _differences(
    left: tuple[EvaluationTable, LeftOut | None],
    right: tuple[EvaluationTable, LeftOut | None],
    subjects: Subjects,
) -> dict[str, dict[str, Any]]:
    """By metric: difference, interval, p_value, test."""
    (first, first_area), (second, second_area) = left, right
    if first_area is not None and second_area is not None:
        hits = [(table.values.argmax(axis=1) == table.true).astype(np.float64) for table in (first, second)]
        parts = ranking.exchange_parts(first.true, first.values, second.values, subjects)
        return {
            "auc": _of_areas(first_area - second_area, parts),
            "accuracy": _of_hits(hits[0], hits[1], subjects),
        }
    if first.task == "regression":
        errors = [np.abs(table.values[:, 0] - table.true) for table in (first, second)]
        return {"mae": _of_means(errors[0] - errors[1], subjects)}
    return {"dice": _of_means(mean_dice(first.dice) - mean_dice(second.dice), subjects)}


def _of_areas(difference: LeftOut, parts: np.ndarray) -> dict[str, Any]:
    testable = difference.fewest >= LEAST and bool(np.isfinite(parts).all())
    return {
        "difference": difference.value if np.isfinite(difference.value) else None,
        "interval": difference.interval_of_difference(normal=True),
        "p_value": exchange_p(parts) if testable else None,
        "test": EXCHANGE,
    }


def _of_means(differences: np.ndarray, subjects: Subjects) -> dict[str, Any]:
    """Of a mean over scans, (N,); those of which a run says nothing (NaN) are left out."""
    finite = np.isfinite(differences)
    without = mean_left_out(subjects, differences)
    return {
        "difference": without.value if finite.any() else None,
        "interval": without.interval_of_difference(),
        "p_value": exchange_p(subjects.of(finite).sums(differences[finite])),
        "test": EXCHANGE,
    }


def _of_hits(first: np.ndarray, other: np.ndarray, subjects: Subjects) -> dict[str, Any]:
    """Of accuracies: float (N,), 1 where a run is right."""
    return {
        "difference": float((first - other).mean()),
        "interval": interval_of_shares(first, other, subjects),
        "p_value": exchange_p(subjects.sums(first - other)),
        "test": MCNEMAR,
    }


def _names(tables: Sequence[EvaluationTable]) -> list[str]:
    """Each run's folder name, or the whole path where two are named alike."""
    names = [table.run.resolve().name for table in tables]
    return [
        name if names.count(name) == 1 else str(table.run) for name, table in zip(names, tables, strict=True)
    ]


def _keys(tables: Sequence[EvaluationTable], one_set: bool) -> list[list[tuple[Hashable, ...]]]:
    """What each table's lines are known by in every table; the subject comes first."""
    if one_set:
        return [list(zip(table.subjects, table.rows.tolist(), strict=True)) for table in tables]
    by_session = [list(zip(table.subjects, table.sessions, strict=True)) for table in tables]
    if all(all(table.sessions) for table in tables) and all(len(set(k)) == len(k) for k in by_session):
        return [list(keys) for keys in by_session]
    return [_by_order(table) for table in tables]


def _by_order(table: EvaluationTable) -> list[tuple[Hashable, ...]]:
    total, seen, keys = Counter(table.subjects), Counter[str](), []
    for place in np.argsort(table.rows, kind="stable"):
        subject = table.subjects[place]
        keys.append((place, (subject, total[subject], seen[subject])))
        seen[subject] += 1
    return [key for _, key in sorted(keys)]


def _check_same_task(first: EvaluationTable, other: EvaluationTable) -> None:
    if first.task != other.task:
        raise RunError(
            f"{first.run} is a {first.task}, {other.run} a {other.task}.",
            cure="Compare runs of the same task.",
            path=other.run,
        )
    if set(first.classes) != set(other.classes):
        raise RunError(
            f"{first.run} has the classes {', '.join(first.classes)}; "
            f"{other.run}, {', '.join(other.classes)}.",
            cure="Compare runs with the same data.classes.",
            path=other.run,
        )


def _check_same_truth(first: EvaluationTable, other: EvaluationTable) -> None:
    # Targets are written with six digits.
    differ = np.flatnonzero(~np.isclose(first.true, other.true, rtol=1e-5, atol=0))
    if len(differ):
        i = int(differ[0])
        labels = [
            table.classes[int(table.true[i])] if table.classes else f"{table.true[i]:g}"
            for table in (first, other)
        ]
        raise RunError(
            f"The labels or targets differ for {len(differ)} scan(s): {first.subjects[i]} is "
            f"{labels[0]} in {first.run} "
            f"and {labels[1]} in {other.run}.",
            cure="Compare runs on the same cohort.",
            path=other.run,
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
