"""Metrics of a classifier, against scikit-learn and counts by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score

from trainer.metrics import classification, ranking
from trainer.metrics.classification import classification_metrics
from trainer.metrics.comparison import auc_difference
from trainer.metrics.subjects import Subjects, wilson

# Of as many subjects as scans.
NAMES = [f"s{k}" for k in range(60)]


def made_up(classes: int, n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels and probabilities with ties, a little better than chance."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, classes, n)
    shares = rng.dirichlet(np.ones(classes), n)
    shares[np.arange(n), true] += 0.4
    shares = np.round(shares / shares.sum(axis=1, keepdims=True), 1) + 0.01
    return true, shares / shares.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_auc_and_balanced_accuracy_are_scikit_learns(classes, seed):
    true, shares = made_up(classes, seed=seed)
    found = classification_metrics(true, shares, "abcd"[:classes], None)
    expected = roc_auc_score(true, shares[:, 1] if classes == 2 else shares, multi_class="ovr")
    assert found["auc"] == pytest.approx(expected, abs=1e-12)
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(true, shares.argmax(axis=1)))
    assert found["auc_interval"] is None


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_pr_auc_is_scikit_learns_average_precision(classes, seed):
    true, shares = made_up(classes, seed=seed)
    found = classification_metrics(true, shares, "abcd"[:classes], None)
    one_hot = np.eye(classes)[true]
    expected = average_precision_score(*((true, shares[:, 1]) if classes == 2 else (one_hot, shares)))
    assert found["pr_auc"] == pytest.approx(expected, abs=1e-12)
    assert found["pr_auc_interval"] is None
    assert found["brier"] == classification.brier(true, shares)
    assert found["ece"] == classification.ece(true, shares)


@pytest.mark.parametrize("classes", [2, 3])
def test_weighted_areas_are_those_that_scikit_learn_gives_with_its_weights(classes):
    true, shares = made_up(classes)
    weights = np.random.default_rng(1).integers(0, 4, (20, 60)).astype(float)
    for area, by_scikit_learn in (
        (ranking.roc_areas, roc_auc_score),
        (ranking.average_precisions, average_precision_score),
    ):
        expected = [
            np.mean(
                [by_scikit_learn(true == k, shares[:, k], sample_weight=w) for k in ranking.targets(classes)]
            )
            for w in weights
        ]
        np.testing.assert_allclose(area(true, shares, weights), expected, atol=1e-12)
        assert np.isnan(area(true, shares, np.tile(true == 0, (2, 1)).astype(float))).all()


@pytest.mark.parametrize("classes", [2, 3])
def test_exchanged_answers_change_the_difference_of_areas_by_the_signs_of_their_subjects(classes):
    rng = np.random.default_rng(classes)
    true, one = made_up(classes, 60, 1)
    _, other = made_up(classes, 60, 2)
    people = Subjects.named([str(k) for k in rng.integers(0, 20, 60)])
    parts = ranking.exchange_parts(true, one, other, people)
    every = np.ones((1, 60))
    difference = ranking.roc_areas(true, one, every) - ranking.roc_areas(true, other, every)
    assert parts.sum() == pytest.approx(difference[0], abs=1e-12)
    # Ranks, so that answers of two networks may be compared; then each subject's two are exchanged or not.
    one, other = (rankdata(p, axis=0) for p in (one, other))
    signs = rng.choice([-1, 1], people.count)
    kept = (signs == 1)[people.home][:, None]
    first, second = np.where(kept, one, other), np.where(kept, other, one)
    exchanged = ranking.roc_areas(true, first, every) - ranking.roc_areas(true, second, every)
    assert (signs * parts).sum() == pytest.approx(exchanged[0], abs=1e-12)


def test_the_interval_of_the_pr_auc_holds_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    true = np.arange(200_000) % 2
    truth = average_precision_score(true, rng.normal(size=len(true)) + true)
    held = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        p = 1 / (1 + np.exp(-(rng.normal(size=80) + true[:80])))
        found = classification_metrics(true[:80], np.stack([1 - p, p], 1), "ab", [str(k) for k in range(80)])
        low, high = found["pr_auc_interval"]
        assert low <= found["pr_auc"] <= high
        held += low <= truth <= high
    assert 86 <= held <= 100


def test_counts_are_those_of_a_hand_count():
    true = np.array([0, 0, 0, 1, 1, 1, 1, 1])
    called = np.array([0, 0, 1, 1, 1, 1, 0, 0])
    shares = np.stack([1 - (0.2 + 0.6 * called), 0.2 + 0.6 * called], axis=1)
    found = classification_metrics(true, shares, ["NC", "AD"], None)
    assert found["confusion"] == [[2, 1], [2, 3]]
    assert (found["n"], found["accuracy"], found["positive"]) == (8, 5 / 8, "AD")
    assert found["sensitivity"] == pytest.approx(3 / 5)
    assert found["specificity"] == pytest.approx(2 / 3)
    assert found["balanced_accuracy"] == pytest.approx((3 / 5 + 2 / 3) / 2)
    assert found["auc"] == pytest.approx((2 / 3 * 3 / 5) + 0.5 * (2 / 3 * 2 / 5 + 1 / 3 * 3 / 5))


def test_with_three_classes_sensitivity_and_specificity_are_means_over_classes():
    true, called = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 1, 2, 0])
    found = classification_metrics(true, np.eye(3)[called], "abc", None)
    assert found["sensitivity"] == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)
    assert found["specificity"] == pytest.approx((3 / 4 + 3 / 4 + 1) / 3)
    assert found["positive"] is None


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    held = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        true = np.arange(80) % 2
        p = 1 / (1 + np.exp(-(rng.normal(size=80) + true)))
        low, high = classification_metrics(true, np.stack([1 - p, p], 1), "ab", [str(k) for k in range(80)])[
            "auc_interval"
        ]
        held += low <= 0.7602 <= high  # Phi(1 / sqrt 2), for two normal distributions one apart
    assert 86 <= held <= 100


def test_the_same_predictions_give_the_same_interval():
    first, again = (classification_metrics(*made_up(2), "ab", NAMES)["auc_interval"] for _ in range(2))
    assert first == again
    assert first[0] < first[1]


def test_what_cannot_be_told_is_none_and_all_of_it_is_json():
    shares = np.array([[0.9, 0.1], [0.4, 0.6]])
    one_class = classification_metrics(np.array([0, 0]), shares, "ab", NAMES[:2])
    assert one_class["auc"] is None and one_class["sensitivity"] is None
    assert one_class["pr_auc"] is None and one_class["pr_auc_interval"] is None
    assert one_class["specificity"] == one_class["balanced_accuracy"] == 0.5
    nobody = classification_metrics(np.zeros(0, int), np.zeros((0, 2)), "ab", [])
    assert nobody["n"] == 0 and nobody["accuracy"] is None
    for found in (one_class, nobody, classification_metrics(*made_up(3), "abc", NAMES)):
        json.dumps(found, allow_nan=False)


def test_shapes_that_do_not_belong_together_and_nan_are_refused():
    with pytest.raises(ValueError, match="2 classes"):
        classification_metrics(np.zeros(3, int), np.zeros((3, 3)), "ab", None)
    with pytest.raises(ValueError, match="not finite"):
        classification_metrics(np.zeros(1, int), np.array([[np.nan, 1.0]]), "ab", None)


def test_wilson_intervals_are_the_published_ones():
    # Newcombe, Statistics in Medicine 17 (1998) 857, table I, method 3.
    assert wilson(81 / 263, 263) == pytest.approx([0.2553, 0.3662], abs=5e-5)
    assert wilson(0, 20) == pytest.approx([0.0, 0.1611], abs=5e-5)
    assert wilson(1 / 29, 29) == pytest.approx([0.0061, 0.1718], abs=5e-5)


def test_a_paired_difference_is_sharper_than_two_separate_intervals():
    true, shares = made_up(2)
    other = shares.copy()
    other[:5] = other[:5, ::-1]
    value, (low, high) = auc_difference(true, shares, other, NAMES)
    assert value == pytest.approx(roc_auc_score(true, shares[:, 1]) - roc_auc_score(true, other[:, 1]))
    assert low <= value <= high
    one, two = (classification_metrics(true, p, "ab", NAMES)["auc_interval"] for p in (shares, other))
    assert high - low < (one[1] - one[0]) + (two[1] - two[0])
    assert auc_difference(true, shares, shares, NAMES) == (0.0, [0.0, 0.0])
    assert auc_difference(np.zeros(60, int), shares, other, NAMES) is None
