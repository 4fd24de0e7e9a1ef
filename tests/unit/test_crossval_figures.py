"""Pooled figures of a cross-validation, against the metrics of subjects that are written out one by one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score, mean_absolute_error, r2_score, roc_auc_score

from trainer.crossval import tables
from trainer.crossval.held_out import HeldOut
from trainer.metrics.classification import classification_metrics
from trainer.metrics.segmentation import segmentation_metrics

RNG = np.random.default_rng(3)


def held_out(task: str, true, values, *, subjects=None, columns=("predicted",)) -> HeldOut:
    n = len(true)
    names = [f"sub-{k:03d}" for k in range(n)] if subjects is None else subjects
    return HeldOut(
        task=task,
        classes=tuple("ABC"[: np.shape(values)[-1]]) if task == "classification" else (),
        rows=np.arange(n),
        subjects=np.array(names),
        true=np.asarray(true),
        columns=columns,
        values=np.asarray(values, float),
        folds=np.zeros((len(values), n), int),
        header=(),
        lines=(),
    )


def classifier(n: int, classes: int, seeds: int = 1, *, seed: int = 0) -> HeldOut:
    rng = np.random.default_rng(seed)
    true = np.arange(n) % classes
    logits = rng.normal(0, 1, (seeds, n, classes)) + np.eye(classes)[true]
    shares = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    return held_out("classification", true, shares.round(2))  # rounded: with ties


@pytest.mark.parametrize("classes", [2, 3])
def test_weights_count_as_subjects_written_out_so_often(classes):
    found = classifier(40, classes)
    weights = RNG.integers(1, 4, (1, 40))
    again = np.repeat(np.arange(40), weights[0])
    expected = classification_metrics(found.true[again], found.values[0][again], found.classes, None)
    for name, figure in tables.figures(found, 0).items():
        assert figure(weights.astype(float))[0] == pytest.approx(expected[name], abs=1e-9), name


def test_pooled_values_are_the_means_over_seeds():
    found = classifier(50, 2, seeds=3)
    said = tables.pooled(found)
    for name in ("auc", "pr_auc", "accuracy", "balanced_accuracy", "sensitivity", "specificity"):
        each = [one[name] for one in tables.per_seed(found)]
        assert said[name]["value"] == pytest.approx(np.mean(each), abs=1e-12)
        low, high = said[name]["interval"]
        assert low < said[name]["value"] < high
    areas = [roc_auc_score(found.true, v[:, 1]) for v in found.values]
    assert said["auc"]["value"] == pytest.approx(np.mean(areas))
    precisions = [average_precision_score(found.true, v[:, 1]) for v in found.values]
    assert said["pr_auc"]["value"] == pytest.approx(np.mean(precisions))


def test_scans_of_a_subject_are_left_out_together_so_that_copies_add_no_certainty():
    once = classifier(60, 2)
    twice = held_out(
        "classification",
        np.repeat(once.true, 2),
        np.repeat(once.values, 2, axis=1),
        subjects=np.repeat(once.subjects, 2),
    )
    as_strangers = held_out("classification", twice.true, twice.values)
    one, other, wrong = (tables.pooled(found) for found in (once, twice, as_strangers))
    for name in ("auc", "balanced_accuracy", "accuracy", "sensitivity"):
        assert other[name]["interval"] == pytest.approx(one[name]["interval"], abs=1e-9), name
        widths = [said[name]["interval"][1] - said[name]["interval"][0] for said in (one, wrong)]
        assert widths[1] < 0.9 * widths[0], name


def test_more_seeds_do_not_narrow_the_interval_when_they_say_the_same():
    one = classifier(60, 2)
    copies = held_out("classification", one.true, np.repeat(one.values, 4, axis=0))
    assert tables.pooled(copies)["auc"] == tables.pooled(one)["auc"]


def test_perfect_figures_have_no_interval_without_width():
    true = np.arange(20) % 2
    found = held_out("classification", true, [np.stack([1.0 - true, true], axis=1)])
    said = tables.pooled(found)
    assert said["auc"] == {"value": 1.0, "interval": None}
    low, high = said["accuracy"]["interval"]
    assert said["accuracy"]["value"] == high == 1.0 and 0.8 < low < 0.9
    assert said["sensitivity"]["interval"][0] < low  # of ten subjects, not twenty


def test_a_class_without_subjects_leaves_its_figures_unknown():
    found = held_out("classification", np.zeros(10, int), RNG.dirichlet((1, 1), (1, 10)))
    said = tables.pooled(found)
    assert said["auc"] == {"value": None, "interval": None}
    assert said["sensitivity"]["value"] is None and said["specificity"]["value"] is not None


def test_figures_of_a_regression_are_those_of_scikit_learn_and_scipy():
    target = RNG.uniform(20, 90, 40)
    predicted = target + RNG.normal(1, 5, 40)
    found = held_out("regression", target, predicted[None, :, None])
    weights = RNG.integers(1, 4, (1, 40))
    for w, again in ((np.ones((1, 40)), np.arange(40)), (weights, np.repeat(np.arange(40), weights[0]))):
        t, p = target[again], predicted[again]
        expected = {
            "mae": mean_absolute_error(t, p),
            "rmse": np.sqrt(np.mean((t - p) ** 2)),
            "r2": r2_score(t, p),
            "pearson": stats.pearsonr(t, p).statistic,
            "bias": np.mean(p - t),
        }
        said = {name: figure(w.astype(float))[0] for name, figure in tables.figures(found, 0).items()}
        assert said == pytest.approx(expected, abs=1e-9)
    pooled = tables.pooled(found)
    assert all(f["interval"][0] < f["value"] < f["interval"][1] for f in pooled.values())


def test_a_segmentation_averages_what_there_is_of_each_class():
    values = RNG.uniform(0.5, 1, (2, 30, 3))
    values[:, 4, 1:] = np.nan
    columns = ("dice_grey", "dice_white", "hd95_white")
    found = held_out("segmentation", np.zeros(30), values, columns=columns)
    said = tables.pooled(found)
    assert said["dice_grey"]["value"] == pytest.approx(values[..., 0].mean())
    assert said["hd95_white"]["value"] == pytest.approx(np.nanmean(values[..., 2], axis=1).mean())
    assert tables.per_seed(found)[1]["dice_grey"] == pytest.approx(values[1, :, 0].mean())
    dice = {"grey": values[0, :, 0], "white": values[0, :, 1]}
    expected = segmentation_metrics(dice, {"grey": dice["grey"], "white": values[0, :, 2]}, None)["dice"]
    assert tables.per_seed(found)[0]["dice"] == pytest.approx(expected)


def test_the_spread_over_runs_passes_over_what_is_no_number():
    runs = [
        {"n": 10, "auc": 0.5, "auc_interval": [0.1, 0.9], "ece": None, "positive": "AD"},
        {"n": 11, "auc": 0.7, "auc_interval": [0.1, 0.9], "ece": 0.1, "positive": "AD"},
    ]
    said = tables.spread(runs)
    assert said.keys() == {"auc"}
    assert said["auc"] == {
        "mean": pytest.approx(0.6), "sd": pytest.approx(np.std([0.5, 0.7], ddof=1)), "n": 2
    }  # fmt: skip
    assert tables.spread(runs[:1])["auc"]["sd"] is None
