"""What an image becomes: axes, place, spacing, intensities; the same for import and prediction."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel
import nilearn
import numpy as np
import pytest
from made_images import affine, head, nifti, turned
from scipy import ndimage
from wording import fails_with

from trainer.data.images import foreground, geometry, quality, resampling
from trainer.data.images.findings import ImageFault
from trainer.data.images.preprocess import Recipe, prepare
from trainer.data.images.reading import Image
from trainer.data.images.resampling import resample, resample_part, resampled_affine, weights
from trainer.errors import ConfigError


def test_a_recipe_comes_back_from_json():
    recipe = Recipe.of_size(48, dtype="float32", volume=2, nan="zero")
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    assert (recipe.spacing, recipe.shape) == (4.0, (48, 48, 48, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 4}, "size is 4"),
        ({"spacing": 0}, "spacing is 0"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"normalisation": "minmax"}, "known are 'zscore'"),
        ({"colour": 1}, "unknown key 'colour'"),
    ],
)
def test_an_impossible_recipe_is_named(change, message):
    with pytest.raises(ConfigError, match=message):
        Recipe.from_json({"size": 16, "spacing": 8.0, **change})


def test_a_recipe_has_a_transform_only_where_one_was_chosen():
    """Recipes of sets made before there was a choice have no such key, and read by the sform first."""
    plain = Recipe.of_size(24).to_json()
    assert "xform" not in plain and Recipe.from_json(plain).xform is None
    chosen = Recipe.of_size(24, xform="qform")
    assert Recipe.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    with fails_with(ConfigError):
        Recipe.from_json({**plain, "xform": "both"})


def test_a_recipe_without_a_size_is_named():
    with fails_with(ConfigError):
        Recipe.from_json({"spacing": 8.0})


def test_the_foreground_is_standardised_and_the_padding_is_its_darkest(tmp_path):
    prepared = prepare(nifti(tmp_path / "a.nii"), Recipe(size=32, spacing=8.0, dtype="float32"))
    assert prepared.array.shape == (32, 32, 32, 1)
    volume = prepared.array[..., 0]
    inside = foreground.mask(volume)
    assert abs(volume[inside].mean()) < 0.01
    assert abs(volume[inside].std() - 1) < 0.01
    assert volume[0, 0, 0] == volume.min() < -3


@pytest.mark.parametrize("change", [lambda d: d * 7.5, lambda d: d + 300, lambda d: d / 1000 - 5])
def test_scale_and_offset_of_intensities_make_no_difference(tmp_path, change):
    recipe = Recipe(size=24, spacing=8.0, dtype="float32")
    one = prepare(nifti(tmp_path / "a.nii"), recipe).array
    other = prepare(nifti(tmp_path / "b.nii", data=change(head())), recipe).array
    np.testing.assert_allclose(other, one, atol=2e-3)


def test_a_few_very_bright_voxels_make_little_difference(tmp_path):
    data = head()
    data[10, 12, 11] = 1e6
    one = prepare(nifti(tmp_path / "a.nii"), Recipe(size=24, spacing=8.0, dtype="float32")).array
    other = prepare(nifti(tmp_path / "b.nii", data=data), Recipe(size=24, spacing=8.0, dtype="float32")).array
    assert np.abs(other - one).mean() < 0.05


def test_the_affine_says_where_each_voxel_lies(tmp_path):
    """A landmark's millimetres are the same in the file and in the prepared volume, at another spacing."""
    data = head((40, 48, 44))
    data[30, 33, 25] = 60000
    data = ndimage.gaussian_filter(data, 1.0)
    stored = affine((4.0, 3.5, 5.0))
    prepared = prepare(
        nifti(tmp_path / "a.nii", data=data, matrix=stored),
        Recipe(size=64, spacing=3.0, dtype="float32", high_percentile=100.0),
    )
    there = nibabel.affines.apply_affine(stored, (30, 33, 25))
    place = nibabel.affines.apply_affine(np.linalg.inv(prepared.affine), there)
    box = tuple(slice(round(p) - 3, round(p) + 4) for p in place)
    patch = prepared.array[..., 0][box]
    brightest = np.array(np.unravel_index(patch.argmax(), patch.shape)) + [b.start for b in box]
    assert np.abs(brightest - place).max() <= 1.0
    np.testing.assert_allclose(nibabel.affines.voxel_sizes(prepared.affine), 3.0)


def test_a_cube_about_the_head_wherever_it_lies_in_the_field_of_view(tmp_path):
    recipe = Recipe(size=24, spacing=8.0)
    padded = np.pad(head(), ((20, 3), (2, 14), (6, 6)))
    one = prepare(nifti(tmp_path / "a.nii"), recipe).array
    other = prepare(nifti(tmp_path / "b.nii", data=padded), recipe).array
    difference = np.abs(one.astype(np.float32) - other)
    assert np.median(difference) < 0.05


def test_a_tall_head_loses_its_neck_and_not_its_top():
    assert foreground.crop_start(((5, 15), (5, 15), (0, 40)), 20) == (0, 0, 20)
    assert foreground.crop_start(((5, 15), (5, 15), (10, 20)), 20) == (0, 0, 5)


def test_a_head_larger_than_the_cube_is_a_warning(tmp_path):
    prepared = prepare(nifti(tmp_path / "a.nii"), Recipe(size=12, spacing=8.0))
    assert "cropped" in {finding.code for finding in prepared.findings}


def test_noise_far_from_the_head_does_not_move_the_box():
    data = head()
    data[0, 0, 0] = data[-1, -1, -1] = 900
    inside = foreground.mask(data)
    assert not inside[0, 0, 0]
    assert foreground.box(inside) == foreground.box(foreground.mask(head()))


def test_otsu_parts_two_groups_in_their_middle():
    values = np.concatenate([np.full(900, 10.0), np.full(300, 110.0)])
    assert 50 < foreground.otsu(values) < 70
    assert foreground.otsu(np.full(10, 3.0)) == 3.0


def test_resampling_to_the_same_grid_changes_nothing():
    np.testing.assert_array_equal(resample(head(), (2.0, 2.0, 2.0), 2.0), head())


@pytest.mark.parametrize("spacing", [3.1, 8.0, 11.7])
def test_a_part_of_an_image_is_resampled_to_the_very_bytes_of_the_whole(spacing):
    data, (x, y, z) = np.zeros((20, 24, 22), np.float32), (3, 5, 14)
    part = head()[4:12, 6:17, 8:16]
    data[x : x + 8, y : y + 11, z : z + 8] = part
    whole = resample(data, (8.0, 7.0, 9.0), spacing)
    assert resample_part(part, (x, y, z), data.shape, (8.0, 7.0, 9.0), spacing).tobytes() == whole.tobytes()


@pytest.mark.parametrize("spacing", [0.7, 1.0, 1.9, 4.0])
def test_resampling_keeps_constants_ramps_and_the_mean(spacing):
    np.testing.assert_allclose(weights(60, 1.3, spacing).sum(axis=1), 1.0, rtol=1e-6)
    ramp = np.arange(60, dtype=np.float32)
    new = weights(60, 1.3, spacing) @ ramp
    reach = int(np.ceil(max(1.3, spacing) / spacing)) + 1
    np.testing.assert_allclose(np.diff(new)[reach:-reach], spacing / 1.3, rtol=0.03)
    assert abs(new.mean() - ramp.mean()) < 1e-3


@pytest.mark.parametrize("spacing", [2.0, 3.7, 9.0])
def test_resampled_voxels_lie_where_the_affine_says(spacing):
    """The data are their own millimetres along one axis; after resampling they still must be."""
    matrix, voxel = affine((4.0, 3.5, 5.0)), (4.0, 3.5, 5.0)
    for axis in range(3):
        places = np.moveaxis(np.indices((40, 48, 44)), 0, -1)
        millimetres = nibabel.affines.apply_affine(matrix, places)[..., axis].astype(np.float32)
        new = resample(millimetres, voxel, spacing)
        there = resampled_affine(matrix, millimetres.shape, new.shape, voxel, spacing)
        expected = nibabel.affines.apply_affine(there, np.moveaxis(np.indices(new.shape), 0, -1))[..., axis]
        middle = (slice(4, -4),) * 3
        assert np.abs(new - expected)[middle].max() < 0.05 * spacing


def test_fine_stripes_average_out_instead_of_aliasing():
    stripes = np.tile([0.0, 1.0], 64).astype(np.float32)
    new = weights(128, 1.0, 4.0) @ stripes
    assert np.abs(new[2:-2] - 0.5).max() < 0.02


def test_a_label_map_is_no_scan(tmp_path):
    data = (head() > 0).astype(np.float32)
    with pytest.raises(ImageFault) as caught:
        prepare(nifti(tmp_path / "a.nii", data=data), Recipe(size=16, spacing=8.0))
    assert caught.value.finding.code == "mask"


def test_not_finite_voxels_are_refused_or_zeroed_as_asked(tmp_path):
    data = head()
    data[0, :3] = np.nan
    path = nifti(tmp_path / "a.nii", data=data)
    with fails_with(ImageFault) as caught:
        prepare(path, Recipe(size=16, spacing=8.0))
    assert "--nan zero" in caught.value.cure
    prepared = prepare(path, Recipe(size=16, spacing=8.0, nan="zero"))
    assert np.isfinite(prepared.array.astype(np.float32)).all()
    assert prepared.findings[0].severity == "warning"


def template() -> tuple[np.ndarray, np.ndarray]:
    """Every third voxel of the ICBM152 template, (X, Y, Z) float32, and its affine."""
    folder = Path(nilearn.__file__).parent / "datasets" / "data"
    image = nibabel.load(folder / "mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz")
    return np.asarray(image.dataobj, np.float32)[::3, ::3, ::3], image.affine @ np.diag([3.0, 3, 3, 1])


def sampled(path: Path, matrix: np.ndarray, codes: str = "RAS") -> Path:
    """Write the template as a scanner with these axes, (3, 3), would see it: about its middle, in 3 mm."""
    data, own = template()
    shape = (72, 104, 88)
    grid = np.eye(4)
    grid[:3, :3] = 3 * matrix
    grid[:3, 3] = np.array([0.0, -18.0, 20.0]) - grid[:3, :3] @ ((np.array(shape) - 1) / 2)
    there = np.linalg.inv(own) @ grid
    seen = ndimage.affine_transform(data, there[:3, :3], there[:3, 3], shape, order=1)
    image = nibabel.Nifti1Image(seen, grid)
    turn = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(grid), nibabel.orientations.axcodes2ornt(codes)
    )
    nibabel.save(image.as_reoriented(turn), path)
    return path


SINE, COSINE, TANGENT = (f(np.deg2rad(27)) for f in (np.sin, np.cos, np.tan))
SHEARED = {
    "slices along z, shifted to the front": [[1, 0, 0], [0, 1, TANGENT], [0, 0, 1]],
    "slices along z, shifted to the back": [[1, 0, 0], [0, 1, -TANGENT], [0, 0, 1]],
    "slices tilted, the table along z": [[1, 0, 0], [0, COSINE, 0], [0, SINE, 1]],
    "two axes": [[1, 0.1, 0.2], [0, 1, 0.3], [0, 0, 1]],
}


@pytest.mark.parametrize("codes", ["RAS", "LIP"])
@pytest.mark.parametrize("case", SHEARED)
def test_a_head_in_sheared_slices_comes_out_as_in_upright_ones(tmp_path, case, codes):
    recipe = Recipe(size=48, spacing=4.0, dtype="float32")
    upright = prepare(sampled(tmp_path / "a.nii", np.eye(3)), recipe)
    sheared = prepare(sampled(tmp_path / "b.nii", np.array(SHEARED[case]), codes), recipe)
    assert np.corrcoef(upright.array.ravel(), sheared.array.ravel())[0, 1] > 0.98
    assert "sheared" in {finding.code for finding in sheared.findings if finding.severity == "warning"}
    assert upright.findings == ()
    across = sheared.affine[:3, :3] / recipe.spacing
    np.testing.assert_allclose(across.T @ across, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(sheared.affine, upright.affine, atol=2 * recipe.spacing)


@pytest.mark.parametrize(("degrees", "code"), [(0.5, None), (0.9, None), (1.1, "sheared"), (46, "affine")])
def test_shear_is_a_finding_beyond_one_degree_and_bad_beyond_45(degrees, code):
    matrix = affine()
    matrix[1, 2] = matrix[2, 2] * np.tan(np.deg2rad(degrees))
    image = Image(head(), matrix, "Nifti1Image", head().shape, "<f4", True)
    assert {f.code for f in quality.check(image)} - {"voxel-size"} == ({code} if code else set())


def test_a_tilted_scan_keeps_its_tilt_where_its_header_is_a_little_sheared():
    """An oblique scan after a registration that only its header knows."""
    tilted = turned(15, affine((3.0, 3.0, 3.0)))
    tilted[:3, 2] += 0.01 * tilted[:3, 1]
    assert geometry.is_sheared(tilted)
    _, grid = geometry.upright_grid((60, 70, 60), tilted)
    cosines = (grid[:3, :3] / 3 * tilted[:3, :3] / 3).sum(axis=0)
    assert np.rad2deg(np.arccos(np.minimum(cosines, 1))).max() < 1


@pytest.mark.parametrize("degrees", [0.0, 17.0])
def test_what_is_not_sheared_is_not_interpolated(degrees):
    data, matrix = head(), np.float32(turned(degrees, affine((3.3, 3.0, 3.1)))).astype(np.float64)
    upright, same = resampling.upright(data, matrix)
    assert upright is data and same is matrix
