"""A damaged file gives a named fault with a cure, and nothing else, whatever the damage."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import nibabel
import numpy as np
import pytest
from made_images import affine, cut, gzip_of, head, nifti
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


def fault(path: Path) -> str:
    with pytest.raises(ImageFault) as caught:
        reading.read(path)
    assert str(path) in caught.value.message
    assert caught.value.cure
    return caught.value.finding.code


def test_a_missing_file_is_named(tmp_path):
    assert fault(tmp_path / "a.nii") == "missing-file"


def test_a_link_to_nowhere_is_named(tmp_path):
    (tmp_path / "a.nii").symlink_to(tmp_path / "annex")
    assert fault(tmp_path / "a.nii") == "broken-link"


def test_a_folder_is_not_a_file(tmp_path):
    (tmp_path / "a.nii").mkdir()
    assert fault(tmp_path / "a.nii") == "not-a-file"


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    path = nifti(tmp_path / "a.nii")
    opened = Path.open

    def refuse(self, *args, **kwargs):
        if self == path:
            raise PermissionError(13, "Permission denied")
        return opened(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)  # the tests may run as root, who may read anything
    assert fault(path) == "unreadable"


def test_an_empty_file_is_named(tmp_path):
    (tmp_path / "a.nii.gz").touch()
    assert fault(tmp_path / "a.nii.gz") == "empty-file"


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_a_truncated_gzip_file_is_named(tmp_path, share):
    path = nifti(tmp_path / "a.nii.gz")
    cut(path, share)
    assert fault(path) == "truncated"


@pytest.mark.parametrize("share", [0.5, 0.999])
def test_a_truncated_plain_file_is_named(tmp_path, share):
    path = nifti(tmp_path / "a.nii")
    cut(path, share)
    assert fault(path) == "truncated"


def test_a_file_of_another_kind_is_named(tmp_path):
    (tmp_path / "a.nii").write_bytes(b"not an image at all" * 100)
    assert fault(tmp_path / "a.nii") == "wrong-magic"
    assert fault(gzip_of(b"not an image at all" * 100, tmp_path / "b.nii.gz")) == "wrong-magic"


def test_a_name_that_lies_about_compression_is_named(tmp_path):
    nifti(tmp_path / "a.nii").rename(tmp_path / "b.nii.gz")
    assert fault(tmp_path / "b.nii.gz") == "wrong-magic"
    nifti(tmp_path / "c.nii.gz").rename(tmp_path / "d.nii")
    assert fault(tmp_path / "d.nii") == "wrong-magic"


def test_dicom_is_named_with_its_converter(tmp_path):
    (tmp_path / "a.img").write_bytes(b"\0" * 128 + b"DICM" + b"\0" * 500)
    (tmp_path / "a.hdr").write_bytes(b"\0" * 348)
    with pytest.raises(ImageFault) as caught:
        reading.read(tmp_path / "a.img")
    assert "cingulum dicom" in caught.value.cure


def test_half_of_a_pair_is_named(tmp_path):
    nibabel.save(nibabel.AnalyzeImage(head(), affine()), tmp_path / "a.img")
    (tmp_path / "a.hdr").unlink()
    with fails_with(ImageFault):
        reading.read(tmp_path / "a.img")


@pytest.mark.parametrize("shape", [(16, 16), (16, 16, 1), (1, 16, 16)])
def test_a_single_slice_is_named(tmp_path, shape):
    assert fault(nifti(tmp_path / "a.nii", data=np.ones(shape, np.float32))) == "two-dimensional"


def test_five_dimensions_are_named(tmp_path):
    assert fault(nifti(tmp_path / "a.nii", data=np.ones((8, 8, 8, 1, 3), np.float32))) == "five-dimensional"


def test_colours_and_complex_values_are_named(tmp_path):
    colours = np.zeros((8, 8, 8), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    assert fault(nifti(tmp_path / "a.nii", data=colours)) == "colour"
    assert fault(nifti(tmp_path / "b.nii", data=np.ones((8, 8, 8), np.complex64))) == "voxel-type"


def test_a_surface_is_not_a_volume(tmp_path):
    gifti = nibabel.gifti.GiftiImage()
    nibabel.save(gifti, tmp_path / "a.gii")
    assert fault(tmp_path / "a.gii") == "not-a-volume"


def test_a_header_that_asks_for_too_many_voxels_is_named(tmp_path):
    path = nifti(tmp_path / "a.nii")
    raw = bytearray(path.read_bytes())
    raw[42:48] = np.array([30000, 30000, 30000], "<i2").tobytes()
    path.write_bytes(raw)
    assert fault(path) == "too-large"


def test_a_fault_comes_whole_through_a_worker_process(tmp_path):
    with pytest.raises(ImageFault) as caught:
        reading.read(tmp_path / "a.nii")
    sent = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  as multiprocessing does
    assert (str(sent), sent.finding) == (str(caught.value), caught.value.finding)


def _examples(tmp_path: Path) -> list[Path]:
    made = []
    for kind, name in (
        (nibabel.Nifti1Image, "a.nii"),
        (nibabel.Nifti2Image, "b.nii"),
        (nibabel.Nifti1Image, "c.nii.gz"),
        (nibabel.MGHImage, "d.mgz"),
        (nibabel.MGHImage, "d.mgh"),
    ):
        nibabel.save(kind(head((9, 10, 11)), affine()), tmp_path / name)
        made.append(tmp_path / name)
    for name in ("minc1_1_scale.mnc", "minc2_1_scale.mnc"):
        made.append(tmp_path / name)
        made[-1].write_bytes((NIBABEL_DATA / name).read_bytes())
    return made


def test_random_damage_gives_an_image_or_a_fault_and_never_another_error(tmp_path):
    random = np.random.default_rng(0)
    faults = 0
    for path in _examples(tmp_path):
        whole = path.read_bytes()
        for _ in range(40):
            raw = bytearray(whole)
            # Headers matter most: half of the damage goes to the first 400 bytes.
            for place in random.integers(0, 400 if random.random() < 0.5 else len(raw), 6):
                raw[place % len(raw)] = random.integers(256)
            path.write_bytes(raw[: len(raw) if random.random() < 0.7 else random.integers(1, len(raw))])
            try:
                with warnings.catch_warnings():
                    prepare(path, Recipe.of_size(16))
            except ImageFault:
                faults += 1
        path.write_bytes(whole)
        assert quality.facts(reading.read(path)).not_finite == 0
    assert faults > 50
