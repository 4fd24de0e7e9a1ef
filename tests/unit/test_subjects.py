"""Intervals and tests by subject: copies of scans add nothing, and cohorts are judged as promised."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from pages import ROOT
from scipy.stats import norm, t
from sklearn.metrics import roc_auc_score

from trainer.metrics import comparison, subjects
from trainer.metrics.classification import auc_left_out, classification_metrics
from trainer.metrics.regression import regression_metrics
from trainer.metrics.segmentation import segmentation_metrics
from trainer.metrics.subjects import Subjects, exchange_p, left_out, mean_left_out, share_interval, wilson
from trainer.metrics.tables import EvaluationTable

Z = norm.ppf(0.975)


@dataclass(frozen=True)
class Answers:
    """What two networks say of the same scans: names of subjects, labels, and p of the second class."""

    people: list[str]
    true: np.ndarray
    first: np.ndarray
    second: np.ndarray

    def repeated(self, times: np.ndarray) -> Answers:
        """Return each scan so often."""
        places = np.repeat(np.arange(len(self.true)), times)
        names = [self.people[place] for place in places]
        return Answers(names, self.true[places], self.first[places], self.second[places])


def answers(seed: int, n: int = 30, ties: bool = False) -> Answers:
    """Of as many subjects as scans."""
    rng = np.random.default_rng(seed)
    true = (np.arange(n) % 5 < 2).astype(int)
    common = rng.normal(size=n)
    first, second = (1 / (1 + np.exp(-(true * skill + common + rng.normal(size=n)))) for skill in (1.2, 0.8))
    if ties:
        first, second = first.round(1), second.round(1)
    return Answers([f"s{k}" for k in range(n)], true, first, second)


def compared(told: Answers) -> dict:
    """As `cingulum compare` does."""
    n = len(told.true)
    tables = [
        EvaluationTable(
            "classification", ("NC", "AD"), np.arange(n), tuple(told.people), ("",) * n, told.true,
            np.stack([1 - p, p], axis=1), Path(name), "x"
        )
        for name, p in (("one", told.first), ("two", told.second))
    ]  # fmt: skip
    return comparison.compare(tables)


def by_definition(true: np.ndarray, *scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Areas and their covariance (DeLong 1988, equations 4 to 6), pair by pair."""
    rows, columns = [], []
    for score in scores:
        pairs = [[(x > y) + 0.5 * (x == y) for y in score[true == 0]] for x in score[true == 1]]
        rows.append(np.mean(pairs, axis=1))
        columns.append(np.mean(pairs, axis=0))
    covariance = np.cov(rows) / len(rows[0]) + np.cov(columns) / len(columns[0])
    return np.mean(rows, axis=1), covariance


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_with_one_scan_each_the_error_of_an_area_is_delongs(seed, ties):
    told = answers(seed, ties=ties)
    areas, covariance = by_definition(told.true, told.first, told.second)
    people = Subjects.named(told.people)
    one, other = (
        auc_left_out(told.true, np.stack([1 - p, p], axis=1), people) for p in (told.first, told.second)
    )
    assert one.value == pytest.approx(areas[0]) == pytest.approx(roc_auc_score(told.true, told.first))
    assert one.error == pytest.approx(np.sqrt(covariance[0, 0]), rel=1e-9)
    difference = one - other
    error = np.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    assert difference.error == pytest.approx(error, rel=1e-9)
    low, high = difference.interval_of_difference(normal=True)
    assert [low, high] == pytest.approx([difference.value - Z * error, difference.value + Z * error])
    low, high = one.interval("share", normal=True)
    logit = np.log(areas[0] / (1 - areas[0]))
    half = Z * np.sqrt(covariance[0, 0]) / (areas[0] * (1 - areas[0]))
    assert np.log([low / (1 - low), high / (1 - high)]) == pytest.approx([logit - half, logit + half])


def test_with_one_scan_each_a_share_has_wilsons_interval_and_a_mean_students():
    rng = np.random.default_rng(0)
    people, hits, values = Subjects(np.arange(30)), rng.integers(0, 2, 30).astype(float), rng.normal(size=30)
    assert share_interval(hits, people) == wilson(hits.mean(), 30)
    half = t.ppf(0.975, 29) * values.std(ddof=1) / np.sqrt(30)
    assert mean_left_out(people, values).interval("any") == pytest.approx(
        [values.mean() - half, values.mean() + half]
    )


@pytest.mark.parametrize("times", [np.full(30, 5), np.full(30, 2)])
def test_copies_of_every_scan_change_no_figure_no_interval_and_no_p(times):
    once = answers(1)
    one, more = compared(once), compared(once.repeated(times))
    assert (one["n"], one["subjects"]) == (30, 30)
    assert (more["n"], more["subjects"]) == (30 * times[0], 30)
    for run, again in zip(one["runs"], more["runs"], strict=True):
        for name in ("auc", "pr_auc", "accuracy"):
            assert again["metrics"][name] == pytest.approx(run["metrics"][name], abs=1e-12)
            bounds = [told["metrics"][f"{name}_interval"] for told in (run, again)]
            assert bounds[1] == pytest.approx(bounds[0], abs=1e-9), name
    for pair, again in zip(one["comparisons"], more["comparisons"], strict=True):
        for name in ("difference", "interval", "p_value"):
            assert again[name] == pytest.approx(pair[name], abs=1e-9), (pair["metric"], name)
    rng = np.random.default_rng(0)
    target, dice = rng.normal(70, 5, (2, 30)), rng.uniform(0.6, 0.9, 30)
    names = once.repeated(times).people
    for found, again in (
        (regression_metrics(*target, once.people), regression_metrics(*np.repeat(target, times, 1), names)),
        (
            segmentation_metrics({"grey": dice}, {"grey": dice}, once.people),
            segmentation_metrics(*[{"grey": np.repeat(dice, times)}] * 2, names),
        ),
    ):
        for name in found:
            if name.endswith("_interval"):
                assert again[name] == pytest.approx(found[name], abs=1e-9), name


def test_the_order_of_scans_and_of_runs_does_not_count():
    told = answers(2).repeated(np.random.default_rng(0).integers(1, 6, 30))
    mixed = np.random.default_rng(1).permutation(len(told.true))
    turned = Answers(
        [told.people[place] for place in mixed], told.true[mixed], told.second[mixed], told.first[mixed]
    )
    for pair, other in zip(compared(told)["comparisons"], compared(turned)["comparisons"], strict=True):
        assert pair["difference"] == pytest.approx(-other["difference"])
        assert pair["p_value"] == pytest.approx(other["p_value"])
        assert pair["interval"] == pytest.approx([-end for end in other["interval"][::-1]])


def test_only_the_order_of_a_networks_scores_counts_for_its_area():
    told = answers(3)
    squeezed = Answers(told.people, told.true, told.first**9 / 2, told.second)
    first, second = (compared(one)["comparisons"][0] for one in (told, squeezed))
    assert first == second


def test_leaving_out_a_subject_is_the_figure_of_the_others():
    told = answers(4).repeated(np.random.default_rng(0).integers(1, 6, 30))
    names, shares = np.array(told.people), np.stack([1 - told.first, told.first], axis=1)
    without = auc_left_out(told.true, shares, Subjects.named(told.people))
    # By class, then by the first scan of each.
    order = sorted(dict.fromkeys(told.people), key=lambda name: told.true[told.people.index(name)])
    expected = [roc_auc_score(told.true[names != name], told.first[names != name]) for name in order]
    assert without.values == pytest.approx(expected)


def test_many_subjects_are_left_out_in_groups_with_about_the_same_error(monkeypatch):
    values = np.random.default_rng(0).normal(size=500)
    people = Subjects(np.repeat(np.arange(250), 2))
    figure = lambda weights: (weights @ values) / weights.sum(axis=1)  # noqa: E731
    each = left_out(people, figure)
    monkeypatch.setattr(subjects, "MOST", 50)
    grouped = left_out(people, figure)
    assert (len(each.values), len(grouped.values)) == (250, 50)
    assert grouped.error == pytest.approx(each.error, rel=0.3)  # of 50 groups: 10 %, three of those
    rare = (people.home < 6).astype(int)  # a small class is not put together
    assert np.bincount(left_out(people, figure, rare).strata).tolist() == [25, 6]


def test_what_cannot_be_told_is_none():
    told = answers(5)
    same = compared(Answers(told.people, told.true, told.first, told.first))["comparisons"]
    assert [pair["p_value"] for pair in same] == [1.0, 1.0]
    assert same[0]["interval"] == [0.0, 0.0]
    alone = np.zeros(30, int)
    alone[3] = 1
    auc = compared(Answers(told.people, alone, told.first, told.second))["comparisons"][0]
    assert auc["p_value"] is auc["interval"] is None
    nobody = compared(Answers(told.people, np.zeros(30, int), told.first, told.second))["comparisons"][0]
    assert nobody["difference"] is nobody["p_value"] is nobody["interval"] is None
    assert exchange_p(np.ones(4)) is None and exchange_p(np.zeros(9)) == 1.0
    assert exchange_p(np.ones(5)) == exchange_p(-np.ones(5)) == 2 / 2**5
    # Twenty scans of four subjects are four, not twenty.
    few = answers(6, n=4).repeated(np.full(4, 5))
    shares = np.stack([1 - few.first, few.first], axis=1)
    found = classification_metrics(few.true, shares, ("NC", "AD"), few.people)
    assert (found["n"], found["subjects"], found["auc_interval"]) == (20, 4, None)


def test_a_subject_of_two_classes_is_left_out_with_all_its_scans():
    told = answers(7)
    people = [f"s{k // 2}" for k in range(30)]  # neighbours, of which some are of two classes
    shares = np.stack([1 - told.first, told.first], axis=1)
    found = classification_metrics(told.true, shares, ("NC", "AD"), people)
    low, high = found["auc_interval"]
    assert found["subjects"] == 15 and low < found["auc"] < high


def test_equal_answers_are_worth_as_many_as_the_subjects_and_unlike_ones_as_many_as_the_scans():
    people = Subjects(np.repeat(np.arange(200), 4))
    rng = np.random.default_rng(0)
    alike, unlike = np.repeat(rng.integers(0, 2, 200), 4).astype(float), rng.integers(0, 2, 800).astype(float)
    assert subjects.worth(alike, people) == pytest.approx(200)
    assert subjects.worth(np.ones(800), people) == pytest.approx(200)
    assert 700 < subjects.worth(unlike, people) <= 800
    uneven = Subjects(np.repeat([0, 1, 2], [8, 1, 1]))
    assert subjects.worth(np.ones(10), uneven) == pytest.approx(100 / 66)


def test_simulated_cohorts_are_judged_about_as_often_as_promised():
    """A small version of benchmarks/subjects_alike.py; its full table is in the docs."""
    import runpy

    simulate = runpy.run_path(str(ROOT / "benchmarks" / "subjects_alike.py"))["simulate"]
    for alike in (1.0, 0.5):
        shares = simulate(sessions=5 if alike == 1 else None, alike=alike, cohorts=300, seed=1)
        for name, share in shares.items():
            # Three standard deviations of 300 cohorts are 3.8 %.
            if name.endswith("false alarms"):
                assert 0.01 <= share <= 0.088, (alike, name)
            else:
                assert share >= 0.912, (alike, name)
