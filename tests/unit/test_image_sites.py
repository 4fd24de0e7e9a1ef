"""Sites: whether they tell the label, folds that are sites, and whether figures differ between them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from shard_sets import meta_of
from sklearn.metrics import roc_auc_score
from test_crossval_figures import held_out
from wording import fails_with

from trainer.config import SplitConfig
from trainer.crossval import by_site, tables
from trainer.data.phantom import people
from trainer.data.shards.index import Volume
from trainer.data.sources import site_labels
from trainer.data.sources.listing import SourceImage
from trainer.data.splits import splits
from trainer.errors import CohortError


def images(seed: int, sites: str, count: int = 120) -> list[SourceImage]:
    """Two scans of each of `count` phantoms."""
    persons = [people.draw(seed, number, ("AD", "NC"), sites) for number in range(count)]
    return [
        SourceImage(Path(p.name), p.name, p.name, session, p.diagnosis, p.age, p.sex, p.site)
        for p in persons
        for session in ("1", "2")
    ]


def test_a_cohort_whose_site_gives_the_label_away_is_caught_and_a_fair_one_is_not():
    telling = [site_labels.told_by_site(images(seed, "telling"), "diagnosis") for seed in range(20)]
    fair = [site_labels.told_by_site(images(seed, "fair"), "diagnosis") for seed in range(20)]
    assert all(len(findings) == 1 and findings[0].code == "site-label" for findings in telling)
    assert sum(map(bool, fair)) <= 1


def test_the_area_is_that_of_the_shares_of_a_label_at_sites():
    rng = np.random.default_rng(0)
    site, label = rng.integers(0, 4, 60), rng.integers(0, 2, 60)
    label[site == 2] = 1
    shares = [label[site == own].mean() for own in site]
    counts = np.zeros((1, 4, 2), np.int64)
    np.add.at(counts[0], (site, label), 1)
    assert site_labels.area_of_site(counts)[0] == pytest.approx(roc_auc_score(label, shares))


def test_sites_of_a_few_tell_their_own_by_chance_and_nothing_is_said():
    some = [
        SourceImage(Path(f"{k}"), f"{k}", f"{k}", None, "AB"[k % 2], site=f"{(k * 7 + k // 3) % 25}")
        for k in range(50)
    ]
    assert site_labels.told_by_site(some, "x") == []


def test_two_sites_alike_tell_nothing_and_two_halves_tell_what_they_differ_by():
    assert site_labels.area_of_site(np.array([[[30, 30], [30, 30]]]))[0] == 0.5
    assert site_labels.area_of_site(np.array([[[42, 18], [18, 42]]]))[0] == pytest.approx(0.7)


def test_few_sites_or_labels_are_passed_over():
    some = images(0, "telling")
    for change in ({"site": None}, {"site": "north"}, {"label": "AD"}):
        assert site_labels.told_by_site([dataclasses.replace(i, **change) for i in some], "x") == []
    by_site = [dataclasses.replace(i, label=i.site) for i in some]
    assert site_labels.told_by_site(by_site, "site") == []
    assert site_labels.told_by_site(by_site, "scan") != []
    ages = [dataclasses.replace(i, label=f"{i.age}") for i in some]
    assert site_labels.told_by_site(ages, "age") == []


def volumes(seed: int = 0, count: int = 60) -> list[Volume]:
    facts = dataclasses.asdict(meta_of(0))
    some = [people.draw(seed, number, ("AD", "NC")) for number in range(count)]
    sites = [None if number % 15 == 0 else person.site for number, person in enumerate(some)]
    return [
        Volume(**facts | {"subject": p.name, "label": p.diagnosis, "site": site, "session": visit})
        for p, site in zip(some, sites, strict=True)
        for visit in ("1", "2")
    ]


def test_each_fold_by_site_holds_one_site_out():
    cohort = volumes()
    names = splits.sites(cohort, ("AD", "NC"))
    assert names == ["north", "south", "west", None]
    seen: list[int] = []
    for fold, name in enumerate(names):
        split = splits.split(cohort, ("AD", "NC"), SplitConfig(folds=4, fold=fold, by="site"))
        assert {cohort[row].site for row in split.test} == {name}
        assert name not in {cohort[row].site for row in (*split.train, *split.validation)}
        assert split.validation and {cohort[row].label for row in split.train} == {"AD", "NC"}
        seen += split.test
    assert sorted(seen) == list(range(len(cohort)))


def test_a_site_with_one_class_may_be_held_out():
    cohort = [dataclasses.replace(v, site="west") if v.label == "AD" else v for v in volumes()]
    cohort = [dataclasses.replace(v, site="south") if v.site is None else v for v in cohort]
    names = splits.sites(cohort, ("AD", "NC"))
    split = splits.split(cohort, ("AD", "NC"), SplitConfig(folds=3, fold=names.index("north"), by="site"))
    assert {cohort[row].label for row in split.test} == {"NC"}


def test_validation_takes_its_share_of_what_is_left():
    cohort = [
        dataclasses.replace(v, site="north") if int(v.subject[-2:]) > 10 else v for v in volumes(count=100)
    ]
    names = splits.sites(cohort, ("AD", "NC"))
    config = SplitConfig(folds=len(names), fold=names.index("north"), by="site", validation=0.2)
    split = splits.split(cohort, ("AD", "NC"), config)
    assert len(split.validation) < 0.4 * len(split.train)


def test_other_folds_than_sites_and_one_site_are_refused():
    with fails_with(CohortError):
        splits.split(volumes(), ("AD", "NC"), SplitConfig(folds=3, by="site"))
    alone = [dataclasses.replace(v, site="north") for v in volumes()]
    with fails_with(CohortError):
        splits.split(alone, ("AD", "NC"), SplitConfig(folds=2, by="site"))
    with pytest.raises(ValueError, match="needs folds"):
        SplitConfig(by="site")


def scans(seed: int, worse: float):
    """200 held-out scans of 100 subjects of two sites; at the second, so many more are wrong."""
    rng = np.random.default_rng(seed)
    site = np.arange(100) % 2
    true = (np.arange(100) // 2) % 2
    right = rng.random(100) < np.where(site == 1, 0.85 - worse, 0.85)
    likely = np.where(right == (true == 1), 0.8, 0.2)
    values = np.repeat(np.stack([1 - likely, likely], axis=-1), 2, axis=0)[None]
    names = np.repeat([f"sub-{k}" for k in range(100)], 2)
    found = held_out("classification", np.repeat(true, 2), values, subjects=names)
    return found, [f"site {s}" for s in np.repeat(site, 2)]


def test_sites_that_differ_are_told_from_those_that_do_not():
    different = [by_site.differ(*scans(seed, 0.6))["p"] for seed in range(20)]
    alike = [by_site.differ(*scans(seed, 0.0))["p"] for seed in range(40)]
    assert max(different) < 0.01
    assert sum(p < 0.05 for p in alike) <= 6  # 2 are expected; 7 or more are drawn once in 200
    few = scans(0, 0.0)[0]
    assert by_site.differ(few, ["a"] * 192 + ["b"] * 8)["p"] is None


def test_figures_of_a_site_are_those_of_its_scans():
    found, sites = scans(3, 0.3)
    parts = by_site.parts([*sites[:-2], None, None])
    assert list(parts) == ["site 0", "site 1", "unknown"]
    for places in parts.values():
        accuracy = tables.pooled(by_site.at(found, places))["accuracy"]["value"]
        assert accuracy == pytest.approx(
            np.mean(found.values[0][places].argmax(axis=1) == found.true[places])
        )
