"""Registered scans that lie apart from their cohort."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.data.images.linear.outliers import outliers


def cohort(count=40, seed=0):
    random = np.random.default_rng(seed)
    return [
        {
            "inner": 0.68 + random.normal(0, 0.04),
            "dice": 0.95 + random.normal(0, 0.004),
            "turn_degrees": abs(random.normal(0, 8)),
            "scale": 1 + random.normal(0, 0.04),
            "stretch": 1.08 + abs(random.normal(0, 0.03)),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_an_ordinary_cohort_has_none(seed):
    assert outliers(cohort(seed=seed)) == {}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("dice", 0.89, "overlap of the brains 0.89, most others 0.95"),
        ("inner", 0.45, "correlation in the brain 0.45"),
        ("scale", 0.76, "size against the average brain 0.76"),
        ("scale", 1.25, "size against the average brain 1.25"),
        ("turn_degrees", 44.0, "turn in degrees 44.00"),
    ],
)
def test_one_that_lies_apart_is_named_with_its_number(name, value, words):
    numbers = cohort()
    numbers[7][name] = value
    (found,) = outliers(numbers).items()
    assert found[0] == 7
    assert found[1].code == "outlier" and words in found[1].message


def test_better_than_the_others_is_not_odd():
    numbers = cohort()
    numbers[7] |= {"dice": 0.999, "inner": 0.99, "turn_degrees": 0.0, "stretch": 1.0}
    assert outliers(numbers) == {}


def test_scans_that_are_left_out_do_not_count_and_few_scans_say_nothing():
    numbers = [*cohort(19), None, None]
    numbers[3]["dice"] = 0.5
    assert outliers(numbers) == {}
    numbers.append(cohort(1, seed=5)[0])
    assert list(outliers(numbers)) == [3]
