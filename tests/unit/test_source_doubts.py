"""What is doubtful about a source is asked before anything is written: names, labels, runs, formats."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from made_images import bids, image_of, nifti
from wording import fails_with

from trainer.data.sources import sources
from trainer.data.sources.foreign_files import unread_formats
from trainer.errors import CohortError, ConfigError


def named(root: Path, name: bytes) -> Path:
    """A file name that is not UTF-8, below a folder."""
    return root / os.fsdecode(name)


def bids_with_such_an_image(root: Path) -> Path:
    folder = bids(root, 3)
    image_of(folder, 1).rename(named(image_of(folder, 1).parent, b"sub-01_acq-\xff\xfe_T1w.nii.gz"))
    return folder


def folder_with_such_a_folder(root: Path) -> Path:
    nifti(root / "AD" / "one.nii.gz")
    nifti(root / "NC" / "two.nii.gz")
    (root / "NC").rename(named(root, b"N\xe9C"))
    return root


def table_beside_such_a_name(root: Path) -> Path:
    folder = named(root, b"caf\xe9")
    nifti(folder / "one.nii.gz")
    nifti(folder / "two.nii.gz", seed=1)
    (folder / "images.csv").write_text("image,diagnosis\none.nii.gz,AD\ntwo.nii.gz,NC\n")
    return folder / "images.csv"


def maps_with_such_a_name(root: Path) -> Path:
    folder = bids(root, 2)
    anat = folder / "derivatives/fast/sub-00/anat"
    nifti(named(anat, b"sub-00_desc-\xff_label-GM_probseg.nii.gz"))
    return folder


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (bids_with_such_an_image, r"sub-01_acq-\xff\xfe_T1w.nii.gz"),
        (folder_with_such_a_folder, r"N\xe9C"),
        (maps_with_such_a_name, r"sub-00_desc-\xff_label-GM_probseg.nii.gz"),
    ],
)
def test_a_file_name_that_is_not_utf8_is_refused_by_name(tmp_path, make, shown):
    with pytest.raises(CohortError) as caught:
        sources.find(make(tmp_path), "diagnosis")
    assert shown in caught.value.message
    assert "Rename" in str(caught.value.cure)
    str(caught.value).encode()  # can be shown anywhere


def test_a_folder_above_whose_name_is_not_utf8_is_no_matter(tmp_path):
    listing = sources.find(table_beside_such_a_name(tmp_path), "diagnosis")
    assert [image.source for image in listing.images] == ["one.nii.gz", "two.nii.gz"]


def test_a_source_folder_whose_own_name_is_not_utf8_is_refused(tmp_path):
    for label in ("AD", "NC"):
        nifti(named(tmp_path, b"caf\xe9") / label / f"{label}.nii.gz")
    with pytest.raises(CohortError) as caught:
        sources.find(named(tmp_path, b"caf\xe9"), "diagnosis")
    assert r"caf\xe9" in caught.value.message


def spellings(root: Path) -> Path:
    for number, label in enumerate(["NC", "nc", "NC", " NC", "AD"]):
        nifti(root / label / f"s{number}.nii.gz", seed=number)
    return root


def test_labels_that_differ_by_case_or_blanks_only_are_asked_about(tmp_path):
    with pytest.raises(CohortError) as caught:
        sources.find(spellings(tmp_path), "diagnosis")
    assert "'NC' (2), ' NC' (1), 'nc' (1)" in caught.value.message
    assert "--classes" in str(caught.value.cure)


def test_labels_that_differ_by_case_are_taken_as_asked_for(tmp_path):
    root = spellings(tmp_path)
    both = sources.find(root, "diagnosis", classes=["NC", "nc", "AD", " NC"])
    assert all(not image.findings for image in both.images)
    one = sources.find(root, "diagnosis", classes=["NC", "AD"])
    left_out = [image.source for image in one.images if image.findings]
    assert left_out == [" NC/s3.nii.gz", "nc/s1.nii.gz"]


@pytest.mark.parametrize("name", ["participants.tsv", "participants.csv"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_participants_are_read_with_any_of_the_delimiters(tmp_path, name, delimiter):
    root = bids(tmp_path, 3)
    text = (root / "participants.tsv").read_text()
    (root / "participants.tsv").unlink()
    (root / name).write_text(text.replace("\t", delimiter))
    listing = sources.find(root, "diagnosis")
    assert [(image.label, image.age) for image in listing.images] == [
        ("AD", 60.0),
        ("NC", 61.0),
        ("AD", 62.0),
    ]


def test_two_tables_of_participants_are_asked_about(tmp_path):
    root = bids(tmp_path, 2)
    (root / "participants.csv").write_text("participant_id,diagnosis\nsub-00,NC\nsub-01,AD\n")
    with fails_with(CohortError):
        sources.find(root, "diagnosis")


def with_runs(root: Path) -> Path:
    """Subject 00 has one image without a run, 01 runs 01 and 2, 02 run 1."""
    folder = bids(root, 3)
    for number, runs in ((1, ("01", "2")), (2, ("1",))):
        image_of(folder, number).unlink()
        for run in runs:
            name = f"sub-{number:02d}_run-{run}_T1w.nii.gz"
            nifti(image_of(folder, number).with_name(name), seed=10 * number + int(run))
    return folder


def test_without_a_choice_a_second_run_is_bad_and_its_cure_names_the_option(tmp_path):
    listing = sources.find(with_runs(tmp_path), "diagnosis")
    (second,) = [image for image in listing.images if image.findings]
    assert second.source.endswith("sub-01_run-2_T1w.nii.gz")
    assert second.findings[0].code == "duplicate-subject"
    assert "--run 1" in second.findings[0].cure


@pytest.mark.parametrize(("run", "taken"), [(1, "sub-01_run-01_T1w"), (2, "sub-01_run-2_T1w")])
def test_a_run_can_be_chosen(tmp_path, run, taken):
    listing = sources.find(with_runs(tmp_path), "diagnosis", run=run)
    names = [Path(image.source).name.removesuffix(".nii.gz") for image in listing.images]
    assert names == ["sub-00_T1w", taken, "sub-02_run-1_T1w"]
    findings = [finding.code for image in listing.images for finding in image.findings]
    assert findings == ([] if run == 1 else ["missing-run"])


@pytest.mark.parametrize(("run", "taken"), [(1, "sub-01_T1w"), (2, "sub-01_run-2_T1w")])
def test_beside_an_image_without_a_run_a_run_can_be_chosen_too(tmp_path, run, taken):
    root = bids(tmp_path, 3)
    nifti(image_of(root, 1).with_name("sub-01_run-2_T1w.nii.gz"), seed=9)
    nifti(image_of(root, 2).with_name("sub-02_run-1_T1w.nii.gz"), seed=10)
    listing = sources.find(root, "diagnosis", run=run)
    assert not any(image.findings for image in listing.images)
    assert [image.source for image in listing.images][1] == f"sub-01/anat/{taken}.nii.gz"
    second = sources.find(root, "diagnosis").images[1 + 1]
    assert "--run 2" in second.findings[0].cure


def test_the_run_chosen_holds_for_further_contrasts(tmp_path):
    root = bids(tmp_path, 2)
    for number in range(2):
        for run in (1, 2):
            nifti(image_of(root, number).with_name(f"sub-{number:02d}_run-{run}_T2w.nii.gz"), seed=run)
    listing = sources.find(root, "diagnosis", contrasts=("T1w", "T2w"), run=2)
    assert [image.contrasts[0].path.name for image in listing.images] == [
        "sub-00_run-2_T2w.nii.gz",
        "sub-01_run-2_T2w.nii.gz",
    ]
    without = sources.find(root, "diagnosis", contrasts=("T1w", "T2w"))
    assert "--run" in without.images[0].findings[0].cure


def test_a_run_that_nobody_has_is_an_error(tmp_path):
    with pytest.raises(CohortError) as caught:
        sources.find(with_runs(tmp_path / "b"), "diagnosis", run=7)
    assert "1, 2" in str(caught.value)
    nifti(tmp_path / "f" / "AD" / "x.nii.gz")
    with fails_with(ConfigError):
        sources.find(tmp_path / "f", "diagnosis", run=1)


def foreign(root: Path) -> None:
    """Files of other formats, each in its way of being recognised."""
    root.mkdir(parents=True, exist_ok=True)
    for name in ("a.mha", "b.mhd", "b.raw", "c.PAR", "c.REC", "d.nrrd", "e.dcm", "f.IMA", "g+orig.HEAD"):
        (root / name).write_bytes(b"x")
    for name in ("I0001", "1.2.840.113619.2.5"):
        (root / name).write_bytes(bytes(128) + b"DICM" + bytes(20))
    for name in ("README", "g+orig.BRIK", "notes.txt", ".hidden.mha"):
        (root / name).write_bytes(b"x")


def test_files_of_other_formats_are_counted_by_format(tmp_path):
    foreign(tmp_path)
    said = [finding.message for finding in unread_formats([tmp_path], tmp_path)]
    assert said == [
        "4 files of DICOM are not read: 1.2.840.113619.2.5, I0001, e.dcm, ...",
        "2 files of MetaImage (.mha, .mhd) are not read: a.mha, b.mhd.",
        "1 file of AFNI (.HEAD, .BRIK) is not read: g+orig.HEAD.",
        "1 file of NRRD (.nrrd, .nhdr) is not read: d.nrrd.",
        "1 file of Philips PAR/REC is not read: c.PAR.",
    ]
    assert "cingulum dicom" in unread_formats([tmp_path], tmp_path)[0].cure


@pytest.mark.parametrize("layout", ["bids", "folder"])
def test_files_of_other_formats_beside_images_are_named(tmp_path, layout):
    if layout == "bids":
        foreign(image_of(bids(tmp_path, 2), 0).parent)
    else:
        foreign(tmp_path / "AD")
        nifti(tmp_path / "AD" / "x.nii.gz")
        nifti(tmp_path / "NC" / "y.nii.gz")
    listing = sources.find(tmp_path, "diagnosis")
    assert [finding.code for finding in listing.findings] == ["other-format"] * 5


def test_a_source_that_holds_other_formats_only_says_which(tmp_path):
    (tmp_path / "AD").mkdir()
    (tmp_path / "AD" / "x.mha").write_bytes(b"x")
    with pytest.raises(CohortError) as caught:
        sources.find(tmp_path, "diagnosis")
    assert "MetaImage" in str(caught.value)
