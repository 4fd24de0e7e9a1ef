"""Shares of a map on the voxels that the disease changed, and the truth they are measured against."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from wording import fails_with

from trainer.data.images.linear import average_brain
from trainer.data.images.preprocess import Recipe, prepare
from trainer.data.phantom import bids, image, people, template
from trainer.data.phantom.cohort import make_cohort
from trainer.errors import InputError
from trainer.explain import regions
from trainer.explain.regions import PhantomTruth, RegionShares

SIZE = 24


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("phantoms") / "cohort"
    make_cohort(out, 2, SIZE, gap=3.0, seed=1, workers=1, groups=("AD", "NC"))
    return out


def test_a_map_that_is_the_same_everywhere_has_the_share_of_chance() -> None:
    brain = np.zeros((6, 6, 6), bool)
    brain[1:5, 1:5, 1:5] = True
    changed = np.zeros_like(brain)
    changed[1:3, 1:5, 1:5] = True
    truth = PhantomTruth(brain, changed)
    assert truth.chance == 0.5 == truth.share(np.ones(brain.shape))
    assert truth.share(np.where(changed, -2.0, 0.0)) == 1, "of either sign"
    assert truth.share(np.where(changed, 0.0, 1.0)) == 0
    assert truth.share(np.where(brain, 0.0, 1.0)) is None, "nothing in the brain"
    assert truth.share(np.where(changed, 3.0, 1.0)) == pytest.approx(0.75)


def test_pooled_figures_are_means_with_intervals_and_paired_differences() -> None:
    rng = np.random.default_rng(0)
    chance = rng.uniform(0.05, 0.2, 40)
    shares = [RegionShares(str(k), c + 0.1 + k * 1e-9, c, c) for k, c in enumerate(chance)] + [
        RegionShares("x", None, 0.1, 0.1)
    ]
    found = regions.pooled(shares)
    assert found["n"] == 40 and found["empty"] == 1
    assert found["trained"]["mean"] == pytest.approx(chance.mean() + 0.1)
    low, high = found["chance"]["interval"]
    error = chance.std() / np.sqrt(40)
    assert low == pytest.approx(chance.mean() - 1.96 * error, abs=0.3 * error)
    assert high == pytest.approx(chance.mean() + 1.96 * error, abs=0.3 * error)
    assert found["above_chance"]["interval"] == pytest.approx([0.1, 0.1]), (
        "paired: the spread of chance is gone"
    )
    assert regions.pooled([RegionShares("x", None, None, 0.1)]) == {"n": 0, "subjects": 0, "empty": 1}


def test_the_truth_lies_on_the_stored_volume_as_the_brain_does(cohort: Path) -> None:
    source = "sub-0001/anat/sub-0001_T1w.nii.gz"
    prepared = prepare(cohort / source, Recipe.of_size(20))
    truth = regions.truth(cohort, source, (20, 20, 20), prepared.affine)
    volume = prepared.array[..., 0]
    imaged = volume > volume.min() / 2  # half way from air to the mean of the brain, 0
    assert 2 * (truth.brain & imaged).sum() / (truth.brain.sum() + imaged.sum()) > 0.93
    made = image.make(template.build(SIZE), people.draw(1, 0, ("AD", "NC")), 1, 3.0)
    theirs = (made.moved > regions.CHANGED_MM)[made.tissue.sum(axis=0) > 128].mean()
    assert truth.chance == pytest.approx(theirs, rel=0.25) and 0.05 < truth.chance < 0.4
    shifted = prepared.affine.copy()
    shifted[0, 3] += 40
    moved = regions.truth(cohort, source, (20, 20, 20), shifted)
    assert (moved.brain & imaged).sum() < 0.8 * (truth.brain & imaged).sum()


def test_a_folder_that_knows_nothing_of_changes_is_refused(cohort: Path, tmp_path: Path) -> None:
    with fails_with(InputError):
        regions.check_cohort(tmp_path)
    description = (cohort / "dataset_description.json").read_text()
    (tmp_path / "dataset_description.json").write_text(description)
    with fails_with(InputError):
        regions.check_cohort(tmp_path)
    regions.check_cohort(cohort)
    for unknown in ("sub-0099/anat/sub-0099_T1w.nii.gz", "scan.nii.gz"):
        with fails_with(InputError):
            regions.truth(cohort, unknown, (20, 20, 20), np.eye(4))


def test_volumes_of_another_file_of_that_name_are_refused(cohort: Path) -> None:
    with fails_with(InputError):
        regions.check_image(cohort, "sub-0001/anat/sub-0001_T1w.nii.gz", "0" * 64)
    regions.check_image(cohort, "elsewhere/scan.nii.gz", "0" * 64)


def test_a_cohort_without_a_gap_changes_nothing_and_says_so(tmp_path: Path) -> None:
    make_cohort(tmp_path / "none", 1, 16, gap=0.0, workers=1, groups=("AD",))
    with fails_with(InputError):
        regions.truth(tmp_path / "none", "sub-0001_T1w.nii.gz", (16, 16, 16), average_brain.affine_of(16))
    assert (tmp_path / "none" / bids.displacement_file("sub-0001")).is_file()
