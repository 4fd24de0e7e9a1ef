"""The linear model on tissue volumes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from trainer.data.shards.index import Volume
from trainer.data.splits.splits import Split
from trainer.report.baseline import tissue_baseline

CLASSES = ("NC", "AD")
LABELS = {row: row % 2 for row in range(80)}
SPLIT = Split(train=tuple(range(40)), validation=tuple(range(40, 50)), test=tuple(range(50, 80)))


def volumes(gap: float, seed: int = 0) -> list[Volume]:
    rng = np.random.default_rng(seed)
    return [
        Volume(
            subject=f"sub-{row}",
            source="",
            source_sha256="",
            affine=[],
            id=row,
            tissue={"grey": rng.normal(600 - gap * LABELS[row], 30), "white": rng.normal(480, 20)},
        )
        for row in range(80)
    ]


def test_it_finds_a_difference_that_is_there_and_none_where_there_is_none():
    there = tissue_baseline(volumes(100), SPLIT, LABELS, CLASSES)
    absent = tissue_baseline(volumes(0), SPLIT, LABELS, CLASSES)
    assert there["auc"] > 0.9
    assert absent["auc_interval"][0] < 0.5 < absent["auc_interval"][1]


def test_it_is_fitted_to_training_and_validation_and_judged_on_test_only():
    found = tissue_baseline(volumes(60), SPLIT, LABELS, CLASSES)
    assert (found["n"], found["n_fitted"]) == (30, 50)
    assert sorted(map(int, found["predictions"])) == list(SPLIT.test)
    # What the test subjects look like changes nothing in what is said of the others among them.
    changed = volumes(60)
    changed[79] = dataclasses.replace(changed[79], tissue={"grey": 9e3, "white": 1.0})
    again = tissue_baseline(changed, SPLIT, LABELS, CLASSES)
    assert again["predictions"]["50"] == found["predictions"]["50"]
    assert again["predictions"]["79"] != found["predictions"]["79"]
    # A validation subject does.
    changed[45] = dataclasses.replace(changed[45], tissue={"grey": 9e3, "white": 1.0})
    assert tissue_baseline(changed, SPLIT, LABELS, CLASSES)["predictions"]["50"] != found["predictions"]["50"]


def test_labels_may_come_as_an_array():
    array = np.array([LABELS[row] for row in range(80)])
    first = tissue_baseline(volumes(60), SPLIT, LABELS, CLASSES)
    assert tissue_baseline(volumes(60), SPLIT, array, CLASSES) == first


@pytest.mark.parametrize("missing", [None, {}])
def test_without_a_subjects_tissue_volumes_there_is_no_baseline(missing):
    some = volumes(60)
    some[3] = dataclasses.replace(some[3], tissue=missing)
    assert tissue_baseline(some, SPLIT, LABELS, CLASSES) is None


def test_without_test_subjects_or_with_one_class_there_is_no_baseline():
    assert tissue_baseline(volumes(60), dataclasses.replace(SPLIT, test=()), LABELS, CLASSES) is None
    one = dataclasses.replace(SPLIT, train=tuple(range(0, 40, 2)), validation=())
    assert tissue_baseline(volumes(60), one, LABELS, CLASSES) is None
