"""Splits are by subject, stratified, and never share a subject."""

from __future__ import annotations

import collections
import dataclasses
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from shard_sets import meta_of
from wording import fails_with

from trainer.config import SplitConfig
from trainer.data.shards.index import Volume
from trainer.data.splits.splits import Split, check_disjoint, split
from trainer.errors import CohortError

LABELS = ("AD", "NC")


def volume(subject: str, label: str | None, session: str | None = None) -> Volume:
    known = dataclasses.asdict(meta_of(0)) | {"subject": subject, "label": label, "session": session}
    return Volume(**known)


def cohort(ad: int, nc: int, visits: int = 1) -> list[Volume]:
    people = [(f"ad-{i}", "AD") for i in range(ad)] + [(f"nc-{i}", "NC") for i in range(nc)]
    return [volume(subject, label, f"ses-{v}") for subject, label in people for v in range(visits)]


def mixed_cohort(people: int, sites: int, seed: int, missing: float = 0.1) -> list[Volume]:
    """One to three scans of each subject, of all sites, sexes and ages, some of them unknown."""
    rng = random.Random(seed)
    volumes = []
    for number in range(people):
        site = None if rng.random() < missing else f"site-{int(rng.expovariate(3 / sites)) % sites}"
        sex = None if rng.random() < missing else rng.choice("FM")
        age = None if rng.random() < missing else rng.uniform(50, 90)
        first = volume(f"sub-{number}", LABELS[number % 2])
        for visit in range(rng.randint(1, 3)):
            later = age and age + visit
            volumes.append(dataclasses.replace(first, session=f"{visit}", site=site, sex=sex, age=later))
    return volumes


def subjects(volumes, rows) -> set[str]:
    return {volumes[row].subject for row in rows}


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


@given(folds=some.integers(2, 6), ad=some.integers(6, 25), nc=some.integers(6, 25), seed=some.integers(0, 99))
def test_every_subject_is_tested_in_exactly_one_fold_and_folds_are_even(folds, ad, nc, seed):
    volumes = cohort(ad, nc)
    tests = []
    for fold in range(folds):
        result = split(volumes, LABELS, SplitConfig(validation=0.1, folds=folds, fold=fold, seed=seed))
        tests.append(subjects(volumes, result.test))
    assert sum(map(len, tests)) == len(set.union(*tests)) == ad + nc
    assert max(map(len, tests)) - min(map(len, tests)) <= 1


@settings(max_examples=50)
@given(
    people=some.integers(10, 80),
    sites=some.integers(1, 12),
    folds=some.none() | some.integers(2, 5),
    stratify=some.sets(some.sampled_from(["label", "site", "sex", "age"])).map(tuple),
    task=some.sampled_from(["classification", "regression", "segmentation"]),
    seed=some.integers(0, 999),
)
def test_whatever_is_balanced_each_subject_has_one_place_and_the_order_does_not_matter(
    people, sites, folds, stratify, task, seed
):
    volumes = mixed_cohort(people, sites, seed)
    shuffled = random.Random(seed).sample(volumes, len(volumes))
    classes = LABELS if task == "classification" else None
    config = SplitConfig(folds=folds, seed=seed, stratify=stratify)
    found = []
    for those in (volumes, shuffled):
        ages = [v.age for v in those] if task == "regression" else None
        result = split(those, classes, config, targets=ages)
        found.append([subjects(those, rows) for rows in (result.train, result.validation, result.test)])
    assert found[0] == found[1]
    there = {v.subject for v in volumes if task != "regression" or v.age is not None}
    assert sum(map(len, found[0])) == len(set.union(*found[0])) == len(there)
    assert set.union(*found[0]) == there


@settings(max_examples=50)
@given(
    people=some.integers(20, 90),
    sites=some.integers(1, 12),
    folds=some.integers(2, 5),
    seed=some.integers(0, 999),
)
def test_the_label_comes_first_whatever_else_is_balanced(people, sites, folds, seed):
    volumes = mixed_cohort(people, sites, seed)
    tests = [
        split(volumes, LABELS, SplitConfig(folds=folds, fold=fold, seed=seed)).test for fold in range(folds)
    ]
    for label in LABELS:
        counts = [len({volumes[r].subject for r in rows if volumes[r].label == label}) for rows in tests]
        assert max(counts) - min(counts) <= 1
    sizes = [len(subjects(volumes, rows)) for rows in tests]
    assert max(sizes) - min(sizes) <= 1


def test_sites_sexes_and_ages_are_spread_over_the_folds_far_better_than_by_label_alone():
    volumes = mixed_cohort(150, 8, seed=3)
    first = {v.subject: v for v in reversed(volumes)}
    traits = {
        "site": lambda v: v.site,
        "sex": lambda v: v.sex,
        "old": lambda v: v.age is not None and v.age > 70,
    }

    def spread(stratify, seed) -> dict[str, int]:
        """Largest difference between two folds in how many of one label have one trait."""
        parts = [
            subjects(
                volumes,
                split(volumes, LABELS, SplitConfig(folds=5, fold=k, seed=seed, stratify=stratify)).test,
            )
            for k in range(5)
        ]
        worst = {}
        for name, trait in traits.items():
            levels = {(v.label, trait(v)) for v in first.values()}
            counts = {
                level: [sum((first[s].label, trait(first[s])) == level for s in part) for part in parts]
                for level in levels
            }
            worst[name] = max(max(c) - min(c) for c in counts.values())
        return worst

    for seed in range(3):
        everything = spread(("label", "site", "sex", "age"), seed)
        assert max(everything.values()) <= 2, everything  # 1 is the best that whole subjects allow
        assert max(spread(("label",), seed).values()) >= 5  # what chance alone does here


def test_the_splits_of_a_hold_out_are_alike_too():
    volumes = [
        dataclasses.replace(
            volume(f"s{i}", LABELS[i % 2]), site="ab"[i // 2 % 2], sex="FM"[i // 4 % 2], age=60.0
        )
        for i in range(80)
    ]
    for seed in range(5):
        result = split(volumes, LABELS, SplitConfig(validation=0.2, test=0.2, seed=seed))
        for rows in (result.validation, result.test):
            kinds = collections.Counter((volumes[r].label, volumes[r].site) for r in rows)
            assert set(kinds.values()) == {4}, kinds
            assert set(collections.Counter((volumes[r].label, volumes[r].sex) for r in rows).values()) == {4}


def test_what_is_not_asked_for_is_not_balanced():
    volumes = mixed_cohort(60, 4, seed=1, missing=0)
    names = {}
    for stratify in (("label",), ("label", "site"), ("label", "site", "sex", "age")):
        names[stratify] = subjects(volumes, split(volumes, LABELS, SplitConfig(stratify=stratify)).test)
    assert len({frozenset(those) for those in names.values()}) == 3


def test_a_regression_takes_all_that_have_a_target_and_spreads_it_over_the_splits():
    volumes = [dataclasses.replace(volume(f"s{i}", None), age=float(i)) for i in range(100)]
    targets = [None if i == 7 else math.nan if i == 8 else float(i) for i in range(100)]
    config = SplitConfig(validation=0.2, test=0.2, stratify=("label",))
    result = split(volumes, None, config, targets=targets)
    assert {*range(100)} - {*result.train, *result.validation, *result.test} == {7, 8}
    for rows in (result.validation, result.test):
        assert len(rows) == 20
        tenths = collections.Counter(row // 10 for row in rows)
        assert set(tenths) == set(range(10)), tenths  # two of each tenth, but for rounding at its edges
    assert split(volumes, None, config, targets=np.array(targets, float)) == result


def test_a_segmentation_takes_all_volumes_and_spreads_their_labels():
    volumes = [*cohort(20, 20), volume("x", None)]
    result = split(volumes, None, SplitConfig(validation=0.2, test=0.2))
    assert len(result.train) + len(result.validation) + len(result.test) == 41
    assert collections.Counter(volumes[row].label for row in result.test)["AD"] == 4


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
    with fails_with(CohortError):
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


@pytest.mark.parametrize(
    ("volumes", "targets", "config", "message"),
    [
        ([], None, {}, r"there are no volumes"),
        (cohort(5, 5), [None] * 10, {}, r"none of 10 volumes has a target"),
        (cohort(5, 5), [1.0, 2.0] + [math.nan] * 8, {}, r"there are 2 subjects, too few for 3 splits"),
        (cohort(2, 2), None, {"folds": 5}, r"there are 4 subjects, too few for 5 folds"),
    ],
)
def test_a_cohort_without_classes_that_cannot_be_split_is_refused(volumes, targets, config, message):
    with pytest.raises(CohortError, match=message) as error:
        split(volumes, None, SplitConfig(**config), targets=targets)
    assert error.value.cure


def test_a_class_that_ends_up_missing_from_a_split_is_named():
    # Each AD subject has more NC scans, so all count as NC and no stratum is left for AD.
    volumes = [*cohort(0, 9), volume("z", "AD"), volume("z", "NC", "2"), volume("z", "NC", "3")]
    with fails_with(CohortError):
        split(volumes, LABELS, SplitConfig())
