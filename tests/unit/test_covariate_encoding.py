"""Age and sex become numbers that the training split alone decides."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from wording import fails_with

from trainer.data.loading.covariates import Covariates
from trainer.errors import CohortError


def subjects(*given):
    return [SimpleNamespace(age=age, sex=sex) for age, sex in given]


KNOWN = Covariates.fit(("age", "sex"), subjects((60.0, "F"), (70.0, "M"), (80.0, "M"), (None, "M")))


def test_numbers_have_mean_0_and_deviation_1_over_the_training_split():
    encoded = KNOWN.of(subjects((60.0, "F"), (70.0, "M"), (80.0, "M")))
    assert encoded.dtype == np.float32 and encoded.shape == (3, 2)
    assert encoded[:, 0].mean() == pytest.approx(0) and encoded[:, 0].std() == pytest.approx(1)
    assert encoded[1, 1] == encoded[2, 1] > 0 > encoded[0, 1]


def test_what_is_unknown_is_the_mean():
    for nothing in (None, "", "n/a", "NaN"):
        assert KNOWN.encode([{"age": nothing, "sex": None}]).tolist() == [[0.0, 0.0]]
    assert KNOWN.encode([{}]).tolist() == [[0.0, 0.0]]


def test_texts_of_a_table_are_read_as_numbers():
    assert KNOWN.encode([{"age": "70", "sex": "F"}])[0, 0] == 0.0
    with fails_with(CohortError):
        KNOWN.encode([{"age": "old"}])


def test_an_unknown_word_is_named_with_those_that_are_known():
    with fails_with(CohortError):
        KNOWN.encode([{"sex": "X"}])


def test_a_word_with_three_levels_makes_two_columns():
    three = Covariates.fit(("sex",), subjects((1.0, "F"), (1.0, "M"), (1.0, "O")))
    assert [column.level for column in three.columns] == ["M", "O"]


def test_it_survives_json():
    assert Covariates.from_json(json.loads(json.dumps(KNOWN.to_json()))) == KNOWN


@pytest.mark.parametrize(("age", "problem"), [(60.0, r"the same \(60.0\)"), (None, "missing")])
def test_a_covariate_that_tells_nothing_is_refused(age, problem):
    with pytest.raises(CohortError, match=f"'age' is {problem} in all training volumes"):
        Covariates.fit(("age",), subjects((age, "F"), (age, "M")))
