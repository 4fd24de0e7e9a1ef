"""Figures by sex, age band and site."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trainer.data.shards.index import VolumeMeta
from trainer.metrics.classification import classification_metrics
from trainer.metrics.regression import regression_metrics
from trainer.metrics.subgroups import (
    classification_measure,
    regression_measure,
    segmentation_measure,
    subgroup_table,
)


def person(
    sex: str | None = None, age: float | None = None, site: str | None = None, name: str = "s"
) -> VolumeMeta:
    return VolumeMeta(subject=name, source="", source_sha256="", affine=[], sex=sex, age=age, site=site)


def cohort(n: int = 60) -> list[VolumeMeta]:
    rng = np.random.default_rng(0)
    return [person("FM"[i % 2], float(rng.uniform(55, 95)), f"site-{i % 3}", NAMES[i]) for i in range(n)]


NAMES = [f"s{k}" for k in range(60)]


def count(places: np.ndarray) -> dict:
    return {"places": places.tolist()}


def test_every_subject_is_in_one_group_of_each_kind():
    table = subgroup_table(cohort(), count, smallest=1)
    for by in ("sex", "age", "site"):
        rows = [row for row in table if row["by"] == by]
        assert sorted(place for row in rows for place in row["metrics"]["places"]) == list(range(60))
        assert all(row["n"] == len(row["metrics"]["places"]) for row in rows)
    men = next(row for row in table if row["group"] == "M")
    assert men["metrics"]["places"] == list(range(1, 60, 2))


def test_bands_begin_at_multiples_and_are_sorted_by_number_with_the_unknown_last():
    ages = [70.0, 69.99, 100.2, None, 5.0, float("nan")]
    table = subgroup_table([person(age=age) for age in ages], count, smallest=1)
    assert [(row["group"], row["n"]) for row in table] == [
        ("0-9", 1),
        ("60-69", 1),
        ("70-79", 1),
        ("100-109", 1),
        ("unknown", 2),
    ]
    assert subgroup_table([person(age=67.0)], count, smallest=1, band=5)[0]["group"] == "65-69"


def test_small_groups_have_a_count_and_no_figures():
    volumes = [person("F", name=str(k)) for k in range(10)] + [person("M", name=str(k)) for k in range(9)]
    women, men = subgroup_table(volumes, count)
    assert (women["n"], women["metrics"]) == (10, {"places": list(range(10))})
    assert (men["n"], men["metrics"]) == (9, None)


def test_many_scans_of_few_subjects_are_a_small_group():
    volumes = [person("F", name=str(k // 9)) for k in range(81)] + [
        person("M", name=str(k)) for k in range(10)
    ]
    women, men = subgroup_table(volumes, count)
    assert (women["n"], women["subjects"], women["metrics"]) == (81, 9, None)
    assert (men["n"], men["subjects"]) == (10, 10) and men["metrics"] is not None


def test_what_no_subject_has_is_left_out():
    assert {row["by"] for row in subgroup_table([person("F"), person(None)], count)} == {"sex"}
    assert subgroup_table([person()], count) == []
    assert subgroup_table([], count) == []


def test_figures_are_those_of_the_group_s_subjects_alone():
    rng = np.random.default_rng(1)
    volumes, women = cohort(), np.arange(0, 60, 2)
    true, shares = rng.integers(0, 2, 60), rng.dirichlet([1, 1], 60)
    row = subgroup_table(volumes, classification_measure(true, shares, "ab", NAMES))[0]
    expected = classification_metrics(true[women], shares[women], "ab", NAMES[::2])
    assert row["group"] == "F" and row["n"] == 30
    assert row["metrics"] == {name: expected[name] for name in row["metrics"]}
    assert row["metrics"]["auc_interval"] is not None

    ages = rng.normal(70, 8, (2, 60))
    row = subgroup_table(volumes, regression_measure(*ages, NAMES))[0]
    expected = regression_metrics(*ages[:, women], NAMES[::2])
    assert row["metrics"] == {name: expected[name] for name in ("mae", "mae_interval", "bias")}

    dice = rng.uniform(0.7, 1, 60)
    row = subgroup_table(volumes, segmentation_measure({"grey": dice}, {"grey": 1 + dice}, NAMES))[0]
    assert row["metrics"]["dice"] == pytest.approx(dice[women].mean())


def test_a_table_is_json():
    rng = np.random.default_rng(1)
    measure = classification_measure(np.zeros(60, int), rng.dirichlet([1, 1], 60), "ab", NAMES)
    json.dumps(subgroup_table(cohort(), measure), allow_nan=False)
