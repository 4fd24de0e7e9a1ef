"""Metrics of predicted numbers, against scikit-learn and scipy."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import pearsonr
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

from trainer.metrics.regression import regression_figures, regression_metrics


def names(n: int) -> list[str]:
    """Of as many subjects as scans."""
    return [f"s{k}" for k in range(n)]


def made_up(seed: int, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    true = rng.normal(70, 8, n)
    return true, 20 + 0.7 * true + rng.normal(0, 5, n)


@pytest.mark.parametrize("seed", range(10))
def test_figures_are_those_of_scikit_learn_and_scipy(seed):
    true, predicted = made_up(seed)
    found = regression_metrics(true, predicted, None)
    assert found["n"] == 60
    assert found["mae"] == pytest.approx(mean_absolute_error(true, predicted), rel=1e-12)
    assert found["rmse"] == pytest.approx(np.sqrt(mean_squared_error(true, predicted)), rel=1e-12)
    assert found["r2"] == pytest.approx(r2_score(true, predicted), rel=1e-12)
    assert found["pearson"] == pytest.approx(pearsonr(true, predicted)[0], rel=1e-12)
    assert found["bias"] == pytest.approx(predicted.mean() - true.mean(), rel=1e-9)
    assert found["mae_interval"] is None and found["r2_interval"] is None


def test_weighted_figures_are_those_that_scikit_learn_gives_with_its_weights():
    true, predicted = made_up(0)
    weights = np.random.default_rng(1).integers(0, 4, (20, 60)).astype(float)
    figures = regression_figures(true, predicted)
    for name, by_scikit_learn in (("mae", mean_absolute_error), ("r2", r2_score)):
        expected = [by_scikit_learn(true, predicted, sample_weight=w) for w in weights]
        np.testing.assert_allclose(figures[name](weights), expected, rtol=1e-12)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    held = np.zeros(2)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        true = rng.normal(70, 8, 100)
        found = regression_metrics(true, true + rng.normal(0, 4, 100), names(100))
        # Mean size of a normal error; its share of the targets' variance.
        for i, (name, truth) in enumerate((("mae", 4 * np.sqrt(2 / np.pi)), ("r2", 1 - 16 / 64))):
            low, high = found[f"{name}_interval"]
            held[i] += low <= truth <= high
    # 95 % of 200 are 190, with a standard deviation of 3.1: three of those.
    assert (held >= 181).all() and (held <= 199).all()


def test_always_saying_the_mean_explains_nothing_and_has_no_correlation():
    true, _ = made_up(1)
    found = regression_metrics(true, np.full(60, true.mean()), names(60))
    assert found["r2"] == pytest.approx(0.0, abs=1e-12)
    assert found["pearson"] is None
    assert found["bias"] == pytest.approx(0.0, abs=1e-12)


def test_digits_are_not_lost_to_the_size_of_the_numbers():
    true, predicted = made_up(2)
    near, far = (regression_metrics(true + add, predicted + add, names(60)) for add in (0, 1e6))
    assert far["r2_interval"] == pytest.approx(near["r2_interval"], rel=1e-6)


def test_what_cannot_be_told_is_none_and_all_of_it_is_json():
    nobody = regression_metrics(np.zeros(0), np.zeros(0), [])
    assert nobody == dict.fromkeys(nobody, None) | {"n": 0, "subjects": 0}
    one = regression_metrics(np.array([70.0]), np.array([72.0]), ["s"])
    assert (one["n"], one["mae"], one["rmse"], one["bias"]) == (1, 2.0, 2.0, 2.0)
    assert one["r2"] is one["pearson"] is one["mae_interval"] is one["r2_interval"] is None
    alike = regression_metrics(np.full(5, 70.0), np.arange(5.0), names(5))
    assert alike["r2"] is alike["pearson"] is alike["r2_interval"] is None
    assert alike["mae_interval"] is not None
    # Without the last subject all targets are alike.
    five = regression_metrics(
        np.array([1.0, 1.0, 1.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0, 1.0, 3.0]), names(5)
    )
    assert five["r2"] is not None and five["r2_interval"] is None
    for found in (nobody, one, alike, five):
        json.dumps(found, allow_nan=False)


def test_shapes_that_do_not_belong_together_and_nan_are_refused():
    with pytest.raises(ValueError, match=r"\(3,\) targets, \(3, 1\) predictions"):
        regression_metrics(np.zeros(3), np.zeros((3, 1)), None)
    with pytest.raises(ValueError, match="not finite"):
        regression_metrics(np.zeros(2), np.array([0.0, np.nan]), None)
