"""The way back: what was found on the prepared grid, in the image's own space."""

from __future__ import annotations

import nibabel
import numpy as np
import pytest
from made_images import AXIS_CODES, MIRRORED, affine, head, nifti, written

from trainer.data.images.preprocess import Recipe, prepare
from trainer.inference import space
from trainer.inference.space import VoxelGrid

SHAPE, VOXEL = (48, 56, 44), 4.0  # 192 x 224 x 176 mm


def head_and_map(affine: np.ndarray, shape=SHAPE) -> tuple[np.ndarray, np.ndarray]:
    """A head (X, Y, Z) float32 and its label map, both functions of the millimetres, without symmetry."""
    x, y, z = np.moveaxis(millimetres(affine, shape), -1, 0)
    inside = (x / 70) ** 2 + (y / 85) ** 2 + (z / 65) ** 2 < 1
    texture = np.random.default_rng(0).uniform(0, 60, shape)
    data = np.where(inside, 500 + x + 2 * y - z + texture, 0).astype(np.float32)
    return data, truth(x, y, z)


def truth(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    labels = np.zeros(x.shape, np.uint8)
    labels[((x - 20) / 35) ** 2 + ((y + 10) / 45) ** 2 + (z / 40) ** 2 < 1] = 1
    labels[((x + 35) / 18) ** 2 + ((y - 30) / 25) ** 2 + ((z - 20) / 20) ** 2 < 1] = 2
    return labels


def millimetres(affine: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    places = np.moveaxis(np.indices(shape), 0, -1).astype(np.float64)
    return nibabel.affines.apply_affine(affine, places)


def centred(matrix: np.ndarray, shape=SHAPE, middle=(0.0, 0.0, 0.0)) -> np.ndarray:
    affine = np.eye(4)
    affine[:3, :3] = matrix
    affine[:3, 3] = np.array(middle) - matrix @ ((np.array(shape) - 1) / 2)
    return affine


def stored(tmp_path, codes: str, voxel=(VOXEL,) * 3, tilt=0.0):
    """A file whose axes run as `codes` say, tilted about the x axis by so many degrees."""
    lengths = np.array(SHAPE) * VOXEL
    orientation = nibabel.orientations.axcodes2ornt(tuple(codes))
    order = orientation[:, 0].astype(int)
    shape = tuple(round(lengths[axis] / voxel[axis]) for axis in order)
    matrix = np.zeros((3, 3))
    for column, (axis, sign) in enumerate(orientation):
        matrix[int(axis), column] = sign * voxel[int(axis)]
    angle = np.deg2rad(tilt)
    turn = np.array([[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]])
    affine = centred(turn @ matrix, shape, middle=(3.0, -5.0, 2.0))
    data, labels = head_and_map(affine, shape)
    return nifti(tmp_path / "scan.nii.gz", data=data, matrix=affine), labels


def there_and_back(path, recipe: Recipe) -> np.ndarray:
    """Prepare the image, take each class's share of every prepared voxel, and bring those back."""
    prepared = prepare(path, recipe)
    source = VoxelGrid(prepared.array.shape[:3], prepared.affine)
    shares = np.zeros((*source.shape, 3), np.float32)
    for half in np.ndindex(2, 2, 2):  # eight places in each voxel
        places = millimetres(source.affine, source.shape) + (np.array(half) - 0.5) * recipe.spacing / 2
        shares += (truth(*np.moveaxis(places, -1, 0))[..., None] == np.arange(3)) / np.float32(8)
    slabs = ((first, shares[first : first + 5]) for first in range(0, len(shares), 5))
    return space.labels_on(VoxelGrid.of_file(path), slabs, source)


def dice(one: np.ndarray, other: np.ndarray) -> float:
    return float(2 * (one & other).sum() / (one.sum() + other.sum()))


def check_map(found: np.ndarray, labels: np.ndarray) -> None:
    assert found.shape == labels.shape and found.dtype == np.uint8
    for number in (1, 2):
        assert dice(found == number, labels == number) > 0.95


@pytest.mark.parametrize("codes", (*AXIS_CODES[::5], "RAS", "LPS"))
def test_a_map_comes_back_whatever_the_order_and_direction_of_the_axes(tmp_path, codes):
    path, labels = stored(tmp_path, codes)
    check_map(there_and_back(path, Recipe(size=64, spacing=4.0)), labels)


@pytest.mark.parametrize("voxel", [(2.0, 2.0, 2.0), (1.5, 3.0, 5.0), (6.0, 2.5, 2.5)])
@pytest.mark.parametrize("spacing", [2.5, 4.0])
def test_a_map_comes_back_whatever_the_size_of_the_voxels(tmp_path, voxel, spacing):
    path, labels = stored(tmp_path, "PIR", voxel)
    check_map(there_and_back(path, Recipe(size=round(200 / spacing), spacing=spacing)), labels)


@pytest.mark.parametrize("codes", ["RAS", "LIP"])
def test_a_map_comes_back_to_a_tilted_image(tmp_path, codes):
    path, labels = stored(tmp_path, codes, (3.0, 3.0, 4.0), tilt=17.0)
    check_map(there_and_back(path, Recipe(size=72, spacing=3.0)), labels)


def test_how_the_slabs_are_cut_makes_no_difference(tmp_path):
    path, _ = stored(tmp_path, "LSP", (3.0, 5.0, 4.0))
    source = VoxelGrid((20, 20, 20), centred(np.diag([7.0, 7.0, 7.0])))
    shares = np.random.default_rng(0).random((20, 20, 20, 4)).astype(np.float32)
    target = VoxelGrid.of_file(path)
    maps = [
        space.labels_on(target, ((f, shares[f : f + n]) for f in range(0, 20, n)), source)
        for n in (1, 3, 7, 20)
    ]
    for other in maps[:-1]:
        np.testing.assert_array_equal(other, maps[-1])
    assert set(np.unique(maps[-1])) == {0, 1, 2, 3}


def test_outside_of_the_source_is_background_up_to_its_outermost_faces():
    """Voxels of 2 mm, 6 of them, about the middle of an image with voxels of 1 mm."""
    source = VoxelGrid((6, 6, 6), centred(np.diag([2.0, 2.0, 2.0]), (6, 6, 6)))
    shares = np.zeros((6, 6, 6, 2), np.float32)
    shares[..., 1] = 1
    target = VoxelGrid((20, 20, 20), centred(np.diag([1.0, -1.0, 1.0]), (20, 20, 20)))
    found = space.labels_on(target, iter([(0, shares[:4]), (4, shares[4:])]), source)
    expected = np.zeros((20, 20, 20), np.uint8)
    expected[4:16, 4:16, 4:16] = 1
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("codes", ["RAS", "PIL"])
def test_a_map_comes_back_to_a_sheared_image(tmp_path, codes):
    matrix = np.diag([VOXEL] * 3)
    matrix[1, 2] = VOXEL * np.tan(np.deg2rad(20))
    shape = (48, 72, 44)
    data, labels = head_and_map(centred(matrix, shape), shape)
    turn = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(centred(matrix)), nibabel.orientations.axcodes2ornt(codes)
    )
    image, truth = (
        nibabel.Nifti1Image(each, centred(matrix, shape)).as_reoriented(turn) for each in (data, labels)
    )
    nibabel.save(image, tmp_path / "scan.nii.gz")
    check_map(
        there_and_back(tmp_path / "scan.nii.gz", Recipe(size=64, spacing=4.0)), np.asarray(truth.dataobj)
    )


def test_a_tilted_target_is_mapped_as_one_along_the_axes():
    """The same voxels, by slabs and, with a tilt that is too small to matter, plane by plane."""
    source, target = (
        VoxelGrid((12,) * 3, centred(np.eye(3), (12,) * 3)),
        centred(np.diag([0.7, -0.9, 1.1]), (20,) * 3),
    )
    shares = np.random.default_rng(0).random((12, 12, 12, 3)).astype(np.float32)
    tilted = target.copy()
    tilted[:3, 0] += 2e-4 * tilted[:3, 1]
    straight, planes = (
        space.labels_on(VoxelGrid((20,) * 3, each), iter([(0, shares[:5]), (5, shares[5:])]), source)
        for each in (target, tilted)
    )
    assert space._axes_of(tilted[:3, :3]) is None
    assert (straight != planes).mean() < 0.005


def test_the_map_of_an_image_whose_transforms_differ_has_both(tmp_path):
    like = written(tmp_path / "a.nii", qform=MIRRORED, sform_code=4, xyzt_units=5)
    space.write_label_map(tmp_path / "map.nii", (head() > 0).astype(np.uint8), like=like)
    found, image = nibabel.load(tmp_path / "map.nii"), nibabel.load(like)
    assert (found.header["sform_code"], found.header["qform_code"]) == (4, 1)
    np.testing.assert_array_equal(found.get_sform(), image.get_sform())
    np.testing.assert_array_equal(found.get_qform(), image.get_qform())


def test_the_map_of_an_image_has_no_transform_that_cannot_be_used(tmp_path):
    like = written(tmp_path / "a.nii", srow_x=0.0, srow_y=0.0, srow_z=0.0)
    space.write_label_map(tmp_path / "map.nii", (head() > 0).astype(np.uint8), like=like)
    found = nibabel.load(tmp_path / "map.nii")
    assert (found.header["sform_code"], found.header["qform_code"]) == (0, 1)
    np.testing.assert_allclose(found.affine, affine(), atol=1e-4)


def test_the_file_has_the_geometry_of_its_image(tmp_path):
    path, labels = stored(tmp_path, "PSL", (1.5, 3.0, 4.0), tilt=11.0)
    image = nibabel.load(path)
    image.set_sform(image.affine, 4)
    image.set_qform(image.affine, 1)
    image.header.set_xyzt_units("mm", "sec")
    nibabel.save(image, path)
    written = tmp_path / "scan_dseg.nii.gz"
    space.write_label_map(written, labels, like=path)
    found = nibabel.load(written)
    assert found.get_data_dtype() == np.uint8
    np.testing.assert_array_equal(np.asarray(found.dataobj), labels)
    np.testing.assert_allclose(found.affine, image.affine, atol=1e-6)
    np.testing.assert_allclose(found.get_qform(), image.get_qform(), atol=1e-4)
    assert (found.header["sform_code"], found.header["qform_code"]) == (4, 1)
    assert found.header.get_xyzt_units() == ("mm", "sec")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["scan.nii", "scan.mgz", "codes-0.nii"])
def test_an_image_of_another_kind_or_without_codes_keeps_its_place(tmp_path, name):
    affine = centred(np.diag([2.0, 2.0, 3.0]), (8, 9, 10), middle=(4.0, 5.0, 6.0))
    labels = np.arange(720).reshape(8, 9, 10).astype(np.uint8) % 3
    if name.endswith("mgz"):
        image = nibabel.MGHImage(labels.astype(np.float32), affine)
    else:
        image = nibabel.Nifti1Image(labels.astype(np.float32), affine)
    if name.startswith("codes"):
        image.set_sform(affine, 0)
        image.set_qform(affine, 0)
    nibabel.save(image, tmp_path / name)
    space.write_label_map(tmp_path / "map.nii", labels, like=tmp_path / name)
    found = nibabel.load(tmp_path / "map.nii")
    np.testing.assert_allclose(found.affine, nibabel.load(tmp_path / name).affine, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(found.dataobj), labels)


def test_volumes_are_in_millilitres():
    grid = VoxelGrid((10, 10, 10), np.diag([2.0, 2.0, 2.5, 1.0]))
    labels = np.zeros((10, 10, 10), np.uint8)
    labels[:5] = 2
    assert space.volumes_ml(labels, grid, 3) == [pytest.approx(5.0), 0.0, pytest.approx(5.0)]
