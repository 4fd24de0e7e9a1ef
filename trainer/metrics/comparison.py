"""Several runs judged on the same subjects: their figures, and whether a difference is more than chance."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest, norm

from trainer.errors import RunError
from trainer.metrics import bootstrap as resampling
from trainer.metrics import delong
from trainer.metrics.classification import auc_differences, classification_metrics, smallest_class
from trainer.metrics.regression import regression_metrics
from trainer.metrics.segmentation import mean_dice, segmentation_metrics
from trainer.metrics.tables import Table

RESAMPLES = 2000
BOOTSTRAP = "paired bootstrap"


def compare(tables: Sequence[Table], *, resamples: int = RESAMPLES) -> dict[str, Any]:
    """Return the figures of each run, and the differences of each pair of runs.

    Args:
        tables: as of `aligned`.
        resamples: of every bootstrap.

    Returns:
        task, n, classes, runs (run and metrics of each, in order) and comparisons: for each pair metric,
        first, second, difference (first - second), interval (95 %), p_value (two-sided), p_holm, test.
        Compared are AUC (two classes: DeLong 1988; more: paired bootstrap) and accuracy (p of McNemar's
        exact test, interval of the paired bootstrap), the mean absolute error, or the mean Dice (paired
        bootstrap). With more than two runs p_holm holds p corrected for the number of pairs within a metric
        (Holm, Scandinavian Journal of Statistics 6 (1979) 65), else None. What is undefined is None.
    """
    names = _names(tables)
    return {
        "task": tables[0].task,
        "n": len(tables[0].rows),
        "classes": list(tables[0].classes),
        "runs": [
            {"run": name, "metrics": _metrics(table, resamples)}
            for name, table in zip(names, tables, strict=True)
        ],
        "comparisons": differences(tables, names, resamples=resamples),
    }


def differences(
    tables: Sequence[Table], names: Sequence[str], *, resamples: int = RESAMPLES
) -> list[dict[str, Any]]:
    """Return the `comparisons` of `compare`, with these names for the runs."""
    pairs = [
        {"metric": metric, "first": names[i], "second": names[j], **figures}
        for i, j in itertools.combinations(range(len(tables)), 2)
        for metric, figures in _differences(tables[i], tables[j], resamples).items()
    ]
    found = []
    for metric in dict.fromkeys(pair["metric"] for pair in pairs):
        family = [pair for pair in pairs if pair["metric"] == metric]
        corrected = holm([pair["p_value"] for pair in family]) if len(tables) > 2 else [None] * len(family)
        found += [{**pair, "p_holm": p} for pair, p in zip(family, corrected, strict=True)]
    return found


def aligned(tables: Sequence[Table], *, common: bool = False) -> tuple[list[Table], list[str]]:
    """Return the same subjects of every table, in the same order, and notes for the reader.

    Lines belong together by the row of the shard set, if all runs had the same one, else by subject, and by
    the order of a subject's lines where every table has equally many.

    Args:
        tables: at least two.
        common: leave subjects out that are not in all of them, instead of refusing.

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
    keys = [_keys(table, one_set) for table in tables]
    shared = set.intersection(*map(set, keys))
    alone = set.union(*map(set, keys)) - shared
    if alone:
        some = sorted({str(key[0]) for key in alone})
        what = f"{len(alone)} of {len(alone) + len(shared)} volumes are not in all of them ({_listed(some)})"
        if not shared or not common:
            raise RunError(
                f"The runs were judged on different subjects: {what}.",
                cure=f"--common compares them on the {len(shared)} common ones."
                if shared
                else "Train them on the same data.shards, data.split and seed.",
            )
        notes.append(f"Compared on the {len(shared)} common volumes only: {what}.")
    order = [key for key in keys[0] if key in shared]
    places = [{key: place for place, key in enumerate(own)} for own in keys]
    chosen = [table.taken([where[key] for key in order]) for table, where in zip(tables, places, strict=True)]
    for other in chosen[1:]:
        _check_same_truth(chosen[0], other)
    return chosen, notes


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number, after Holm (1979); None stays None and is not counted."""
    known = [i for i, p in enumerate(p_values) if p is not None]
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(known, key=lambda i: p_values[i] or 0.0)):
        largest = max(largest, min(1.0, (len(known) - rank) * (p_values[i] or 0.0)))
        corrected[i] = largest
    return corrected


def _metrics(table: Table, resamples: int) -> dict[str, Any]:
    if table.task == "classification":
        return classification_metrics(table.true, table.values, table.classes, bootstrap=resamples)
    if table.task == "regression":
        return regression_metrics(table.true, table.values[:, 0], resamples)
    return segmentation_metrics(table.dice, table.hd95, resamples)


def _differences(one: Table, other: Table, resamples: int) -> dict[str, dict[str, Any]]:
    """By metric: difference, interval, p_value, test."""
    if one.task == "classification":
        hits = [(table.values.argmax(axis=1) == table.true).astype(np.float64) for table in (one, other)]
        return {"auc": _auc(one, other, resamples), "accuracy": _of_hits(*hits)}
    if one.task == "regression":
        errors = [np.abs(table.values[:, 0] - table.true) for table in (one, other)]
        return {"mae": _of_means(errors[0] - errors[1], resamples)}
    return {"dice": _of_means(mean_dice(one.dice) - mean_dice(other.dice), resamples)}


def _auc(one: Table, other: Table, resamples: int) -> dict[str, Any]:
    smallest = smallest_class(one.true, len(one.classes))
    if len(one.classes) == 2:
        found = delong.compare(one.true, one.values[:, 1], other.values[:, 1]) or {}
        if smallest < resampling.LEAST:
            found = {"difference": found.get("difference")}
        return {name: found.get(name) for name in ("difference", "interval", "p_value")} | {"test": "DeLong"}
    values = auc_differences(one.true, one.values, other.values, resamples)
    if values is None:
        return _difference(None, np.zeros(0), 0)
    return _difference(float(values[0]), values[1:], smallest)


def _of_means(differences: np.ndarray, resamples: int) -> dict[str, Any]:
    """Of a mean over subjects; those of whom a run says nothing (NaN) are left out."""
    known = differences[np.isfinite(differences)]
    n = len(known)
    if n < 2:
        return _difference(float(known[0]) if n else None, np.zeros(0), n)
    means = resampling.resampled(n, resamples, lambda weights: weights @ known / n)
    return _difference(float(known.mean()), means, n)


def _of_hits(one: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    """Of accuracies: float (N,), 1 where a run is right.

    p of McNemar's exact test (Psychometrika 12 (1947) 153): of those on whom just one run is right, is it the
    same run more often than a coin would say? Interval of Bonett and Price (Journal of Educational and
    Behavioral Statistics 37 (2012) 479), a subject added to either side. A bootstrap of the few on whom two
    runs differ finds differences too easily.
    """
    n, first, second = len(one), int(np.sum(one > other)), int(np.sum(other > one))
    shares = (first + 1) / (n + 2), (second + 1) / (n + 2)
    centre = shares[0] - shares[1]
    half = norm.ppf(0.975) * np.sqrt((sum(shares) - centre**2) / (n + 2))
    return {
        "difference": (first - second) / n,
        "interval": [float(max(-1.0, centre - half)), float(min(1.0, centre + half))],
        "p_value": float(binomtest(first, first + second).pvalue) if first + second else 1.0,
        "test": "McNemar, exact",
    }


def _difference(difference: float | None, resampled: np.ndarray, n: int) -> dict[str, Any]:
    return {
        "difference": difference,
        "interval": resampling.interval_of_difference(resampled, n),
        "p_value": resampling.p_value(resampled) if n >= resampling.LEAST else None,
        "test": BOOTSTRAP,
    }


def _names(tables: Sequence[Table]) -> list[str]:
    """Each run's folder name, or the whole path where two are named alike."""
    names = [table.run.resolve().name for table in tables]
    return [
        name if names.count(name) == 1 else str(table.run) for name, table in zip(names, tables, strict=True)
    ]


def _keys(table: Table, one_set: bool) -> list[tuple[Hashable, ...]]:
    """What a line is known by in every table; the subject comes first."""
    if one_set:
        return list(zip(table.subjects, table.rows.tolist(), strict=True))
    total, seen, keys = Counter(table.subjects), Counter[str](), []
    for place in np.argsort(table.rows, kind="stable"):
        subject = table.subjects[place]
        keys.append((place, (subject, total[subject], seen[subject])))
        seen[subject] += 1
    return [key for _, key in sorted(keys)]


def _check_same_task(one: Table, other: Table) -> None:
    if one.task != other.task:
        raise RunError(
            f"{one.run} is a {one.task}, {other.run} a {other.task}.",
            cure="Compare runs of the same task.",
            path=other.run,
        )
    if set(one.classes) != set(other.classes):
        raise RunError(
            f"{one.run} has the classes {', '.join(one.classes)}; {other.run}, {', '.join(other.classes)}.",
            cure="Compare runs with the same data.classes.",
            path=other.run,
        )


def _check_same_truth(one: Table, other: Table) -> None:
    # Targets are written with six digits.
    differ = np.flatnonzero(~np.isclose(one.true, other.true, rtol=1e-5, atol=0))
    if len(differ):
        i = int(differ[0])
        said = [
            table.classes[int(table.true[i])] if table.classes else f"{table.true[i]:g}"
            for table in (one, other)
        ]
        raise RunError(
            f"The labels or targets differ for {len(differ)} subject(s): {one.subjects[i]} is "
            f"{said[0]} in {one.run} "
            f"and {said[1]} in {other.run}.",
            cure="Compare runs on the same cohort.",
            path=other.run,
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
