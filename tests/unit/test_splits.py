"""Splits are by subject, stratified, and never share a subject."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from shard_sets import meta_of

from trainer.config import SplitConfig
from trainer.data.index import Volume
from trainer.data.splits import Split, check_disjoint, split
from trainer.errors import CohortError

LABELS = ("AD", "NC")


def volume(subject: str, label: str | None, session: str | None = None) -> Volume:
    known = dataclasses.asdict(meta_of(0)) | {"subject": subject, "label": label, "session": session}
    return Volume(**known)


def cohort(ad: int, nc: int, visits: int = 1) -> list[Volume]:
    people = [(f"ad-{i}", "AD") for i in range(ad)] + [(f"nc-{i}", "NC") for i in range(nc)]
    return [volume(subject, label, f"ses-{v}") for subject, label in people for v in range(visits)]


def subjects(volumes, rows) -> set[str]:
    return {volumes[row].subject for row in rows}


@settings(deadline=None)
@given(
    ad=some.integers(3, 40),
    nc=some.integers(3, 40),
    visits=some.integers(1, 3),
    validation=some.floats(0.01, 0.45),
    test=some.floats(0.01, 0.45),
    seed=some.integers(0, 10**6),
)
def test_no_subject_is_in_two_splits_and_none_is_lost(ad, nc, visits, validation, test, seed):
    volumes = cohort(ad, nc, visits)
    result = split(volumes, LABELS, SplitConfig(validation=validation, test=test, seed=seed))
    parts = [subjects(volumes, rows) for rows in (result.train, result.validation, result.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == ad + nc
    assert sorted(result.train + result.validation + result.test) == list(range(len(volumes)))
    for rows in (result.train, result.validation, result.test):
        assert {volumes[row].label for row in rows} == set(LABELS)


@settings(deadline=None)
@given(folds=some.integers(2, 6), ad=some.integers(6, 25), nc=some.integers(6, 25), seed=some.integers(0, 99))
def test_every_subject_is_tested_in_exactly_one_fold_and_folds_are_even(folds, ad, nc, seed):
    volumes = cohort(ad, nc)
    tests = []
    for fold in range(folds):
        result = split(volumes, LABELS, SplitConfig(validation=0.1, folds=folds, fold=fold, seed=seed))
        tests.append(subjects(volumes, result.test))
    assert sum(map(len, tests)) == len(set.union(*tests)) == ad + nc
    assert max(map(len, tests)) - min(map(len, tests)) <= 1


def test_shares_hold_in_every_class():
    volumes = cohort(100, 40)
    result = split(volumes, LABELS, SplitConfig(validation=0.15, test=0.2))
    counts = {
        (name, label): sum(volumes[row].label == label for row in getattr(result, name))
        for name in ("train", "validation", "test")
        for label in LABELS
    }
    assert counts == {
        ("train", "AD"): 65, ("validation", "AD"): 15, ("test", "AD"): 20,
        ("train", "NC"): 26, ("validation", "NC"): 6, ("test", "NC"): 8,
    }  # fmt: skip


def test_the_order_of_the_volumes_does_not_matter():
    volumes = cohort(20, 20, visits=2)
    shuffled = random.Random(1).sample(volumes, len(volumes))
    config = SplitConfig()
    there, here = split(volumes, LABELS, config), split(shuffled, LABELS, config)
    assert shuffled != volumes
    assert subjects(volumes, there.test) == subjects(shuffled, here.test)
    assert subjects(volumes, there.train) == subjects(shuffled, here.train)


def test_another_seed_gives_another_split():
    volumes = cohort(30, 30)
    one, other = split(volumes, LABELS, SplitConfig(seed=0)), split(volumes, LABELS, SplitConfig(seed=1))
    assert one.test != other.test
    assert one.validation != other.validation


def test_a_class_of_three_subjects_has_one_in_every_split_whatever_the_shares():
    volumes = cohort(3, 3)
    for validation, test in ((0.49, 0.5), (0.5, 0.49), (0.9, 0.01), (0.01, 0.9)):
        result = split(volumes, LABELS, SplitConfig(validation=validation, test=test))
        assert [len(rows) for rows in (result.train, result.validation, result.test)] == [2, 2, 2]


def test_a_subject_whose_label_changed_stays_together():
    volumes = [*cohort(10, 10), volume("ad-0", "NC", "ses-9"), volume("ad-0", "NC", "ses-10")]
    result = split(volumes, LABELS, SplitConfig())
    homes = [n for n in ("train", "validation", "test") if "ad-0" in subjects(volumes, getattr(result, n))]
    assert len(homes) == 1


def test_volumes_of_other_labels_are_left_out():
    volumes = [*cohort(10, 10), volume("x", "MCI"), volume("y", None)]
    result = split(volumes, LABELS, SplitConfig())
    assert not {20, 21} & {*result.train, *result.validation, *result.test}


def test_a_share_of_zero_gives_an_empty_split():
    result = split(cohort(5, 5), LABELS, SplitConfig(validation=0, test=0))
    assert (len(result.train), result.validation, result.test) == (10, (), ())


def test_a_subject_in_two_splits_is_named():
    volumes = cohort(3, 3, visits=2)
    with pytest.raises(CohortError, match=r"'ad-0' is in two splits, train and test"):
        check_disjoint(Split(train=(0, 2), validation=(4,), test=(1,)), volumes)


@pytest.mark.parametrize(
    ("volumes", "labels", "config", "message"),
    [
        (cohort(5, 0), LABELS, {}, r"no volume has the label 'NC'"),
        (cohort(5, 5), ("AD", "nc"), {}, r"'nc'"),
        (cohort(5, 5), ("AD", "NCC"), {}, r"Did you mean 'NC'"),
        (cohort(5, 5), ("AD",), {}, r"at least two different"),
        (cohort(5, 5), ("AD", "AD"), {}, r"at least two different"),
        (cohort(5, 2), LABELS, {}, r"'NC' has 2 subjects, too few for 3 splits"),
        (cohort(9, 4), LABELS, {"folds": 5}, r"'NC' has 4 subjects, too few for 5 folds"),
        ([volume("a", None)], LABELS, {}, r"no volume of the shard set has a label"),
    ],
)
def test_a_cohort_that_cannot_be_split_is_refused_with_a_reason(volumes, labels, config, message):
    with pytest.raises(CohortError, match=message) as error:
        split(volumes, labels, SplitConfig(**config))
    assert error.value.cure


def test_a_class_that_ends_up_missing_from_a_split_is_named():
    # Each AD subject has more NC scans, so all count as NC and no stratum is left for AD.
    volumes = [*cohort(0, 9), volume("z", "AD"), volume("z", "NC", "2"), volume("z", "NC", "3")]
    with pytest.raises(CohortError, match="'AD' has 0 subjects"):
        split(volumes, LABELS, SplitConfig())
