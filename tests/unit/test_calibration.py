"""Reliability, expected calibration error and Brier score, against scikit-learn and counts by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from trainer.metrics.classification import brier, ece, reliability


def made_up(classes: int, n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(classes), n)
    return rng.integers(0, classes, n), shares


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("bins", [5, 10, 15])
@pytest.mark.parametrize("seed", range(3))
def test_reliability_is_scikit_learns_calibration_curve(classes, bins, seed):
    true, shares = made_up(classes, seed=seed)
    found = [row for row in reliability(true, shares, bins) if row["n"]]
    right, sure = calibration_curve(shares.argmax(1) == true, shares.max(1), n_bins=bins)
    np.testing.assert_allclose([row["accuracy"] for row in found], right, rtol=1e-12)
    np.testing.assert_allclose([row["confidence"] for row in found], sure, rtol=1e-12)
    assert sum(row["n"] for row in found) == len(true)
    for row in found:
        assert row["low"] <= row["confidence"] <= row["high"]


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_the_brier_score_is_scikit_learns(classes, seed):
    true, shares = made_up(classes, seed=seed)
    expected = brier_score_loss(true, shares[:, 1] if classes == 2 else shares, labels=range(classes))
    assert brier(true, shares) == pytest.approx(expected, rel=1e-12)


def test_ece_is_the_mean_gap_weighted_by_subjects():
    confidence = np.array([0.9, 0.9, 0.9, 0.9, 0.6])
    shares = np.stack([confidence, 1 - confidence], axis=1)
    true = np.array([0, 0, 0, 1, 1])  # 3 of 4 right at 0.9, 0 of 1 at 0.6
    assert ece(true, shares) == pytest.approx((4 * 0.15 + 1 * 0.6) / 5)


def test_a_calibrated_network_has_little_error_and_a_boasting_one_much():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=20000)
    true = (rng.uniform(size=20000) < p).astype(int)
    shares = np.stack([1 - p, p], axis=1)
    # At 4000 subjects a bin the share right wanders by 0.008; the mean of its size is below that.
    assert ece(true, shares) < 0.01
    sure = np.where(p > 0.5, 0.99, 0.01)
    assert ece(true, np.stack([1 - sure, sure], axis=1)) == pytest.approx(0.24, abs=0.01)


def test_ends_of_bins_and_empty_ones():
    shares = np.array([[0.5, 0.5], [0.0, 1.0]])
    table = reliability(np.array([0, 1]), shares, bins=2)
    assert [row["n"] for row in table] == [1, 1]  # 0.5 belongs to the bin it ends
    assert table[1] == {"low": 0.5, "high": 1.0, "n": 1, "confidence": 1.0, "accuracy": 1.0}
    empty = reliability(np.array([1]), shares[1:], bins=4)[0]
    assert empty == {"low": 0.0, "high": 0.25, "n": 0, "confidence": None, "accuracy": None}


def test_without_subjects_nothing_can_be_told_and_all_of_it_is_json():
    nobody = np.zeros(0, int), np.zeros((0, 3))
    assert ece(*nobody) is None and brier(*nobody) is None
    json.dumps([reliability(*nobody), reliability(*made_up(3))], allow_nan=False)
