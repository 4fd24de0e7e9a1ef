"""Several contrasts of a head: one grid, one cube, each standardised on its own; what lies apart is named."""

from __future__ import annotations

import json

import nibabel
import numpy as np
import pytest
from made_images import add_t2, affine, bids, cut, head, image_of, nifti, t2
from test_importing import Halt, _halt_after, files, request
from wording import fails_with

from cingulum.cli import app
from trainer.data.images import contrasts
from trainer.data.images.findings import ImageFault
from trainer.data.images.preprocess import prepare
from trainer.data.images.reading import read
from trainer.data.images.recipe import Recipe
from trainer.data.images.resampling import Cut
from trainer.data.importing.importing import run
from trainer.data.shards.shards import ShardSet
from trainer.data.shards.verify import verify
from trainer.errors import CohortError, ConfigError, ImageError

ONE = Recipe(size=24, spacing=8.0, dtype="float32")
TWO = Recipe(size=24, spacing=8.0, dtype="float32", contrasts=("T1w", "T2w"))


def pair(folder, matrix=None, data=None):
    """A T1w and a T2w image of one head."""
    second = t2() if data is None else data
    return [nifti(folder / "a_T1w.nii"), nifti(folder / "a_T2w.nii", data=second, matrix=matrix)]


def tilted(degrees=(5.0, -9.0, 12.0), voxel=(3.0, 3.5, 4.0)) -> np.ndarray:
    """An oblique affine with other voxels, about the middle of the heads."""
    turn = nibabel.eulerangles.euler2mat(*np.deg2rad(degrees))
    matrix = np.eye(4)
    matrix[:3, :3] = turn @ np.diag(voxel)
    matrix[:3, 3] = affine()[:3, :3] @ np.array([9.5, 11.5, 10.5]) + affine()[:3, 3]
    matrix[:3, 3] -= matrix[:3, :3] @ (np.array(SHAPE) - 1) / 2
    return matrix


SHAPE = (80, 84, 76)


def smooth(millimetres: np.ndarray) -> np.ndarray:
    """A head that is known at every point in space: (..., 3) in mm -> values."""
    middle = affine()[:3, :3] @ np.array([9.5, 11.5, 10.5]) + affine()[:3, 3]
    x, y, z = np.moveaxis(millimetres - middle, -1, 0)
    ball = 1 / (1 + np.exp((np.sqrt(x**2 + 0.8 * y**2 + z**2) - 55) / 6))
    return (ball * (500 + 3 * x - 2 * y + z)).astype(np.float32)


def sampled(matrix, shape):
    return smooth(nibabel.affines.apply_affine(matrix, np.moveaxis(np.indices(shape), 0, -1)))


def test_the_first_channel_is_what_it_would_be_alone(tmp_path):
    paths = pair(tmp_path)
    both, alone = prepare(paths, TWO), prepare(paths[0], ONE)
    assert both.array.shape == (24, 24, 24, 2)
    assert both.array[..., :1].tobytes() == alone.array.tobytes()
    np.testing.assert_array_equal(both.affine, alone.affine)


def test_on_the_same_grid_the_second_is_only_cut_and_standardised(tmp_path):
    both = prepare(pair(tmp_path), TWO)
    cube = Cut(head().shape, affine(), 8.0, both.cut.start, 24).of(t2())
    numbers = both.report["T2w"]
    expected = np.clip(cube, numbers["clip_low"], numbers["clip_high"])
    expected = (expected - numbers["mean"]) / numbers["standard_deviation"]
    np.testing.assert_allclose(both.array[..., 1], expected, atol=1e-5)


def test_each_channel_is_standardised_on_its_own(tmp_path):
    paths = pair(tmp_path)
    both = prepare(paths, TWO).array
    louder = prepare(pair(tmp_path / "x", data=t2() * 40 + 7), TWO).array
    np.testing.assert_allclose(louder, both, atol=2e-3)
    inside = Cut(head().shape, affine(), 8.0, prepare(paths, TWO).cut.start, 24).of(head()) > 0
    for channel in range(2):
        assert abs(both[inside, channel].mean()) < 0.02
        assert abs(both[inside, channel].std() - 1) < 0.02
    assert np.corrcoef(both[inside].T)[0, 1] < -0.98  # what is bright in the one is dark in the other


@pytest.mark.parametrize("codes", ["LPS", "SRA", "PIR"])
def test_another_order_of_axes_makes_no_difference(tmp_path, codes):
    paths = pair(tmp_path)
    image = nibabel.load(paths[1])
    turn = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(image.affine), nibabel.orientations.axcodes2ornt(codes)
    )
    nibabel.save(image.as_reoriented(turn), tmp_path / "turned.nii")
    turned = prepare([paths[0], tmp_path / "turned.nii"], TWO)
    assert turned.array.tobytes() == prepare(paths, TWO).array.tobytes()


@pytest.mark.parametrize("matrix", [tilted(), tilted((0, 0, 0)), tilted((0, 0, 0), (6.0, 5.0, 7.0))])
def test_an_oblique_image_with_other_voxels_lands_where_its_affine_says(tmp_path, matrix):
    """Against the known values at every place, which need no interpolation."""
    image = read(nifti(tmp_path / "a.nii", data=sampled(matrix, SHAPE), matrix=matrix))
    grid = affine((4.0, 4.0, 4.0))
    shape = (40, 48, 44)
    aligned = contrasts.align(image, shape, grid, 4.0)
    known = sampled(grid, shape)
    seen = np.isfinite(aligned)
    assert seen[8:-8, 8:-8, 8:-8].all()
    assert np.abs(aligned - known)[seen].max() < 0.06 * known.max()
    assert np.abs(aligned - known)[seen].mean() < 0.006 * known.max()
    shifted = contrasts.align(image, shape, grid + np.array([[0, 0, 0, 4.0]] + [[0] * 4] * 3), 4.0)
    both = np.isfinite(shifted) & seen
    assert np.abs(shifted - known)[both].mean() > 3 * np.abs(aligned - known)[both].mean()


def test_headers_that_differ_in_their_last_digits_are_one_grid(tmp_path):
    paths = pair(tmp_path)
    matrix = affine() * (1 + 1e-7)
    matrix[:3, 3] += 1e-4
    near = [paths[0], nifti(tmp_path / "near.nii", data=t2(), matrix=matrix)]
    assert np.isfinite(contrasts.align(read(near[1]), head().shape, affine(), 8.0)).all()
    np.testing.assert_allclose(prepare(near, TWO).array, prepare(paths, TWO).array, atol=1e-3)


def test_at_the_faces_of_an_image_nothing_fades(tmp_path):
    constant = nifti(tmp_path / "a.nii", data=np.full((20, 24, 22), 7, np.float32))
    matrix = affine((6.0, 6.0, 6.0))
    matrix[:3, 3] += 1.7
    aligned = contrasts.align(read(constant), (30, 34, 32), matrix, 6.0)
    np.testing.assert_allclose(aligned[np.isfinite(aligned)], 7, rtol=1e-6)
    assert np.isnan(aligned).any()


def test_a_contrast_in_which_only_the_ventricles_shine_is_standardised_over_the_whole_brain(tmp_path):
    data = t2()
    data[8:12, 10:14, 9:13] = 20 * data.max()
    paths = pair(tmp_path, data=data)
    prepared = prepare(paths, TWO)
    brain = Cut(head().shape, affine(), 8.0, prepared.cut.start, 24).of(head()) > 0
    assert abs(prepared.array[brain, 1].mean()) < 0.05
    assert abs(prepared.array[brain, 1].std() - 1) < 0.05


def test_the_lower_clip_of_a_slab_comes_from_what_it_shows(tmp_path):
    data = t2() + np.random.default_rng(0).uniform(0, 30, t2().shape).astype(np.float32)
    matrix = affine()
    matrix[2, 3] += 6 * 8
    slab = data[:, :, 6:]
    numbers = prepare(pair(tmp_path, matrix, slab), TWO).report["T2w"]
    assert numbers["clip_low"] == pytest.approx(np.percentile(slab, 0.5), rel=1e-4)
    assert numbers["clip_low"] > slab.min()


def test_outside_the_second_image_its_channel_is_dark(tmp_path):
    data = t2()[:, :, 6:]
    matrix = affine()
    matrix[2, 3] += 6 * 8
    prepared = prepare(pair(tmp_path, matrix, data), TWO)
    _, _, bottom = (-first for first in prepared.cut.start)
    lowest = prepared.array[..., 1].min()
    assert (prepared.array[:, :, : bottom + 5, 1] == lowest).all()
    codes = [finding.code for finding in prepared.findings]
    assert "partly-covered" in codes
    message = next(f.message for f in prepared.findings if f.code == "partly-covered")
    assert message.startswith("its T2w image: covers ")


def _moved(mm, axis=0):
    matrix = affine()
    matrix[axis, 3] += mm
    return matrix


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (_moved(400), "shows 0 % of the first contrast's foreground: the affines place them apart"),
        (_moved(120, 1), "shows "),
        (_moved(32), "lies 3"),
    ],
)
def test_images_that_their_affines_place_apart_are_refused(tmp_path, matrix, message):
    with pytest.raises(ImageFault) as caught:
        prepare(pair(tmp_path, matrix), TWO)
    finding = caught.value.finding
    assert finding.code == "contrasts-apart"
    assert finding.message.startswith("its T2w image: " + message)
    assert "Register" in finding.cure


def test_images_a_few_millimetres_apart_are_presumed_registered(tmp_path):
    prepare(pair(tmp_path, _moved(8)), TWO)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_images_than_contrasts_is_named(tmp_path, count):
    paths = (pair(tmp_path) * 2)[:count]
    with fails_with(ImageError) as caught:
        prepare(paths, TWO)
    assert "in this order" in caught.value.cure
    with fails_with(ImageError):
        prepare(pair(tmp_path), ONE)


def test_a_second_image_that_cannot_be_used_is_named(tmp_path):
    paths = pair(tmp_path, data=np.zeros((20, 24, 22), np.float32))
    with fails_with(ImageFault):
        prepare(paths, TWO)
    data = t2()
    data[10, 12, 11] = np.nan
    paths = pair(tmp_path, data=data)
    with fails_with(ImageFault):
        prepare(paths, TWO)
    recipe = Recipe(size=24, spacing=8.0, contrasts=("T1w", "T2w"), nan="zero")
    zeroed = prepare(paths, recipe)
    with_zero = prepare(pair(tmp_path / "zero", data=np.nan_to_num(data)), recipe)
    assert zeroed.report == with_zero.report
    assert zeroed.array.tobytes() == with_zero.array.tobytes()
    assert any(f.message.startswith("its T2w image: 1 of") for f in zeroed.findings)


# The import of several contrasts.


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    root = bids(tmp_path_factory.mktemp("both") / "cohort", 5)
    for number in range(5):
        add_t2(root, number)
    return root


@pytest.fixture(scope="module")
def whole(cohort, tmp_path_factory):
    target = tmp_path_factory.mktemp("whole") / "set"
    run(request(cohort, target, contrasts="T1w,T2w"))
    return target


def test_an_import_of_two_contrasts_has_two_channels(cohort, whole):
    shards = ShardSet.open(whole)
    assert (shards.shape, shards.contrasts) == ((16, 16, 16, 2), ("T1w", "T2w"))
    recipe = Recipe.from_json(dict(shards.preprocessing))
    assert recipe.contrasts == ("T1w", "T2w")
    for volume in shards.volumes:
        (second,) = volume.further_sources
        assert second == volume.source.replace("T1w", "T2w")
        expected = prepare([cohort / volume.source, cohort / second], recipe)
        assert shards.read(volume.id).tobytes() == expected.array.tobytes()
    assert verify(whole) == []


@pytest.mark.parametrize("writes", [3, 5])
def test_a_stopped_import_goes_on_to_the_same_bytes(cohort, whole, tmp_path, monkeypatch, writes):
    wanted = request(cohort, tmp_path / "set", contrasts="T1w,T2w")
    _halt_after(monkeypatch, writes)
    with pytest.raises(Halt):
        run(wanted)
    monkeypatch.undo()
    assert run(wanted).kept == writes - 1
    assert files(tmp_path / "set") == files(whole)


def test_a_second_contrast_that_changed_meanwhile_is_read_again(tmp_path, monkeypatch):
    root, target = bids(tmp_path / "b", 4), tmp_path / "set"
    for number in range(4):
        add_t2(root, number)
    wanted = request(root, target, contrasts="T1w,T2w")
    _halt_after(monkeypatch, 3)
    with pytest.raises(Halt):
        run(wanted)
    monkeypatch.undo()
    nifti(image_of(root, 1).with_name("sub-01_T2w.nii.gz"), data=t2(9))
    assert run(wanted).kept == 0
    run(request(root, tmp_path / "fresh", contrasts="T1w,T2w"))
    assert files(target) == files(tmp_path / "fresh")


BAD = {
    "missing": (lambda path: path.unlink(), "missing-contrast", "has no T2w image beside it"),
    "truncated": (cut, "truncated", "its T2w image sub-01_T2w.nii.gz: "),
    "a mask": (
        lambda path: nifti(path, data=(head() > 0).astype(np.int16)), "mask", "only the two values",
    ),
    "apart": (
        lambda path: nifti(path, data=t2(1), matrix=_moved(400)), "contrasts-apart", "place them apart",
    ),
    "two": (
        lambda path: [
            nifti(path.with_name(f"sub-01_acq-{x}_T2w.nii.gz"), data=t2(1)) for x in "ab"
        ] + [path.unlink()],
        "ambiguous-contrast",
        "sub-01_acq-a_T2w.nii.gz, sub-01_acq-b_T2w.nii.gz",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_second_contrast_fails_the_import_by_name_or_leaves_out_its_subject(tmp_path, case):
    spoil, code, message = BAD[case]
    root, target = bids(tmp_path / "b", 4), tmp_path / "set"
    for number in range(4):
        add_t2(root, number)
    spoil(image_of(root, 1).with_name("sub-01_T2w.nii.gz"))
    wanted = request(root, target, contrasts="T1w,T2w")
    with fails_with(CohortError) as caught:
        run(wanted)
    assert "sub-01/anat/sub-01_T1w.nii.gz: " in caught.value.message
    assert message in caught.value.message
    assert f'"{code}"' in (target / "qc.json").read_text()
    run(request(root, target, contrasts="T1w,T2w", on_error="skip"))
    assert [volume.subject for volume in ShardSet.open(target).volumes] == ["00", "02", "03"]


def test_a_contrast_that_nobody_has_is_an_error_at_once(cohort, tmp_path):
    with fails_with(CohortError) as caught:
        run(request(cohort, tmp_path / "set", contrasts="T1w,FLAIR"))
    assert "T1w, T2w" in caught.value.cure
    for names in ("T1w,T1w", "T1w,"):
        with fails_with(ConfigError):
            run(request(cohort, tmp_path / "set", contrasts=names))


def test_a_table_has_a_column_for_each_contrast(tmp_path):
    rows = ["image,subject,diagnosis,T2W"]
    for number, label in enumerate(("AD", "NC", "AD")):
        nifti(tmp_path / f"{number}.nii", seed=number)
        nifti(tmp_path / "t2" / f"{number}.nii", data=t2(number))
        rows.append(f"{number}.nii,{number},{label},{f't2/{number}.nii' if number < 2 else ''}")
    table = tmp_path / "images.csv"
    table.write_text("\n".join(rows))
    wanted = {"contrasts": "T1w,T2w", "on_error": "skip"}
    result = run(request(table, tmp_path / "set", **wanted))
    assert [f.code for f in result.left_out[0].findings if f.severity == "bad"] == ["missing-contrast"]
    shards = ShardSet.open(tmp_path / "set")
    assert [list(volume.further_sources) for volume in shards.volumes] == [["t2/0.nii"], ["t2/1.nii"]]
    with fails_with(CohortError):
        run(request(table, tmp_path / "other", contrasts="T1w,FLAIR"))
    for number in range(3):
        nifti(tmp_path / "images" / "AD" / f"{number}.nii", seed=number)
    with fails_with(CohortError):
        run(request(tmp_path / "images", tmp_path / "other", contrasts="T1w,T2w"))


def test_the_command_takes_contrasts(cohort, tmp_path, capsys):
    target = str(tmp_path / "set")
    line = ["import", str(cohort), target, "--size=16", "--workers=1", "--contrasts=T1w, T2w"]
    assert app.run(line) == 0
    capsys.readouterr()
    assert app.run(["inspect", target, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["contrasts"], told["shape"]) == (["T1w", "T2w"], [16, 16, 16, 2])
    assert app.run([*line[:2], str(tmp_path / "one"), *line[3:5], "--contrasts=T2w"]) == 0
    assert ShardSet.open(tmp_path / "one").shape == (16, 16, 16, 1)
    assert "T2w" in ShardSet.open(tmp_path / "one").volumes[0].source
