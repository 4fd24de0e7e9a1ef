"""Every format, byte order, scaling and orientation that nibabel reads gives the same image."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
from made_images import AXIS_CODES, affine, head, nifti
from wording import fails_with

from trainer.data.images import quality, reading
from trainer.data.images.findings import ImageFault
from trainer.data.images.preprocess import Recipe, prepare

# nibabel 5.4 leaves the file of an MGH image, and those of damaged images, to the garbage collector to close.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NIBABEL_DATA = Path(nibabel.__file__).parent / "tests" / "data"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (nibabel.Nifti1Image, "a.nii"),
        (nibabel.Nifti1Image, "a.nii.gz"),
        (nibabel.Nifti1Image, "a.nii.bz2"),
        (nibabel.Nifti1Pair, "a.img"),
        (nibabel.Nifti1Pair, "a.hdr"),
        (nibabel.Nifti2Image, "a.nii"),
        (nibabel.Nifti2Image, "a.nii.gz"),
        (nibabel.Nifti2Pair, "a.img"),
        (nibabel.MGHImage, "a.mgh"),
        (nibabel.MGHImage, "a.mgz"),
    ],
)
def test_every_format_gives_the_values_and_the_affine_that_were_written(tmp_path, kind, name):
    nibabel.save(kind(head(), affine()), tmp_path / name)
    image = reading.read(tmp_path / name)
    np.testing.assert_array_equal(image.data, head())
    np.testing.assert_allclose(image.affine, affine(), atol=1e-4)
    assert image.data.dtype == np.float32
    assert image.oriented


def test_a_pair_is_opened_by_either_of_its_files(tmp_path):
    nibabel.save(nibabel.Nifti1Pair(head(), affine()), tmp_path / "a.img")
    by_header, by_data = reading.read(tmp_path / "a.hdr"), reading.read(tmp_path / "a.img")
    np.testing.assert_array_equal(by_header.data, by_data.data)
    assert reading.files_of(tmp_path / "a.hdr") == reading.files_of(tmp_path / "a.img")


@pytest.mark.parametrize("name", ["a.img", "a.hdr"])
def test_analyze_is_read_and_said_to_have_no_orientation(tmp_path, name):
    nibabel.save(nibabel.AnalyzeImage(head(), np.diag([8.0, 8.0, 8.0, 1.0])), tmp_path / "a.img")
    image = reading.read(tmp_path / name)
    np.testing.assert_array_equal(image.data, head())
    assert not image.oriented
    assert "unoriented" in {finding.code for finding in quality.check(image)}


@pytest.mark.parametrize("name", ["minc1_1_scale.mnc", "minc2_1_scale.mnc", "small.mnc"])
def test_minc_is_read(name):
    image = reading.read(NIBABEL_DATA / name)
    np.testing.assert_allclose(image.data, nibabel.load(NIBABEL_DATA / name).get_fdata(), rtol=1e-6)
    assert image.format in ("Minc1Image", "Minc2Image")


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "f4", "f8"])
def test_byte_order_and_type_on_disk_make_no_difference(tmp_path, order, dtype):
    values = np.round(head() / 4)
    header = nibabel.Nifti1Header(endianness=order)
    header.set_data_dtype(dtype)
    nibabel.save(nibabel.Nifti1Image(values.astype(dtype), affine(), header), tmp_path / "a.nii")
    image = reading.read(tmp_path / "a.nii")
    np.testing.assert_array_equal(image.data, values)
    assert (tmp_path / "a.nii").read_bytes()[:4] == (348).to_bytes(4, "little" if order == "<" else "big")


@pytest.mark.parametrize("order", ["<", ">"])
def test_scaled_integers_are_read_with_slope_and_intercept(tmp_path, order):
    stored = np.round(head()).astype(np.int16)
    header = nibabel.Nifti1Header(endianness=order)
    header.set_data_dtype(np.int16)
    image = nibabel.Nifti1Image(stored, affine(), header)
    image.header.set_slope_inter(0.25, -12.5)
    nibabel.save(image, tmp_path / "a.nii.gz")
    # nibabel chooses its own slope when it saves; write ours over it.
    plain = tmp_path / "b.nii"
    raw = bytearray(nibabel.Nifti1Image(stored, affine(), header).to_bytes())
    raw[112:120] = np.array([0.25, -12.5], dtype=f"{order}f4").tobytes()
    plain.write_bytes(raw)
    np.testing.assert_allclose(reading.read(plain).data, stored * 0.25 - 12.5, rtol=1e-6)


def test_there_are_48_orientations():
    assert len(AXIS_CODES) == len(set(AXIS_CODES)) == 48


@pytest.fixture(scope="module")
def ras(tmp_path_factory):
    path = nifti(
        tmp_path_factory.mktemp("ras") / "a.nii", data=head((20, 26, 23)), matrix=affine((8.0, 7.0, 7.5))
    )
    return path, prepare(path, Recipe.of_size(24))


@pytest.mark.parametrize("codes", AXIS_CODES)
def test_every_orientation_gives_the_same_volume(tmp_path, ras, codes):
    path, expected = ras
    stored = nibabel.load(path)
    moved = stored.as_reoriented(
        nibabel.orientations.ornt_transform(
            nibabel.io_orientation(stored.affine), nibabel.orientations.axcodes2ornt(codes)
        )
    )
    assert "".join(nibabel.aff2axcodes(moved.affine)) == codes
    nibabel.save(moved, tmp_path / "a.nii")
    prepared = prepare(tmp_path / "a.nii", Recipe.of_size(24))
    assert prepared.array.tobytes() == expected.array.tobytes()
    np.testing.assert_allclose(prepared.affine, expected.affine, atol=1e-3)


def test_a_copy_in_another_format_and_orientation_has_the_same_content_hash(tmp_path, ras):
    path, _ = ras
    stored = nibabel.load(path)
    flipped = stored.as_reoriented(np.array([[2, -1], [0, 1], [1, -1]]))
    nibabel.save(nibabel.MGHImage(np.asarray(flipped.dataobj), flipped.affine), tmp_path / "a.mgz")
    assert quality.content_sha256(reading.read(tmp_path / "a.mgz")) == quality.content_sha256(
        reading.read(path)
    )


def test_trailing_axes_of_length_one_are_dropped(tmp_path):
    image = reading.read(nifti(tmp_path / "a.nii", data=head()[..., None]))
    np.testing.assert_array_equal(image.data, head())
    image = reading.read(nifti(tmp_path / "b.nii", data=head()[..., None, None]))
    np.testing.assert_array_equal(image.data, head())


def test_a_four_dimensional_image_needs_a_choice_of_volume(tmp_path):
    path = nifti(tmp_path / "a.nii.gz", data=np.stack([head(seed=0), head(seed=1)], axis=-1))
    with fails_with(ImageFault) as caught:
        reading.read(path)
    assert "--volume N" in caught.value.cure
    np.testing.assert_array_equal(reading.read(path, volume=1).data, head(seed=1))
    with fails_with(ImageFault):
        reading.read(path, volume=2)


def test_minc_of_four_dimensions_needs_a_choice_too():
    with pytest.raises(ImageFault) as caught:
        reading.read(NIBABEL_DATA / "minc2_4d.mnc")
    assert caught.value.finding.code == "four-dimensional"
