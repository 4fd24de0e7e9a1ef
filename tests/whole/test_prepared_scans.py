"""Raw scans prepared: bias field, registration to the average brain, its brain, in import and prediction
alike."""

from __future__ import annotations

import csv
import functools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import nibabel
import numpy as np
import pytest
from scipy import ndimage
from wording import fails_with

from trainer.data.images import label_maps, preprocess, quality, reading, resampling
from trainer.data.images.findings import ImageFault
from trainer.data.images.linear import average_brain, bias_field, brain, pose_search, registering
from trainer.data.images.recipe import MapRecipe, Recipe
from trainer.data.importing.import_request import ImportRequest
from trainer.data.importing.importing import run
from trainer.data.phantom import archives, bids
from trainer.data.phantom.cohort import make_cohort
from trainer.data.phantom.people import DIAGNOSES, draw
from trainer.data.shards import index_reading
from trainer.data.shards.index_reading import read_index
from trainer.data.shards.shards import ShardSet
from trainer.errors import ConfigError
from trainer.inference.space import VoxelGrid, labels_on

pytestmark = pytest.mark.slow

LINEAR = Recipe(size=48, spacing=4.0, dtype="float32", prepare="linear", brain="head")
PEOPLE = [draw(3, number, DIAGNOSES) for number in range(4)]


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    """Four phantoms of 2.7 mm and what a scanner would give of them."""
    folder = tmp_path_factory.mktemp("phantoms")
    make_cohort(folder, 4, size=80, seed=3, workers=1)
    archives.WRITERS["raw"](folder, PEOPLE, ("T1w",))
    return folder


@pytest.fixture(scope="module")
def raw(cohort):
    return cohort / "sourcedata" / "raw"


def scan_of(folder, number):
    return folder / bids.subject_files(PEOPLE[number])["T1w"]


def image(path):
    return quality.to_canonical(reading.read(path))


@pytest.fixture(scope="module")
def own_worlds(cohort):
    """Where the cohort's own images, of brains alone, come to lie; each is registered when asked for."""
    return functools.cache(lambda number: registering.register(*image(scan_of(cohort, number))).world)


def millimetres_off(world, own, raw, number):
    """How far the brain of a raw scan comes to lie from where the cohort's own image, registered, has it."""
    pose = np.array(json.loads((raw / "poses.json").read_text())["poses"][PEOPLE[number].name])
    grid = average_brain.affine_of(26)
    inside = average_brain.of_size(26).mask > 0.5
    places = grid[:3, :3] @ np.array(np.nonzero(inside)) + grid[:3, 3:]
    moved = nibabel.affines.apply_affine(world @ pose @ np.linalg.inv(own), places.T)
    return float(np.linalg.norm(moved - places.T, axis=1).mean())


@pytest.mark.parametrize("number", range(4))
def test_a_raw_scan_comes_to_lie_where_the_brain_alone_does(own_worlds, raw, number):
    place = registering.register(*image(scan_of(raw, number)))
    assert not registering.judge(place)
    assert place.dice > 0.85
    assert millimetres_off(place.world, own_worlds(number), raw, number) < 3.0


def test_a_head_whose_header_names_other_axes_is_found_and_said(raw):
    data, affine = image(scan_of(raw, 0))
    upside_down = np.diag([1.0, -1.0, -1.0, 1.0])
    upright = registering.register(data, affine)
    turned = registering.register(*quality.to_canonical(stored(data, upside_down @ affine)))
    assert [finding.code for finding in registering.judge(turned)] == ["turned"]
    assert turned.turn_degrees > 150
    np.testing.assert_allclose(turned.world @ upside_down, upright.world, atol=0.5)


def stored(data, affine):
    return reading.Image(data, affine, "Nifti1Image", data.shape, "<f4", True)


def test_what_is_no_brain_is_bad(tmp_path):
    axes = np.meshgrid(*(np.linspace(-1, 1, 60),) * 3, indexing="ij")
    ball = np.where(sum(axis**2 for axis in axes) < 0.5, 700.0, 0.0).astype(np.float32)
    ball += np.random.default_rng(0).normal(20, 5, ball.shape).astype(np.float32)
    path = tmp_path / "phantom_T1w.nii"
    nibabel.save(nibabel.Nifti1Image(ball, np.diag([3.0, 3.0, 3.0, 1.0])), path)
    with pytest.raises(ImageFault) as failed:
        preprocess.prepare(path, LINEAR)
    assert failed.value.finding.code == "no-brain"


def test_half_a_brain_is_said(raw):
    data, affine = image(scan_of(raw, 1))
    half = data.copy()
    cut = quality.to_canonical(stored(half[: half.shape[0] // 2], affine))
    codes = [finding.code for finding in registering.judge(registering.register(*cut))]
    assert {"partly-covered", "no-brain"} & set(codes)


def test_corners_that_a_sheared_scan_lacks_are_not_seen(raw):
    data, affine = image(scan_of(raw, 1))
    cut = data.copy()
    cut[tuple(slice(int(0.6 * edge), None) for edge in data.shape)] = np.nan
    whole, part = registering.register(data, affine), registering.register(cut, affine)
    assert whole.seen > 0.99
    assert 0.9 < part.seen < 0.98
    assert "partly-covered" in [finding.code for finding in registering.judge(part)]
    np.testing.assert_allclose(part.world, whole.world, atol=0.5)


def test_a_bias_field_goes(raw):
    data, affine = image(scan_of(raw, 2))
    slope = np.linspace(0.6, 1.4, data.shape[1], dtype=np.float32)[None, :, None]
    before, (after, is_corrected) = data * slope, bias_field.corrected(data * slope, affine)
    assert is_corrected
    place = registering.register(data, affine)
    white = average_brain.of_size(brain.SIZE).white > 0.9

    def spread(values):
        grid = (2.0, (brain.SIZE,) * 3, average_brain.affine_of(brain.SIZE))
        seen = resampling.placed_on(values, place.world @ affine, *grid)[white]
        return float(np.nanstd(seen) / np.nanmean(seen))

    assert spread(after) < 0.6 * spread(before)


def test_the_brain_alone_is_kept_where_asked_for(raw):
    whole = preprocess.prepare(scan_of(raw, 0), LINEAR)
    alone = preprocess.prepare(scan_of(raw, 0), replace(LINEAR, brain="mask"))
    outside = ~ndimage.binary_dilation(brain.outline_on(48, whole.affine), iterations=4)
    assert np.ptp(alone.array[outside]) == 0
    assert whole.array[outside].std() > 0.1
    assert alone.array.min() == alone.array[outside][0]
    np.testing.assert_array_equal(whole.affine, average_brain.cube_affine(48, 4.0))


def test_a_scan_whose_bias_field_stays_is_said(raw):
    data, affine = image(scan_of(raw, 2))
    even, is_corrected = bias_field.corrected(np.full_like(data, 9), affine)
    assert not is_corrected
    assert not even.any()
    place = replace(registering.register(data, affine), is_corrected=False)
    assert [finding.code for finding in registering.judge(place)] == ["bias-field"]


@pytest.fixture(scope="module")
def imported(raw, tmp_path_factory):
    """The four raw scans as a shard set."""
    target = tmp_path_factory.mktemp("shards") / "set"
    assert run(ImportRequest(source=raw, target=target, prepare="linear", size=48, workers=2)).volumes == 4
    return target


def test_import_and_prediction_prepare_alike(raw, imported):
    shards = ShardSet.open(imported)
    recipe = Recipe.from_json(dict(shards.preprocessing))
    assert (recipe.prepare, recipe.brain) == ("linear", "head")
    paths = [raw / volume.source for volume in shards.volumes]
    with ThreadPoolExecutor(2) as pool:  # as `cingulum predict` does
        for row, prepared in enumerate(pool.map(lambda path: preprocess.prepare(path, recipe), paths)):
            assert prepared.array.tobytes() == shards.read(row).tobytes()


def test_the_index_keeps_the_way_back(own_worlds, raw, imported):
    """By it, the average brain's centre lies in the scan where the phantom's own image has it, moved."""
    poses = json.loads((raw / "poses.json").read_text())["poses"]
    for number, (volume, person) in enumerate(zip(ShardSet.open(imported).volumes, PEOPLE, strict=True)):
        middle = nibabel.affines.apply_affine(volume.scan_affine, np.full(3, 23.5))
        there = np.array(poses[person.name]) @ np.linalg.inv(own_worlds(number))
        assert np.linalg.norm(middle - nibabel.affines.apply_affine(there, average_brain.CENTRE)) < 4.0


def test_tissue_volumes_are_fitted_in_the_scan_s_own_millilitres(cohort, raw, imported):
    poses = json.loads((raw / "poses.json").read_text())["poses"]
    for volume, person in zip(ShardSet.open(imported).volumes, PEOPLE, strict=True):
        (maps,) = {path.parent for path in (cohort / "derivatives").rglob(f"{person.name}_label-GM*.nii.gz")}
        shares = [nibabel.load(path) for path in maps.glob("*probseg.nii.gz")]
        true = sum(float(one.get_fdata().sum() * np.prod(one.header.get_zooms())) for one in shares) / 1000
        grown = np.linalg.det(np.array(poses[person.name])[:3, :3])
        assert set(volume.tissue) == {"grey", "white", "csf"}
        assert sum(volume.tissue.values()) == pytest.approx(true * grown, rel=0.08)


def test_the_sheet_of_an_import_has_fit_and_outline(imported):
    rows = list(csv.DictReader((imported / "qc.csv").read_text().splitlines()))
    assert all(float(row["dice"]) > 0.85 and float(row["inner"]) > 0.5 for row in rows)
    page = (imported / "qc.html").read_text()
    assert 'value="fit"' in page and "outline of the average brain" in page
    assert page.count("average brain: correlation") == 4


@pytest.mark.parametrize(
    "world", [[[0.0] * 4] * 4, [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]], None]
)
def test_an_index_whose_transform_leads_nowhere_is_damaged(imported, world):
    index = read_index(imported)
    first = replace(index.shards[0].volumes[0], registration={"world": world})
    shard = replace(index.shards[0], volumes=(first, *index.shards[0].volumes[1:]))
    with pytest.raises(ValueError, match="registration of volume 0"):
        index_reading._check_kinds(replace(index, shards=(shard,)))


def test_label_maps_and_predicted_labels_follow_the_scan(raw, tmp_path):
    data, affine = image(scan_of(raw, 0))
    path, map_path = tmp_path / "a_T1w.nii", tmp_path / "a_label-brain_probseg.nii"
    nibabel.save(nibabel.Nifti1Image(data, affine), path)
    prepared = preprocess.prepare(path, replace(LINEAR, size=80, spacing=2.4))
    share = brain_in_scan(data, affine)
    nibabel.save(nibabel.Nifti1Image(share, affine), map_path)
    recipe = MapRecipe("probseg", ("background", "brain"))
    label_map, _ = label_maps.prepare([map_path], prepared.cut, recipe)
    outline = brain.outline_on(80, prepared.affine)
    assert brain.dice(label_map == 1, outline) > 0.97
    shares = np.stack([label_map == 0, label_map == 1], axis=-1).astype(np.float32)
    source = VoxelGrid((80, 80, 80), prepared.cut.scan_affine)
    back = labels_on(VoxelGrid(data.shape, affine), iter([(0, shares)]), source)
    assert brain.dice(back == 1, share > 0.5) > 0.95


def brain_in_scan(data, affine):
    """The average brain's share of each voxel of a scan, by its registration."""
    place = registering.register(data, affine)
    mask, own = average_brain.of_size(brain.SIZE).mask, average_brain.affine_of(brain.SIZE)
    there = resampling.onto(mask, np.linalg.inv(place.world) @ own, data.shape, affine)
    return np.clip(np.nan_to_num(there), 0, 1)


def test_a_further_contrast_follows_the_first(raw, tmp_path):
    data, affine = image(scan_of(raw, 0))
    nibabel.save(nibabel.Nifti1Image(data, affine), tmp_path / "a_T1w.nii")
    bright = np.percentile(data, 99.5)
    dark_where_bright = np.where(data > 0.1 * bright, np.maximum(1.2 * bright - data, 0), 0)
    nibabel.save(nibabel.Nifti1Image(dark_where_bright, affine), tmp_path / "a_T2w.nii")
    paths = [tmp_path / "a_T1w.nii", tmp_path / "a_T2w.nii"]
    both = preprocess.prepare(paths, replace(LINEAR, contrasts=("T1w", "T2w"), brain="mask"))
    inside = ndimage.binary_erosion(brain.outline_on(48, both.affine), iterations=3)  # no CSF of the surface
    first, second = both.array[inside].T
    assert np.corrcoef(first, second)[0, 1] < -0.5


def test_what_to_keep_of_a_head_is_a_question_of_prepared_scans(raw, tmp_path):
    with fails_with(ConfigError):
        run(ImportRequest(source=raw, target=tmp_path / "set", brain="mask"))
    assert "prepare" not in Recipe(size=48, spacing=4.0).to_json()
    assert Recipe.from_json(LINEAR.to_json()) == LINEAR


def test_turns_lie_everywhere_and_none_mirrors():
    turns = pose_search.all_turns()
    assert len(turns) == 24 * 27
    assert all(np.linalg.det(turn) == pytest.approx(1.0) for turn in turns)
