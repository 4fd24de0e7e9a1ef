"""What a NIfTI header says is compared field by field; what contradicts is named, and nothing is guessed."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel
import numpy as np
import pytest
from made_images import MIRRORED, affine, head, nifti, turned, written

from trainer.data.images import quality, reading
from trainer.data.images.findings import Finding, ImageFault
from trainer.data.images.preprocess import Recipe, prepare

# nibabel 5.4 leaves the file of an MGH image, and those of damaged images, to the garbage collector to close.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LARGER = affine((10.0, 10.0, 10.0))


def remarks(path: Path, **options) -> list[Finding]:
    return list(reading.read(path, **options).remarks)


def fault(path: Path, **options) -> Finding:
    with pytest.raises(ImageFault) as caught:
        reading.read(path, **options)
    assert "Copy or download" not in caught.value.finding.cure
    return caught.value.finding


def volume(path: Path, **options) -> bytes:
    return prepare(path, Recipe(size=24, spacing=8.0, **options)).array.tobytes()


NO_SFORM = {f"srow_{axis}": 0.0 for axis in "xyz"}


# Two transforms that contradict each other.


@pytest.mark.parametrize(
    ("qform", "words"),
    [
        (MIRRORED, "left and right exchanged"),
        (LARGER, "other voxel sizes"),
        (np.diag([-1.0, -1, 1, 1]) @ affine(), "other axes"),
    ],
)
def test_transforms_that_contradict_each_other_are_a_finding_with_both(tmp_path, qform, words):
    path = written(tmp_path / "a.nii", qform=qform)
    [finding] = remarks(path)
    assert (finding.code, finding.severity) == ("xform", "warning")
    assert words in finding.message
    assert (
        "sform (code 1: 8 x 8 x 8 mm, axes RAS)" in finding.message and "qform (code 1: " in finding.message
    )
    assert "the sform was taken" in finding.message
    assert "--xform qform" in finding.cure and "--xform sform" in finding.cure
    assert finding in quality.check(reading.read(path))
    assert quality.facts(reading.read(path)).xform == "sform"


@pytest.mark.parametrize("qform", [MIRRORED, LARGER])
def test_the_chosen_transform_counts_and_its_choice_is_noted(tmp_path, qform):
    path = written(tmp_path / "a.nii", qform=qform)
    by_sform, by_qform = (
        nifti(tmp_path / f"{number}.nii", matrix=matrix) for number, matrix in enumerate((affine(), qform))
    )
    assert volume(by_sform) != volume(by_qform)
    assert volume(path) == volume(path, xform="sform") == volume(by_sform)
    assert volume(path, xform="qform") == volume(by_qform)
    assert reading.read(path, xform="qform").xform == "qform"
    for chosen in ("sform", "qform"):
        assert [finding.severity for finding in remarks(path, xform=chosen)] == ["note"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"qform": turned(5)}, "tilted against each other by 5.0 degrees"),
        ({"qform": turned(0.3)}, None),
        ({"qform": turned(5), "sform_code": 4}, None),
        ({"qform": MIRRORED, "sform_code": 4}, "left and right"),
        ({"qform": affine((8.02, 8.0, 8.0))}, None),
        ({"qoffset_x": -60.0}, "20 mm apart"),
        ({"qoffset_x": -78.0}, None),
        ({"qoffset_x": -60.0, "sform_code": 2}, None),
    ],
)
def test_tilt_and_place_must_agree_where_both_codes_name_one_space(tmp_path, fields, words):
    found = [finding.message for finding in remarks(written(tmp_path / "a.nii", **fields))]
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


def test_an_sform_of_zeros_gives_way_to_a_good_qform_and_both_are_told(tmp_path):
    path = written(tmp_path / "a.nii", qform=MIRRORED, **NO_SFORM)
    [finding] = remarks(path)
    assert (finding.code, finding.severity) == ("xform", "warning")
    assert "its sform (code 1) is all zero" in finding.message
    assert "the qform was taken (code 1: 8 x 8 x 8 mm, axes LAS)" in finding.message
    assert volume(path) == volume(nifti(tmp_path / "b.nii", matrix=MIRRORED))
    assert [finding.severity for finding in remarks(path, xform="qform")] == ["note"]
    refused = fault(path, xform="sform")
    assert "can be used" in refused.message and "--xform qform" in refused.cure


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({"srow_x": np.nan}, "qform"),
        ({"srow_x": [0, 0, 0, 7]}, "qform"),
        ({"quatern_b": np.nan}, "sform"),
        ({"quatern_b": 1.3}, "sform"),
        ({"pixdim": {2: 0.0}}, "sform"),
    ],
)
def test_a_transform_that_cannot_be_used_gives_way_to_the_other(tmp_path, fields, taken):
    path = written(tmp_path / "a.nii", **fields)
    image = reading.read(path)
    assert image.xform == taken
    np.testing.assert_allclose(image.affine, affine(), atol=1e-4)
    assert [finding.code for finding in image.remarks] == ["xform"]
    assert f"the {taken} was taken" in image.remarks[0].message


def test_without_a_usable_transform_the_message_names_both(tmp_path):
    finding = fault(written(tmp_path / "a.nii", qform_code=0, **NO_SFORM))
    assert finding.code == "affine"
    assert "sform (code 1) is all zero" in finding.message and "no qform (qform_code is 0)" in finding.message
    finding = fault(written(tmp_path / "b.nii", quatern_c=np.inf, **NO_SFORM))
    assert "its sform" in finding.message and "its qform" in finding.message


def test_a_transform_that_is_chosen_and_missing_is_noted(tmp_path):
    [finding] = remarks(written(tmp_path / "a.nii", qform_code=0), xform="qform")
    assert finding.severity == "note" and "no qform (qform_code is 0)" in finding.message
    found = remarks(written(tmp_path / "b.nii", qform_code=0, pixdim={1: 2.0}), xform="qform")
    assert [finding.severity for finding in found] == ["warning", "note"]


def test_sizes_of_pixdim_are_compared_with_the_only_transform(tmp_path):
    path = written(tmp_path / "a.nii", qform_code=0, pixdim={1: 2.0, 2: 2.0, 3: 2.0})
    [finding] = remarks(path)
    assert "voxels of 8 x 8 x 8 mm, its pixdim 2 x 2 x 2 mm; the sform was taken" in finding.message
    assert [finding.severity for finding in remarks(path, xform="sform")] == ["note"]


@pytest.mark.parametrize("code", [5, 7, 99])
def test_a_code_that_nibabel_does_not_know_still_means_that_the_transform_is_set(tmp_path, code):
    path = written(tmp_path / "a.nii", qform=MIRRORED, sform_code=code)
    assert reading.read(path).xform == "sform"


# Where the voxels begin.


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize("offset", [0, 16, 100, 350, -1, 352.5, 1e9, np.nan, np.inf])
def test_an_impossible_vox_offset_counts_as_the_end_of_the_header(tmp_path, name, offset):
    path = written(tmp_path / name, vox_offset=offset)
    image = reading.read(path)
    np.testing.assert_array_equal(image.data, head())
    [finding] = image.remarks
    assert (finding.code, finding.severity) == ("header", "warning")
    assert "vox_offset" in finding.message and "352" in finding.message


@pytest.mark.parametrize("offset", [0, 352, -16, 10**9])
def test_in_nifti_2_it_counts_as_544(tmp_path, offset):
    path = written(tmp_path / "a.nii", nibabel.Nifti2Image, vox_offset=offset)
    image = reading.read(path)
    np.testing.assert_array_equal(image.data, head())
    assert "544" in image.remarks[0].message


def test_voxels_right_behind_348_bytes_are_read_there(tmp_path):
    path = written(tmp_path / "a.nii", vox_offset=348)
    raw = path.read_bytes()
    path.write_bytes(raw[:348] + raw[352:])
    np.testing.assert_array_equal(reading.read(path).data, head())


def with_extension(path: Path, offset: float, extra=b"") -> Path:
    """A file with an extension of 32 bytes, whose voxels begin at 384."""
    raw = written(path, vox_offset=offset).read_bytes()
    extension = np.array([32, 6], "<i4").tobytes() + b"a comment".ljust(24, b"\0")
    path.write_bytes(raw[:348] + b"\1\0\0\0" + extension + raw[352:] + extra)
    return path


def test_voxels_behind_an_extension_are_read_where_the_header_says(tmp_path):
    image = reading.read(with_extension(tmp_path / "a.nii", 384))
    np.testing.assert_array_equal(image.data, head())
    assert image.remarks == ()


@pytest.mark.parametrize("offset", [0, 352, -1, 1e9, np.nan])
def test_behind_an_extension_an_impossible_vox_offset_is_refused_by_name(tmp_path, offset):
    finding = fault(with_extension(tmp_path / "a.nii", offset))
    assert finding.code == "header" and "vox_offset" in finding.message


@pytest.mark.parametrize("offset", [-1, 1e9, np.nan])
def test_where_the_length_of_the_file_does_not_tell_it_is_refused_by_name(tmp_path, offset):
    path = written(tmp_path / "a.nii", vox_offset=offset)
    path.write_bytes(path.read_bytes() + b"trailing")
    finding = fault(path)
    assert finding.code == "header" and "vox_offset" in finding.message


@pytest.mark.parametrize("offset", [368, 356])
def test_any_possible_vox_offset_is_taken_whether_a_multiple_of_16_or_not(tmp_path, offset):
    path = written(tmp_path / "a.nii", vox_offset=offset)
    raw = path.read_bytes()
    path.write_bytes(raw[:352] + bytes(offset - 352) + raw[352:])
    image = reading.read(path)
    np.testing.assert_array_equal(image.data, head())
    assert image.remarks == ()


def test_the_data_of_a_pair_begin_at_0(tmp_path):
    nibabel.save(nibabel.Nifti1Pair(head(), affine()), tmp_path / "a.img")
    raw = bytearray((tmp_path / "a.hdr").read_bytes())
    raw[108:112] = np.float32(-3).tobytes()
    (tmp_path / "a.hdr").write_bytes(raw)
    image = reading.read(tmp_path / "a.img")
    np.testing.assert_array_equal(image.data, head())
    assert "vox_offset" in image.remarks[0].message


# Numbers that are odd but for rounding, and others.


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_a_quaternion_longer_than_1_by_rounding_is_read_as_1(tmp_path, kind):
    half_turn = np.diag([-1.0, -1, 1, 1]) @ affine()  # about z: (0, 0, 1)
    path = written(tmp_path / "a.nii", kind, qform=half_turn, sform_code=0, quatern_d=1.00001)
    image = reading.read(path)
    np.testing.assert_allclose(image.affine, half_turn, atol=1e-4)
    assert image.remarks == ()


def test_a_quaternion_that_is_no_rotation_is_named(tmp_path):
    finding = fault(written(tmp_path / "a.nii", sform_code=0, quatern_d=1.1))
    assert "quatern_b, quatern_c, quatern_d" in finding.message and "1.1" in finding.message


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"scl_slope": 2.0, "scl_inter": np.nan}, "scl_inter"),
        ({"scl_slope": 2.0, "scl_inter": np.inf}, "scl_inter"),
        ({"scl_slope": np.inf, "scl_inter": 0.0}, "scl_slope"),
        ({"scl_slope": -np.inf, "scl_inter": 1.0}, "scl_slope"),
        ({"scl_slope": np.nan, "scl_inter": np.nan}, None),
        ({"scl_slope": 0.0, "scl_inter": np.nan}, None),
        ({"scl_slope": 2.0, "scl_inter": 0.0}, None),
    ],
)
def test_a_scaling_that_is_no_number_is_named_and_left_out(tmp_path, fields, field):
    image = reading.read(written(tmp_path / "a.nii", **fields))
    factor = 2 if fields["scl_slope"] == 2 else 1
    np.testing.assert_array_equal(image.data, factor * head())
    assert [finding.code for finding in image.remarks] == ["scaling"] * (field is not None)
    assert field is None or f"the header's {field} is" in image.remarks[0].message


@pytest.mark.parametrize("value", [0, -1])
def test_a_fourth_dimension_of_0_counts_as_1_where_the_file_holds_one_volume(tmp_path, value):
    image = reading.read(written(tmp_path / "a.nii.gz", dim={0: 4, 4: value}))
    np.testing.assert_array_equal(image.data, head())
    assert "dim[4]" in image.remarks[0].message


def test_a_fourth_dimension_of_0_in_a_file_of_several_volumes_is_refused_by_name(tmp_path):
    several = np.stack([head(), head()], axis=-1)
    finding = fault(written(tmp_path / "a.nii", data=several, dim={4: 0}))
    assert "dim[4]" in finding.message and "2 times the voxels" in finding.message
    assert "number of volumes" in finding.cure


def test_volumes_that_only_the_fourth_dimension_counts_are_refused_by_name(tmp_path):
    several = np.stack([head(), head(seed=1)], axis=-1)
    finding = fault(written(tmp_path / "a.nii", data=several, dim={0: 3}))
    assert "dim[0] is 3, but dim[4] is 2" in finding.message and "Set it to 4" in finding.cure
    assert remarks(written(tmp_path / "b.nii", dim={4: 2})) == []  # the file has one


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dim": {2: 0}}, "dim[2] is 0"),
        ({"dim": {3: -7}}, "dim[3] is -7"),
        ({"dim": {0: 9}}, "dim[0] is 9"),
        ({"dim": {0: 0}}, "dim[0] is 0"),
        ({"datatype": 9999}, "datatype is 9999"),
        ({"datatype": 1}, "datatype is 1"),
        ({"datatype": 512}, "bitpix says 32 bits"),
    ],
)
def test_dimensions_and_types_that_cannot_be_are_named(tmp_path, fields, words):
    finding = fault(written(tmp_path / "a.nii", **fields))
    assert words in finding.message
    assert "Set it to" in finding.cure


def test_a_header_that_nibabel_refuses_blames_the_header(tmp_path):
    finding = fault(written(tmp_path / "a.nii", nibabel.Nifti2Image, eol_check=(1, 2, 3, 4)))
    assert finding.code == "header" and "EOL" in finding.message


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("codes", [{"sform_code": 0}, {"sform_code": 0, "qform_code": 0}])
def test_voxel_sizes_that_are_none_are_named(tmp_path, value, codes):
    finding = fault(written(tmp_path / "a.nii", pixdim={2: value}, **codes))
    assert finding.code == "affine" and f"pixdim is 8, {value:g}, 8" in finding.message


@pytest.mark.parametrize(("handedness", "is_odd"), [(0.0, False), (-2.0, True), (np.nan, True), (5.0, True)])
def test_a_qfac_that_is_neither_sign_is_named_and_read_by_its_sign(tmp_path, handedness, is_odd):
    path = written(tmp_path / "a.nii", sform_code=0, pixdim={0: handedness})
    image = reading.read(path)
    assert np.sign(np.linalg.det(image.affine[:3, :3])) == (-1 if handedness < 0 else 1)
    assert [finding.code for finding in image.remarks] == ["header"] * is_odd
    assert not is_odd or "pixdim[0]" in image.remarks[0].message


def test_a_negative_voxel_size_is_named_where_it_counts(tmp_path):
    image = reading.read(written(tmp_path / "a.nii", sform_code=0, pixdim={1: -8.0}))
    assert "pixdim[1] is -8" in image.remarks[0].message
    np.testing.assert_allclose(image.affine, affine(), atol=1e-4)
    assert remarks(written(tmp_path / "b.nii", qform_code=0, pixdim={1: -8.0})) == []


@pytest.mark.parametrize(("unit", "factor", "name"), [(1, 0.001, "metres"), (3, 1000.0, "micrometres")])
def test_units_are_converted_where_the_sizes_agree_with_them(tmp_path, unit, factor, name):
    scaled = np.diag([factor, factor, factor, 1.0]) @ affine()
    path = written(tmp_path / "a.nii", sform=scaled, qform=scaled, xyzt_units=unit)
    image = reading.read(path)
    np.testing.assert_allclose(image.affine, affine(), rtol=1e-5)
    assert [(f.code, f.severity) for f in image.remarks] == [("units", "note")]
    assert name in image.remarks[0].message


@pytest.mark.parametrize("unit", [1, 3])
def test_units_that_contradict_the_sizes_are_named_and_left_out(tmp_path, unit):
    image = reading.read(written(tmp_path / "a.nii", xyzt_units=unit))
    np.testing.assert_allclose(image.affine, affine(), rtol=1e-6)
    assert [(f.code, f.severity) for f in image.remarks] == [("units", "warning")]
    assert "xyzt_units" in image.remarks[0].message


@pytest.mark.parametrize("unit", [0, 2, 10, 5])
def test_unknown_units_are_millimetres(tmp_path, unit):
    assert remarks(written(tmp_path / "a.nii", xyzt_units=unit)) == []


def test_a_cifti_file_is_no_volume(tmp_path):
    finding = fault(written(tmp_path / "a.nii", nibabel.Nifti2Image, intent_code=3001))
    assert finding.code == "not-a-volume" and "CIFTI" in finding.message


def test_the_voxel_sizes_of_analyze_are_all_that_it_has(tmp_path):
    nibabel.save(nibabel.AnalyzeImage(head(), np.diag([8.0, 8, 8, 1])), tmp_path / "a.img")
    raw = bytearray((tmp_path / "a.hdr").read_bytes())
    for value, words in ((0.0, "pixdim is 8, 0, 8"), (np.nan, "pixdim is 8, nan, 8")):
        raw[84:88] = np.float32(value).tobytes()
        (tmp_path / "a.hdr").write_bytes(raw)
        assert words in fault(tmp_path / "a.img").message
    raw[84:88] = np.float32(-8).tobytes()
    (tmp_path / "a.hdr").write_bytes(raw)
    [finding] = remarks(tmp_path / "a.img")
    assert "pixdim[2] is -8" in finding.message


def test_an_mgh_header_whose_place_is_not_valid_does_not_say_which_side_is_left(tmp_path):
    for name in ("a.mgh", "a.mgz"):
        nibabel.save(nibabel.MGHImage(head(), affine()), tmp_path / name)
        assert reading.read(tmp_path / name).oriented
        opener = gzip.open if name.endswith("z") else open
        with opener(tmp_path / name, "rb") as file:
            raw = bytearray(file.read())
        raw[28:30] = bytes(2)
        with opener(tmp_path / name, "wb") as file:
            file.write(raw)
        assert "unoriented" in {finding.code for finding in quality.check(reading.read(tmp_path / name))}


# Headers without contradictions.


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("codes", [(1, 1), (2, 0), (0, 1), (4, 2), (0, 0)])
@pytest.mark.parametrize("matrix", [affine(), MIRRORED, turned(17), affine((1.1, 0.9, 3.3))])
def test_a_clean_header_is_read_as_nibabel_reads_it_whatever_transform_is_chosen(
    tmp_path, kind, codes, matrix
):
    image = kind(np.round(head()).astype(np.int16), matrix)
    image.set_sform(matrix, codes[0])
    image.set_qform(matrix, codes[1])
    path = tmp_path / "a.nii"
    nibabel.save(image, path)
    reference = nibabel.load(path)
    for chosen in (None, *(name for name, code in zip(("sform", "qform"), codes, strict=True) if code)):
        ours = reading.read(path, xform=chosen)
        assert ours.data.tobytes() == np.asarray(reference.dataobj, np.float32).tobytes()
        assert ours.remarks == ()
        if chosen != "qform" or not codes[0]:
            assert ours.affine.tobytes() == np.asarray(reference.affine, np.float64).tobytes()
        np.testing.assert_allclose(ours.affine, reference.affine, atol=1e-4)
