"""DeLong's test, against its definition over all pairs, the bootstrap and its promise on made-up cohorts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from trainer.metrics.delong import compare


def made_up(seed: int, n: int = 70, ties: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels and scores of two classifiers that see partly the same."""
    rng = np.random.default_rng(seed)
    true = (rng.uniform(size=n) < 0.4).astype(int)
    common = rng.normal(size=n)
    first, second = (true * skill + common + rng.normal(size=n) for skill in (1.2, 0.8))
    return (true, np.round(first), np.round(second)) if ties else (true, first, second)


def auc_variance(true, scores) -> tuple[float, float]:
    """An AUC and its variance, from the comparison with equal scores: their AUC is 0.5, and does not vary."""
    found = compare(true, scores, np.zeros(len(true)))
    low, high = found["interval"]
    return found["auc_first"], ((high - low) / 2 / norm.ppf(0.975)) ** 2


def by_definition(true, *scores):
    """Areas and their covariance (DeLong 1988, equations 4 to 6), pair by pair."""
    rows, columns = [], []
    for score in scores:
        pairs = [[(x > y) + 0.5 * (x == y) for y in score[true == 0]] for x in score[true == 1]]
        rows.append(np.mean(pairs, axis=1))
        columns.append(np.mean(pairs, axis=0))
    covariance = np.cov(rows) / len(rows[0]) + np.cov(columns) / len(columns[0])
    return np.mean(rows, axis=1), covariance


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_definition_over_all_pairs(seed, ties):
    true, first, second = made_up(seed, ties=ties)
    areas, covariance = by_definition(true, first, second)
    found = compare(true, first, second)
    for scores, area, variance in zip((first, second), areas, np.diag(covariance), strict=True):
        assert auc_variance(true, scores) == pytest.approx((area, variance), rel=1e-10)
        assert area == pytest.approx(roc_auc_score(true, scores), abs=1e-12)
    assert (found["auc_first"], found["auc_second"]) == pytest.approx(tuple(areas), abs=1e-12)
    difference = areas[0] - areas[1]
    error = np.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    assert found["difference"] == pytest.approx(difference, abs=1e-12)
    assert found["interval"] == pytest.approx([difference - 1.959964 * error, difference + 1.959964 * error])
    assert found["p_value"] == pytest.approx(2 * norm.cdf(-abs(difference) / error), rel=1e-9)


def test_the_standard_error_is_about_the_bootstraps():
    true, first, second = made_up(1, n=400)
    rng = np.random.default_rng(0)
    members = [np.flatnonzero(true == k) for k in (0, 1)]
    differences = []
    for _ in range(400):
        rows = np.concatenate([rng.choice(m, len(m)) for m in members])
        differences.append(roc_auc_score(true[rows], first[rows]) - roc_auc_score(true[rows], second[rows]))
    low, high = compare(true, first, second)["interval"]
    # The spread of 400 resamples is known to 1 / sqrt(800) = 3.5 %: three of those.
    assert (high - low) / (2 * 1.959964) == pytest.approx(np.std(differences), rel=0.11)


def test_two_equally_good_classifiers_are_told_apart_as_seldom_as_promised():
    rejected, held = 0, 0
    truth = norm.cdf(1 / np.sqrt(2))
    for seed in range(400):
        rng = np.random.default_rng(seed)
        true = np.arange(120) % 2
        first, second = (true + rng.normal(size=120) for _ in range(2))
        rejected += compare(true, first, second)["p_value"] < 0.05
        area, variance = auc_variance(true, first)
        held += abs(area - truth) < 1.959964 * np.sqrt(variance)
    # 5 % of 400 are 20, and 380; 4.4 is the binomial's standard deviation: three of those.
    assert 7 <= rejected <= 33
    assert 367 <= held <= 393


def test_the_order_of_the_two_changes_the_sign_only():
    true, first, second = made_up(3)
    one, other = compare(true, first, second), compare(true, second, first)
    assert one["difference"] == -other["difference"]
    assert one["p_value"] == other["p_value"]
    assert one["interval"] == pytest.approx([-end for end in other["interval"][::-1]])


def test_only_the_order_of_the_scores_counts():
    true, first, second = made_up(4)
    assert compare(true, np.exp(first), second * 7 + 1) == compare(true, first, second)


def test_what_cannot_be_told_is_none():
    true, first, second = made_up(5)
    same = compare(true, first, first)
    assert (same["difference"], same["interval"], same["p_value"]) == (0.0, [0.0, 0.0], 1.0)
    assert compare(np.zeros(70, int), first, second) is None
    assert compare(np.ones(70, int), first, second) is None
    alone = np.zeros(70, int)
    alone[3] = 1
    assert compare(alone, first, second)["p_value"] is compare(alone, first, second)["interval"] is None
    # All right against all wrong: a difference, and nothing to measure its error by.
    apart = compare(true, true.astype(float), 1.0 - true)
    assert (apart["difference"], apart["interval"], apart["p_value"]) == (1.0, None, None)
    json.dumps([same, apart, compare(alone, first, second)], allow_nan=False)


def test_a_hundred_thousand_subjects_take_no_time():
    rng = np.random.default_rng(0)
    true, scores = rng.integers(0, 2, 100_000), rng.normal(size=100_000)
    area, variance = auc_variance(true, scores)  # over all pairs this would need 20 GB
    # Of scores that say nothing: (m + n + 1) / (12 m n), Mann and Whitney.
    assert variance == pytest.approx(1 / (3 * 100_000), rel=0.02)
    assert abs(area - 0.5) < 5 * np.sqrt(variance)
