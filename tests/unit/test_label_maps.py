"""A label map goes the way of its image: same axes, grid and cube, by the rule that is written down."""

from __future__ import annotations

import nibabel
import numpy as np
import pytest
from made_images import AXIS_CODES, MIRRORED, affine, cut, head, labels, nifti, shares, written
from scipy import ndimage
from wording import fails_with

from trainer.data.images import label_maps
from trainer.data.images.findings import ImageFault
from trainer.data.images.preprocess import prepare
from trainer.data.images.recipe import MapRecipe, Recipe
from trainer.data.images.resampling import Cut
from trainer.data.sources.map_request import numbered
from trainer.errors import ConfigError

SHARES = MapRecipe("probseg", ("background", "grey", "white", "csf"))
NUMBERS = numbered({"2": "left", "3": "block", "41": "right"})


def cut_of(path, size=24, spacing=8.0) -> Cut:
    return prepare(path, Recipe(size=size, spacing=spacing)).cut


def reoriented(path, data, matrix, codes: str):
    """Write the same image with its axes stored in another order and direction."""
    image = nibabel.Nifti1Image(data, matrix)
    turn = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(matrix), nibabel.orientations.axcodes2ornt(codes)
    )
    nibabel.save(image.as_reoriented(turn), path)
    return path


def at_places_of(cube: Cut, data: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """What `data` holds at the millimetres of each voxel of the cube, nearest neighbour, 0 outside."""
    places = np.moveaxis(np.indices((cube.size,) * 3), 0, -1)
    inverse = np.linalg.inv(matrix) @ cube.cube_affine
    index = np.rint(nibabel.affines.apply_affine(inverse, places)).astype(int)
    inside = ((index >= 0) & (index < data.shape)).all(axis=-1)
    there = data[tuple(np.moveaxis(np.where(inside[..., None], index, 0), -1, 0))]
    return np.where(inside, there, 0)


def test_shares_become_the_largest_class_and_the_background_has_what_they_leave(tmp_path):
    cube = cut_of(nifti(tmp_path / "a.nii"))
    paths = [nifti(tmp_path / f"{code}.nii", data=share) for code, share in shares().items()]
    label_map, findings = label_maps.prepare(paths, cube, SHARES)
    at = [at_places_of(cube, share, affine()) for share in shares().values()]
    expected = np.argmax([1 - sum(at), *at], axis=0)
    assert (label_map.dtype, label_map.shape, findings) == (np.dtype("uint8"), (24, 24, 24), [])
    np.testing.assert_array_equal(label_map, expected)
    assert set(np.unique(expected)) == {0, 1, 2, 3}


def test_where_three_tissues_mix_and_none_has_half_it_is_no_background(tmp_path):
    data = {"GM": 0.4, "WM": 0.35, "CSF": 0.25}
    paths = [
        nifti(tmp_path / f"{code}.nii", data=np.where(head() > 0, share, 0).astype(np.float32))
        for code, share in data.items()
    ]
    cube = cut_of(nifti(tmp_path / "a.nii"))
    label_map, _ = label_maps.prepare(paths, cube, SHARES)
    np.testing.assert_array_equal(label_map == 1, at_places_of(cube, head(), affine()) > 0)


@pytest.mark.parametrize("codes", AXIS_CODES[::7])
def test_label_numbers_lie_where_the_affines_say_whatever_the_axes(tmp_path, codes):
    """Same grid as the image: every voxel keeps its label; the map's axes may be stored otherwise."""
    matrix = affine()
    matrix[:3, :3] = nibabel.eulerangles.euler2mat(0.1, -0.2, 0.15) @ matrix[:3, :3]
    image = reoriented(tmp_path / "a.nii", head(), matrix, codes)
    path = reoriented(tmp_path / "map.nii", labels(), matrix, AXIS_CODES[(AXIS_CODES.index(codes) + 5) % 48])
    cube = cut_of(image)
    label_map, _ = label_maps.prepare([path], cube, NUMBERS)
    expected = at_places_of(cube, labels(), matrix)
    for number, place in NUMBERS.labels:
        np.testing.assert_array_equal(label_map == place, expected == number)
    assert (expected > 0).sum() == (labels() > 0).sum()


def test_labels_that_share_a_name_are_one_class_and_may_be_background(tmp_path):
    recipe = numbered({"0": "rest", "2": "brain", "41": "brain", "3": "rest"})
    assert recipe == MapRecipe("dseg", ("rest", "brain"), ((0, 0), (2, 1), (3, 0), (41, 1)))
    cube = cut_of(nifti(tmp_path / "a.nii"))
    label_map, _ = label_maps.prepare([nifti(tmp_path / "map.nii", data=labels())], cube, recipe)
    expected = np.isin(at_places_of(cube, labels(), affine()), (2, 41))
    np.testing.assert_array_equal(label_map, expected)


def test_on_a_finer_grid_borders_lie_where_a_linear_interpolation_has_them(tmp_path):
    """Against scipy's own linear interpolation of each label's indicator."""
    cube = cut_of(nifti(tmp_path / "a.nii"), size=64, spacing=3.1)
    label_map, _ = label_maps.prepare([nifti(tmp_path / "map.nii", data=labels())], cube, NUMBERS)
    places = np.indices((64, 64, 64)).reshape(3, -1)
    matrix = np.linalg.inv(affine()) @ cube.cube_affine
    index = matrix[:3, :3] @ places + matrix[:3, 3:]
    indicators = [
        ndimage.map_coordinates((labels() == number).astype(float), index, order=1, mode="nearest")
        for number, _ in NUMBERS.labels
    ]
    all_shares = np.array([1 - sum(indicators), *indicators])
    ordered = np.sort(all_shares, axis=0)
    clear = ordered[-1] - ordered[-2] > 1e-4
    inside = ((index > 0) & (index < np.array(head().shape)[:, None] - 1)).all(axis=0)
    checked = (clear & inside).reshape(64, 64, 64)
    assert checked.mean() > 0.2
    expected = all_shares.argmax(axis=0).reshape(64, 64, 64)
    np.testing.assert_array_equal(label_map[checked], expected[checked])


def test_image_and_map_stay_together_on_a_coarser_grid_of_another_spacing(tmp_path):
    """What is labelled is what is bright: an image that is its own map."""
    data = ndimage.gaussian_filter((labels() == 3).astype(np.float32), 1.0) + (head() > 0) * 0.2
    matrix = affine((4.0, 3.5, 5.0))
    image = nifti(tmp_path / "a.nii", data=data, matrix=matrix)
    bright = nifti(tmp_path / "map.nii", data=(data > 0.5).astype(np.int16), matrix=matrix)
    prepared = prepare(image, Recipe(size=24, spacing=5.0, dtype="float32", high_percentile=100.0))
    label_map, _ = label_maps.prepare([bright], prepared.cut, numbered({"1": "bright"}))
    volume = prepared.array[..., 0]
    middle = np.argwhere(label_map).mean(axis=0)
    weight = np.where(volume > np.percentile(volume, 99.5), volume, 0)
    brightest = np.array(ndimage.center_of_mass(weight))
    assert np.abs(middle - brightest).max() < 0.5
    assert volume[label_map == 1].min() > volume[label_map == 0].mean()


def test_outside_the_image_is_background(tmp_path):
    cube = cut_of(nifti(tmp_path / "a.nii"), size=40)
    everywhere = np.ones(head().shape, np.int16)
    label_map, _ = label_maps.prepare(
        [nifti(tmp_path / "map.nii", data=everywhere)], cube, numbered({"1": "x"})
    )
    assert (label_map == 1).sum() == head().size
    assert label_map[0, 0, 0] == 0


def test_a_map_without_any_label_is_a_warning(tmp_path):
    cube = cut_of(nifti(tmp_path / "a.nii"))
    path = nifti(tmp_path / "map.nii", data=np.zeros(head().shape, np.int16))
    label_map, (finding,) = label_maps.prepare([path], cube, NUMBERS)
    assert (finding.code, finding.severity) == ("empty-map", "warning")
    assert not label_map.any()


def _with(value, dtype=np.float32):
    data = labels().astype(dtype)
    data[3, 3, 3] = value
    return data


def _apart(mm):
    matrix = affine()
    matrix[0, 3] += mm
    return matrix


BAD_MAPS = {
    "other shape": ({"data": labels()[1:]}, "map-grid", "has 19 x 24 x 22 voxels, but the image has 20"),
    "other place": ({"data": labels(), "matrix": _apart(5)}, "map-grid", "lies up to 5 mm away from"),
    "other voxel size": (
        {"data": labels(), "matrix": affine((8, 8, 7))}, "map-grid", "lies up to 21 mm away from",
    ),
    "interpolated": ({"data": _with(1.5)}, "map-values", "are not label numbers, such as 1.5"),
    "NaN": ({"data": _with(np.nan)}, "map-values", "such as nan"),
    "beyond counting": ({"data": _with(1e30)}, "map-values", "such as 1e+30"),
    "unknown label": ({"data": _with(7)}, "unknown-map-label", "labels without a name: 7."),
    "negative label": ({"data": _with(-1)}, "unknown-map-label", "without a name: -1."),
    "four dimensions": ({"data": np.stack([labels()] * 2, -1)}, "four-dimensional", "holds 2 volumes"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_MAPS)
def test_a_map_that_does_not_fit_its_image_is_named_with_its_cure(tmp_path, case):
    how, code, message = BAD_MAPS[case]
    cube = cut_of(nifti(tmp_path / "a.nii"))
    with pytest.raises(ImageFault) as caught:
        label_maps.prepare([nifti(tmp_path / "map.nii.gz", **how)], cube, NUMBERS)
    assert caught.value.finding.code == code
    assert caught.value.finding.message.startswith("its map map.nii.gz: ")
    assert message in caught.value.finding.message
    assert caught.value.finding.cure


def test_headers_that_differ_in_their_last_digits_are_the_same_grid(tmp_path):
    cube = cut_of(nifti(tmp_path / "a.nii"))
    path = nifti(tmp_path / "map.nii", data=labels(), matrix=_apart(0.01))
    label_maps.prepare([path], cube, NUMBERS)


def test_a_truncated_map_is_named(tmp_path):
    cube = cut_of(nifti(tmp_path / "a.nii"))
    path = nifti(tmp_path / "map.nii.gz", data=labels())
    cut(path)
    with fails_with(ImageFault) as caught:
        label_maps.prepare([path], cube, NUMBERS)
    assert "map.nii.gz" in caught.value.finding.message


@pytest.mark.parametrize(("factor", "shown"), [(255, "to 2"), (-1, "from -0.9"), (np.nan, "from nan")])
def test_maps_that_hold_no_shares_are_named(tmp_path, factor, shown):
    cube = cut_of(nifti(tmp_path / "a.nii"))
    paths = [nifti(tmp_path / f"{code}.nii", data=share * factor) for code, share in shares().items()]
    with pytest.raises(ImageFault) as caught:
        label_maps.prepare(paths, cube, SHARES)
    assert caught.value.finding.code == "map-values"
    assert shown in caught.value.finding.message


def test_a_recipe_names_maps_and_contrasts_only_where_there_are_some():
    plain = Recipe.of_size(16)
    assert not {"maps", "contrasts"} & set(plain.to_json())
    full = Recipe.of_size(16, maps=NUMBERS, contrasts=("T1w", "T2w"))
    assert full.to_json()["maps"]["labels"] == [[2, 1], [3, 2], [41, 3]]
    assert Recipe.from_json(full.to_json()) == full
    assert full.shape == (16, 16, 16, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"maps": {"kind": "mask", "classes": ["a", "b"], "labels": []}},
        {"maps": {"kind": "dseg", "classes": ["a"], "labels": []}},
        {"maps": {"kind": "dseg", "classes": ["a", "b"]}},
        {"maps": {"kind": "dseg", "classes": ["a", "b"], "labels": [[1]]}},
        {"contrasts": ["T1w", "T1w"]},
        {"contrasts": ["T1w", ""]},
    ],
)
def test_an_impossible_recipe_of_maps_or_contrasts_is_named(change):
    with fails_with(ConfigError) as caught:
        Recipe.from_json({"size": 16, "spacing": 8.0, **change})
    assert caught.value.cure


def sheared() -> np.ndarray:
    matrix = affine()
    matrix[1, 2] = matrix[2, 2] * np.tan(np.deg2rad(20))
    return matrix


@pytest.mark.parametrize("codes", ["RAS", "PIL"])
def test_maps_of_a_sheared_image_lie_where_its_affine_says(tmp_path, codes):
    cube = cut_of(reoriented(tmp_path / "a.nii", head(), sheared(), codes), size=32)
    path = reoriented(tmp_path / "map.nii", labels(), sheared(), codes)
    label_map, _ = label_maps.prepare([path], cube, NUMBERS)
    places = {2: 1, 3: 2, 41: 3}
    at = at_places_of(cube, labels(), sheared())
    expected = np.array([places.get(number, 0) for number in range(42)])[at]
    assert all(dice(label_map == number, expected == number) > 0.8 for number in (1, 2, 3))
    parts = [
        reoriented(tmp_path / f"{code}.nii", share, sheared(), codes) for code, share in shares().items()
    ]
    label_map, _ = label_maps.prepare(parts, cube, SHARES)
    assert dice(label_map > 0, at_places_of(cube, sum(shares().values()), sheared()) > 0.5) > 0.9


def dice(one: np.ndarray, other: np.ndarray) -> float:
    return float(2 * (one & other).sum() / (one.sum() + other.sum()))


def test_a_map_is_read_by_the_transform_that_its_image_is_read_by(tmp_path):
    image = written(tmp_path / "a.nii", qform=MIRRORED)
    cube = prepare(image, Recipe(size=24, spacing=8.0, xform="qform")).cut
    path = written(tmp_path / "map.nii", data=labels().astype(np.float32), qform=MIRRORED)
    label_map, _ = label_maps.prepare([path], cube, NUMBERS, "qform")
    plain = nifti(tmp_path / "plain.nii", data=labels(), matrix=MIRRORED)
    np.testing.assert_array_equal(label_map, label_maps.prepare([plain], cube, NUMBERS)[0])
    with fails_with(ImageFault):
        label_maps.prepare([path], cube, NUMBERS)


def test_a_map_whose_scaling_is_no_number_is_named(tmp_path):
    cube = cut_of(nifti(tmp_path / "a.nii"))
    path = written(tmp_path / "map.nii", data=labels().astype(np.float32), scl_slope=1.0, scl_inter=np.nan)
    with fails_with(ImageFault):
        label_maps.prepare([path], cube, NUMBERS)
