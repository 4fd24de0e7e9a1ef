"""The phantoms themselves: people, anatomy, disease and image, without any file."""

from __future__ import annotations

from dataclasses import replace

import nibabel
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from trainer.data.images.linear import average_brain
from trainer.data.phantom import disease, image, people, template
from trainer.data.phantom.disease import PATTERNS
from trainer.data.phantom.template import REGIONS, Template

SIZE = 32


@pytest.fixture(scope="module")
def average() -> Template:
    return template.build(SIZE)


@pytest.fixture(scope="module")
def finer() -> Template:
    """Fine enough for the severest atrophy to fold voxels if it were done in one step."""
    return template.build(64)


def millilitres(average: Template, phantom: image.Phantom) -> np.ndarray:
    return phantom.tissue.reshape(3, -1).sum(axis=1) / 255 * average.voxel**3 / 1000


def jacobian(where: np.ndarray) -> np.ndarray:
    columns = [
        np.diff(where, axis=1)[:, :, :-1, :-1],
        np.diff(where, axis=2)[:, :-1, :, :-1],
        np.diff(where, axis=3)[:, :-1, :-1, :],
    ]
    return np.linalg.det(np.moveaxis(np.stack(columns), (0, 1), (-1, -2)))


def test_the_average_brain_has_the_volumes_of_a_brain_and_lies_right_way_round(average: Template) -> None:
    assert nibabel.aff2axcodes(average.affine) == ("R", "A", "S")
    assert average.voxel == pytest.approx(212 / SIZE)
    litres = average.mask.sum() * average.voxel**3 / 1e6
    assert 1.8 < litres < 2.1

    # MNI coordinates: the middle of the pons is inside the skull, a point above the vertex is not.
    def at(*mm: float) -> float:
        i, j, k = np.round(np.linalg.solve(average.affine, [*mm, 1])[:3]).astype(int)
        return float(average.mask[i, j, k])

    assert at(0, -25, -35) > 0.9
    assert at(0, -25, 95) == 0


def test_the_grid_is_centred_alike_at_every_size() -> None:
    for size in (16, 33, 96):
        corners = average_brain.affine_of(size) @ np.array([[-0.5] * 3 + [1], [size - 0.5] * 3 + [1]]).T
        assert corners[:3].mean(axis=1) == pytest.approx(average_brain.CENTRE)
        assert np.ptp(corners[:3], axis=1) == pytest.approx([212] * 3)


def test_the_same_arguments_make_the_same_subject_and_others_another(average: Template) -> None:
    person = people.draw(3, 5)
    first = image.make(average, person, 3, 1.5)
    again = image.make(average, person, 3, 1.5)
    assert np.array_equal(first.t1, again.t1) and np.array_equal(first.tissue, again.tissue)
    assert not np.array_equal(first.t1, image.make(average, people.draw(3, 6), 3, 1.5).t1)
    assert not np.array_equal(first.t1, image.make(average, people.draw(4, 5), 4, 1.5).t1)


def test_no_two_subjects_and_no_two_purposes_share_random_numbers() -> None:
    seen = {
        tuple(people.stream(seed, number, purpose).integers(2**32, size=4))
        for seed in range(3)
        for number in range(20)
        for purpose in ("person", "disease", "anatomy", "image", "T2w")
    }
    assert len(seen) == 3 * 20 * 5


def test_without_a_gap_an_image_does_not_depend_on_the_diagnosis(average: Template) -> None:
    person = replace(people.draw(0, 0), diagnosis="NC")
    patient = replace(person, diagnosis="AD")
    assert np.array_equal(image.make(average, person, 0, 0.0).t1, image.make(average, patient, 0, 0.0).t1)
    assert not np.array_equal(image.make(average, person, 0, 1.5).t1, image.make(average, patient, 0, 1.5).t1)


def test_what_the_disease_moved_is_where_the_image_is_another_than_it_would_have_been(
    average: Template,
) -> None:
    patient = replace(people.draw(1, 2), diagnosis="AD")
    ill, well = (
        image.make(average, patient, 1, 1.5),
        image.make(average, replace(patient, diagnosis="NC"), 1, 1.5),
    )
    brain = ill.tissue.sum(axis=0) > 128
    other = np.abs(ill.tissue.astype(int) - well.tissue).sum(axis=0) > 25
    assert ill.moved.shape == (SIZE,) * 3 and ill.moved.dtype == np.float32
    assert 0.03 < (ill.moved > 0.5)[brain].mean() < 0.35
    assert ill.moved[brain & other].mean() > 3 * ill.moved[brain & ~other].mean()
    assert np.all(ill.moved[~brain & (ill.t1 == 0)] == 0)


def test_a_patients_displacement_grows_with_the_stage_and_is_nothing_without_a_gap(average: Template) -> None:
    for diagnosis in people.DIAGNOSES:
        person = replace(people.draw(1, 2), diagnosis=diagnosis)
        assert np.all(image.make(average, person, 1, 0.0).moved == 0)
    mild, severe = (
        image.make(average, replace(people.draw(1, 2), diagnosis=group), 1, 1.5).moved
        for group in ("sMCI", "AD")
    )
    assert severe.max() > 2 * mild.max()
    healthy = replace(people.draw(1, 2), diagnosis="NC")
    would = disease.displacement(average, disease.truth(healthy, 1, 1.5, stage=1.0).recession)
    has = disease.displacement(average, disease.truth(healthy, 1, 1.5).recession)
    most = np.sqrt(((would - has) ** 2).sum(axis=0)).max() * average.voxel
    assert 0.7 * most < image.make(average, healthy, 1, 1.5).moved.max() <= most * 1.0001


def test_a_t2_image_shows_the_same_anatomy_with_its_contrast_turned_round(average: Template) -> None:
    person = people.draw(0, 1)
    plain, both = image.make(average, person, 0, 1.5), image.make(average, person, 0, 1.5, ("T1w", "T2w"))
    assert plain.t2 is None and both.t2 is not None and both.t2.dtype == np.int16
    assert np.array_equal(plain.t1, both.t1) and np.array_equal(plain.tissue, both.tissue)
    grey, white, csf = (both.tissue[k] > 200 for k in range(3))
    t1 = [both.t1[where].mean() for where in (csf, grey, white)]
    t2 = [both.t2[where].mean() for where in (white, grey, csf)]
    assert t1 == sorted(t1) and t2 == sorted(t2)
    assert t2[2] > 1.5 * t2[0]


def test_disease_and_age_each_turn_grey_matter_into_csf_inside_the_same_skull(average: Template) -> None:
    healthy = replace(people.draw(1, 2), diagnosis="NC", age=65.0)
    before = millilitres(average, image.make(average, healthy, 1, 1.5))
    for worse in (replace(healthy, diagnosis="AD"), replace(healthy, age=85.0)):
        after = millilitres(average, image.make(average, worse, 1, 1.5))
        assert after[0] < before[0] and after[1] < before[1]
        assert after[2] > before[2] + 5
        assert after.sum() == pytest.approx(before.sum(), rel=2e-3)


def test_tissue_shares_fill_the_imaged_voxels_and_no_others(average: Template) -> None:
    phantom = image.make(average, people.draw(0, 1), 0, 1.5)
    total = phantom.tissue.astype(int).sum(axis=0)
    assert total.max() <= 256  # three roundings
    assert np.all(phantom.t1[total == 0] == 0)
    assert np.all(phantom.t1 >= 0)
    assert phantom.t1[phantom.tissue[1] > 240].mean() > 1.5 * phantom.t1[phantom.tissue[2] > 200].mean()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("direction", [1, -1])
def test_the_severest_atrophy_or_growth_folds_nothing(finer: Template, direction: int, pattern: str) -> None:
    most = tuple(direction * float(mm) for mm in PATTERNS[pattern].most)
    grid = np.stack(np.meshgrid(*[np.arange(finer.size, dtype=np.float32)] * 3, indexing="ij"))
    moved = grid + disease.displacement(finer, most)
    assert np.abs(moved - grid).max() * finer.voxel > 3
    assert jacobian(moved).min() > 0


def test_anatomy_folds_nothing_and_differs_between_people(average: Template) -> None:
    seen = []
    for number in range(8):
        person = people.draw(0, number)
        where = image.coordinates(average, person, people.stream(0, number, "anatomy"))
        assert jacobian(where).min() > 0.2
        seen.append(where)
    spread = np.std(seen, axis=0).mean() * average.voxel
    assert 2 < spread < 8  # mm


def test_groups_are_ordered_by_severity_and_overlap() -> None:
    lost = {group: [] for group in people.DIAGNOSES}
    for number in range(400):
        person = people.draw(0, number)
        lost[person.diagnosis].append(
            disease.truth(person, 0, 1.5).recession[REGIONS.index("medial_temporal")]
        )
    means = [np.mean(lost[group]) for group in ("NC", "sMCI", "pMCI", "AD")]
    assert means == sorted(means)
    assert max(lost["NC"]) > min(lost["AD"])
    assert max(lost["sMCI"]) > np.mean(lost["pMCI"])


def test_regional_disease_takes_more_of_the_hippocampal_region_than_of_the_brain(average: Template) -> None:
    """And age takes both, more of the brain for each year than birth and gap leave to chance."""
    inner = (average.regions[REGIONS.index("medial_temporal")] > 0.5).astype(np.float32)
    grid = np.stack(np.meshgrid(*[np.arange(SIZE, dtype=np.float32)] * 3, indexing="ij"))

    def lost(pattern: str, part: str, times: float) -> tuple[float, float]:
        """Share of the hippocampal region's and of all tissue that a part of the pattern takes."""
        mm = tuple(float(v) for v in times * getattr(PATTERNS[pattern], part))
        left = []
        for recession in (tuple(0.0 for _ in mm), mm):
            moved = disease.displacement(average, recession)
            _, there, shares = image.look_up(average, grid, moved)
            tissue = shares[0] + shares[1]
            left.append((float((tissue * image._sampled(inner, there)).sum()), float(tissue.sum())))
        return tuple(1 - after / before for before, after in zip(*left, strict=True))  # type: ignore[return-value]

    region, brain = lost("regional", "disease", 1.0)
    assert region > 3 * brain > 0.02
    diffuse_region, _ = lost("diffuse", "disease", 1.0)
    assert region > 2 * diffuse_region
    aged_region, aged_brain = lost("regional", "per_decade", 1.0)
    assert aged_brain > 5 * lost("diffuse", "per_decade", 1.0)[1] / 2 > 0
    assert aged_region < 3 * aged_brain


def test_diagnoses_rotate_and_ages_do_not_differ_between_groups() -> None:
    drawn = [people.draw(7, number) for number in range(800)]
    ages = {group: [p.age for p in drawn if p.diagnosis == group] for group in people.DIAGNOSES}
    assert {len(of_group) for of_group in ages.values()} == {200}
    means = [np.mean(of_group) for of_group in ages.values()]
    assert max(means) - min(means) < 2
    assert min(map(min, ages.values())) >= 55 and max(map(max, ages.values())) <= 90
    assert 0.4 < np.mean([p.sex == "F" for p in drawn]) < 0.6
    assert {p.site for p in drawn} == set(people.SITES)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_disease_region_is_where_disease_moves_tissue(average: Template, pattern: str) -> None:
    region = disease.region_of_disease(average, pattern)
    assert region.shape == (SIZE,) * 3 and region.min() >= 0 and region.max() == 1
    moved = np.abs(disease.displacement(average, tuple(PATTERNS[pattern].disease))).max(axis=0)
    assert np.corrcoef(region.ravel(), moved.ravel())[0, 1] > 0.8
    assert 0.01 < (region > 0.2).mean() < 0.3


@pytest.mark.parametrize(("gap", "least", "most"), [(1.5, 0.75, 0.98), (0.0, 0.3, 0.7)])
def test_tissue_volumes_tell_groups_apart_only_where_there_is_a_gap(
    gap: float, least: float, most: float
) -> None:
    coarse = template.build(20)
    drawn = [people.draw(1, number, ("AD", "NC")) for number in range(60)]
    volumes = np.stack([millilitres(coarse, image.make(coarse, person, 1, gap)) for person in drawn])
    is_ad = np.array([person.diagnosis == "AD" for person in drawn])
    model = make_pipeline(StandardScaler(), LogisticRegression())
    guess = cross_val_predict(model, volumes, is_ad, cv=5, method="predict_proba")[:, 1]
    assert least < roc_auc_score(is_ad, guess) < most
