"""The table of benchmarks/recipes_against_baseline.py, which docs/explanation/recipes.md shows."""

from __future__ import annotations

import pytest


@pytest.fixture
def recipes(monkeypatch):
    monkeypatch.syspath_prepend("benchmarks")
    import recipes_against_baseline

    return recipes_against_baseline


def trial(recipes, recipe, seed, network, linear, *, cohort="240:2", seconds=10.0):
    return recipes.Trial(cohort, recipe, seed, network, linear, held_out=40, seconds=seconds)


def test_each_recipe_on_each_cohort_is_a_line_with_means_spreads_and_paired_differences(recipes):
    trials = [
        trial(recipes, "demo", 0, 0.80, 0.90),
        trial(recipes, "other", 0, 0.50, 0.90),
        trial(recipes, "demo", 1, 0.90, 0.94, seconds=20.0),
        trial(recipes, "demo", 0, 0.70, 0.60, cohort="60:1"),
    ]
    _, _, *lines = recipes.table(trials).splitlines()
    # Pairs of a seed are compared: -0.10 and -0.04, of standard deviation 0.0424, over the root of two.
    assert lines == [
        "| 240:2 | demo | 0.850 ± 0.071 (0.80–0.90) | 0.920 ± 0.028 | -0.070 ± 0.030 | 15 |",
        "| 240:2 | other | 0.500 (0.50–0.50) | 0.900 | -0.400 | 10 |",
        "| 60:1 | demo | 0.700 (0.70–0.70) | 0.600 | +0.100 | 10 |",
    ]


def test_every_line_has_the_columns_of_the_head(recipes):
    lines = recipes.table([trial(recipes, "demo", 0, 0.8, 0.9)]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
