"""What each group of simple features reaches, cross-validated over the folds a network would have."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.dummy import DummyRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from trainer.baseline import features
from trainer.baseline.features import Features
from trainer.config import SplitConfig
from trainer.data.shards.index import Volume
from trainer.data.shards.shards import ShardSet
from trainer.data.splits.splits import Split, split
from trainer.errors import CohortError
from trainer.metrics.classification import classification_metrics
from trainer.metrics.regression import regression_metrics

# Fits take one thread: on matrices this small, many threads wait for one another most of the time.


_FEWEST_SITES = 2


def classifier() -> Pipeline:
    """Return logistic regression, each class weighing the same."""
    model = LogisticRegression(C=1.0, class_weight="balanced", max_iter=1000)
    return make_pipeline(_imputer(), StandardScaler(), model)


def regressor() -> Pipeline:
    """Return ridge regression, its penalty chosen by leave-one-out within the training subjects."""
    return make_pipeline(_imputer(), StandardScaler(), RidgeCV(alphas=np.logspace(-2, 4, 13)))


def probabilities(
    values: np.ndarray, numbers: np.ndarray, folds: Sequence[Split], classes: int
) -> np.ndarray:
    """Return the probabilities of each volume, by the model of the fold that tests it.

    Args:
        values: float (N, k), NaN where unknown, by row.
        numbers: int (N,), class numbers by row.
        folds: of which `train` is fitted and `test` predicted.
        classes: how many there are.

    Returns:
        float64 (N, classes); NaN for rows that no fold tests.
    """
    predicted = np.full((len(values), classes), np.nan)
    for fold in folds:
        train, test = list(fold.train), list(fold.test)
        with threadpool_limits(1):
            model = classifier().fit(values[train], numbers[train])
            likely = model.predict_proba(values[test])
        predicted[test] = 0.0
        predicted[np.ix_(test, model.classes_)] = likely
    return predicted


def numbers(
    values: np.ndarray, targets: np.ndarray, folds: Sequence[Split], make: Callable[[], Pipeline] = regressor
) -> np.ndarray:
    """Return numbers as `probabilities` does, for targets that are numbers: float64 (N,)."""
    predicted = np.full(len(values), np.nan)
    for fold in folds:
        train, test = list(fold.train), list(fold.test)
        with threadpool_limits(1):
            predicted[test] = make().fit(values[train], targets[train]).predict(values[test])
    return predicted


def _imputer() -> SimpleImputer:
    # A column that is unknown in all training subjects of a fold stays, as zeros.
    return SimpleImputer(strategy="median", keep_empty_features=True)


Progress = Callable[[int, int], None]


def of_classes(
    shards: ShardSet, classes: Sequence[str] | None, folds: int, seed: int, progress: Progress | None = None
) -> dict[str, Any]:
    """Evaluate how well logistic regression separates the classes.

    Args:
        shards: the shard set.
        classes: the labels, in order: of two, the second is the positive one. None: all there are, sorted.
        folds: of the cross-validation: those of a network with data.split.folds and the same seed.
        seed: of the division.
        progress: called with (volumes read, volumes in all).

    Returns:
        What `cingulum baseline --json` prints: for each group of features its metrics, pooled over the folds;
        a group that nothing is known of is in `left_out`, with the reason.

    Raises:
        CohortError: the subjects cannot be divided so.
        ShardError: a volume is damaged.
    """
    return _told_apart(shards, shards.volumes, tuple(classes or shards.labels), folds, seed, progress)


def of_sites(shards: ShardSet, folds: int, seed: int, progress: Progress | None = None) -> dict[str, Any]:
    """Evaluate how well the site can be told, of those with at least `folds` subjects; see `of_classes`."""
    at_site = Counter(site for site, _ in {(v.site, v.subject) for v in shards.volumes if v.site is not None})
    names = tuple(sorted(site for site, subjects in at_site.items() if subjects >= folds))
    if len(names) < _FEWEST_SITES:
        raise CohortError(
            f"{shards.path}: has fewer than two sites with {folds} subjects each.",
            cure="Sites are of the column 'site' of participants.tsv; fewer --folds need fewer subjects.",
            path=shards.path,
        )
    volumes = [dataclasses.replace(volume, label=volume.site) for volume in shards.volumes]
    return {**_told_apart(shards, volumes, names, folds, seed, progress), "target": "site"}


def _told_apart(
    shards: ShardSet,
    volumes: Sequence[Volume],
    names: tuple[str, ...],
    folds: int,
    seed: int,
    progress: Progress | None,
) -> dict[str, Any]:
    parts = _folds(volumes, names, folds, seed, None)
    rows = sorted(row for part in parts for row in part.test)
    number = {name: k for k, name in enumerate(names)}
    true = np.array([number[str(volumes[row].label)] for row in rows])
    groups, left_out = _groups(shards, rows, progress)
    parts = _renumbered(parts, rows)
    who = [shards.volumes[row].subject for row in rows]
    metrics = {
        name: classification_metrics(true, probabilities(group.values, true, parts, len(names)), names, who)
        for name, group in groups.items()
    }
    shares = np.bincount(true, minlength=len(names)) / len(true)
    chance = {"auc": 0.5, "balanced_accuracy": 1 / len(names), "accuracy": float(shares.max())}
    about = {"task": "classification", "classes": list(names)}
    return about | _summary(shards, rows, folds, seed, chance, metrics, groups, left_out)


def of_numbers(
    shards: ShardSet, target: str, folds: int, seed: int, progress: Progress | None = None
) -> dict[str, Any]:
    """Evaluate how well ridge regression predicts the age, or the label read as a number; else as
    `of_classes`.

    Args:
        target: `age` or `label`.
    """
    known = _targets(shards, target)
    parts = _folds(shards.volumes, None, folds, seed, known)
    rows = sorted(row for part in parts for row in part.test)
    true = np.array([known[row] for row in rows])
    groups, left_out = _groups(shards, rows, progress, age=target != "age")
    parts = _renumbered(parts, rows)
    who = [shards.volumes[row].subject for row in rows]
    metrics = {
        name: regression_metrics(true, numbers(group.values, true, parts), who)
        for name, group in groups.items()
    }
    mean = numbers(np.zeros((len(rows), 1)), true, parts, DummyRegressor)
    chance = regression_metrics(true, mean, who)
    return {"task": "regression", "target": target} | _summary(
        shards, rows, folds, seed, chance, metrics, groups, left_out
    )


def _targets(shards: ShardSet, target: str) -> list[float]:
    """By row; NaN where unknown."""
    if target == "age":
        return [math.nan if volume.age is None else float(volume.age) for volume in shards.volumes]
    try:
        return [math.nan if volume.label is None else float(volume.label) for volume in shards.volumes]
    except ValueError:
        raise CohortError(
            f"{shards.path}: the label ({shards.label_name}) is not a number in every volume.",
            cure="Without --target, the labels are classes.",
            path=shards.path,
        ) from None


def _folds(
    volumes: Sequence[Volume],
    classes: Sequence[str] | None,
    folds: int,
    seed: int,
    targets: Sequence[float] | None,
) -> list[Split]:
    # A validation split would be taken from the training subjects; the test subjects are the same without it.
    return [
        split(
            volumes,
            classes,
            SplitConfig(validation=0, folds=folds, fold=fold, seed=seed),
            targets=targets,
        )
        for fold in range(folds)
    ]


def _renumbered(parts: Sequence[Split], rows: Sequence[int]) -> list[Split]:
    """The folds, with places in `rows` instead of rows of the set."""
    place = {row: k for k, row in enumerate(rows)}
    return [Split(tuple(place[r] for r in p.train), (), tuple(place[r] for r in p.test)) for p in parts]


def _groups(
    shards: ShardSet, rows: Sequence[int], progress: Progress | None, *, age: bool = True
) -> tuple[dict[str, Features], dict[str, str]]:
    """The features that anything is known of, by group, and why others are left out."""
    volumes = [shards.volumes[row] for row in rows]
    groups = {
        "age, sex" if age else "sex": features.people(volumes, age=age).known(),
        "tissue volumes": features.tissue(volumes).known(),
        "intensities": features.intensities(shards, rows, progress).known(),
    }
    reasons = {
        "age, sex": "the set has no ages, and one sex at most",
        "sex": "the set has one sex at most",
        "tissue volumes": "the set has no tissue volumes; they come from a table or from tissue "
        "maps beside the images",
        "intensities": "they are the same in every volume",
    }
    left_out = {name: reasons[name] for name, group in groups.items() if not group.names}
    groups = {name: group for name, group in groups.items() if group.names}
    if not groups:
        raise CohortError(
            f"{shards.path}: no feature differs between the volumes.",
            cure="Look at the images: cingulum inspect",
            path=shards.path,
        )
    if len(groups) > 1:
        groups["all together"] = Features.beside(list(groups.values()))
    return groups, left_out


def _summary(
    shards: ShardSet,
    rows: Sequence[int],
    folds: int,
    seed: int,
    chance: dict[str, Any],
    metrics: dict[str, dict[str, Any]],
    groups: dict[str, Features],
    left_out: dict[str, str],
) -> dict[str, Any]:
    return {
        "path": str(shards.path),
        "content_hash": shards.content_hash,
        "volumes": len(rows),
        "subjects": len({shards.volumes[row].subject for row in rows}),
        "folds": folds,
        "seed": seed,
        "chance": chance,
        "groups": {name: {"features": list(groups[name].names), **metrics[name]} for name in metrics},
        "left_out": left_out,
    }
