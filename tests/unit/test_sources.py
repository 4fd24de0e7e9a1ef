"""The three layouts of a source are listed with who is on each image and its label; faults are named."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
from made_images import affine, bids, head, image_of, nifti
from wording import fails_with

from trainer.data.sources import sources
from trainer.data.sources.listing import SourceListing
from trainer.errors import CohortError


def codes(listing: SourceListing) -> list[list[str]]:
    return [[finding.code for finding in image.findings] for image in listing.images]


def test_a_bids_folder_is_listed_with_its_participants(tmp_path):
    listing = sources.find(bids(tmp_path / "cohort", 3), "diagnosis")
    assert (listing.kind, listing.name) == ("bids", "test")
    first = listing.images[0]
    assert (first.subject, first.label, first.age, first.sex) == ("00", "AD", 60.0, "M")
    assert first.source == "sub-00/anat/sub-00_T1w.nii.gz"
    assert codes(listing) == [[], [], []]


def test_sessions_take_their_own_label_from_the_sessions_file(tmp_path):
    root = bids(tmp_path, 2)
    for session, seed in (("ses-1", 7), ("ses-2", 8)):
        nifti(root / "sub-01" / session / "anat" / f"sub-01_{session}_T1w.nii.gz", seed=seed)
    table = "session_id\tdiagnosis\tage\nses-1\tsMCI\t70\nses-2\tAD\t72\n"
    (root / "sub-01" / "sub-01_sessions.tsv").write_text(table)
    by_session = {(i.subject, i.session): (i.label, i.age) for i in sources.find(root, "diagnosis").images}
    assert by_session[("01", "1")] == ("sMCI", 70.0)
    assert by_session[("01", "2")] == ("AD", 72.0)
    assert by_session[("00", None)] == ("AD", 60.0)


def test_another_contrast_can_be_asked_for(tmp_path):
    root = bids(tmp_path, 2)
    for number in range(2):
        nifti(image_of(root, number).with_name(f"sub-{number:02d}_T2w.nii.gz"), seed=number + 9)
    assert all("T2w" in image.source for image in sources.find(root, "diagnosis", contrast="T2w").images)
    with pytest.raises(CohortError) as caught:
        sources.find(root, "diagnosis", contrast="FLAIR")
    assert "T1w, T2w" in caught.value.cure


def test_tissue_maps_of_derivatives_are_found(tmp_path):
    root = bids(tmp_path, 2)
    for code in ("GM", "WM", "CSF"):
        nifti(root / "derivatives/fast/sub-00/anat" / f"sub-00_label-{code}_probseg.nii.gz")
    first, second = sources.find(root, "diagnosis").images
    assert [tissue for tissue, _ in first.tissue_maps] == ["grey", "white", "csf"]
    assert second.tissue_maps == ()


def test_labels_may_come_from_another_table(tmp_path):
    root = bids(tmp_path / "b", 2)
    (root / "participants.tsv").unlink()
    (tmp_path / "labels.csv").write_text("subject,group\n00,A\nsub-01,B\n")
    listing = sources.find(root, "group", labels=tmp_path / "labels.csv")
    assert [image.label for image in listing.images] == ["A", "B"]


def test_sub_folders_give_labels(tmp_path):
    nifti(tmp_path / "AD" / "one.nii.gz")
    nifti(tmp_path / "NC" / "two" / "T1.nii.gz")
    nifti(tmp_path / "NC" / "three" / "visit2" / "T1.nii.gz")
    nibabel.save(nibabel.AnalyzeImage(head(), affine()), tmp_path / "NC" / "four.img")
    listing = sources.find(tmp_path, "diagnosis")
    said = {(image.subject, image.session, image.label) for image in listing.images}
    assert said == {("one", None, "AD"), ("two", None, "NC"), ("three", "visit2", "NC"), ("four", None, "NC")}


@pytest.mark.parametrize("column", ["subject", "image"])
def test_a_table_gives_labels_to_a_folder(tmp_path, column):
    nifti(tmp_path / "images" / "one.nii.gz")
    nifti(tmp_path / "images" / "two.mgz.nii")
    names = ("one", "two.mgz") if column == "subject" else ("one.nii.gz", "two.mgz.nii")
    (tmp_path / "t.tsv").write_text(f"{column}\tgroup\tage\n{names[0]}\tA\t61\n{names[1]}\tB\t62\n")
    listing = sources.find(tmp_path / "images", "group", labels=tmp_path / "t.tsv")
    assert [(image.label, image.age) for image in listing.images] == [("A", 61.0), ("B", 62.0)]


def test_a_table_of_images_is_listed_in_its_order(tmp_path):
    nifti(tmp_path / "x" / "b.nii")
    nifti(tmp_path / "x" / "a.nii")
    table = tmp_path / "images.csv"
    table.write_text(
        '\ufeffPath;Subject;Session;Diagnosis;Age;Site\nx/b.nii;B;1;AD;70,5;"Here; there"\nx/a.nii;A;;NC;;\n'
    )
    first, second = sources.find(table, "diagnosis").images
    assert (first.source, first.subject, first.session, first.label, first.age, first.site) == (
        "x/b.nii", "B", "1", "AD", 70.5, "Here; there",
    )  # fmt: skip
    assert (second.subject, second.session, second.age) == ("A", None, None)
    assert first.path.is_file()


def test_the_listing_hash_follows_labels_and_not_the_place(tmp_path):
    one, two = bids(tmp_path / "x" / "same", 2), bids(tmp_path / "y" / "same", 2)
    assert sources.find(one, "diagnosis").sha256 == sources.find(two, "diagnosis").sha256
    table = two / "participants.tsv"
    table.write_text(table.read_text().replace("AD", "MCI"))
    assert sources.find(one, "diagnosis").sha256 != sources.find(two, "diagnosis").sha256


def test_missing_and_unknown_labels_are_findings_of_their_images(tmp_path):
    root = bids(tmp_path, 6, labels=("AD", "NC", "n/a", "Nc"))
    listing = sources.find(root, "diagnosis", classes=["AD", "NC"])
    assert codes(listing) == [[], [], ["missing-label"], ["unknown-label"], [], []]
    assert "Did you mean 'NC'?" in listing.images[3].findings[0].message


def test_a_second_image_of_a_session_is_a_finding(tmp_path):
    root = bids(tmp_path, 2)
    nifti(image_of(root, 1).with_name("sub-01_run-2_T1w.nii.gz"), seed=9)
    assert codes(sources.find(root, "diagnosis")) == [[], [], ["duplicate-subject"]]


def test_the_same_row_twice_is_a_finding(tmp_path):
    nifti(tmp_path / "a.nii")
    nifti(tmp_path / "b.nii")
    (tmp_path / "t.csv").write_text("image,diagnosis\na.nii,AD\nb.nii,NC\na.nii,AD\n")
    assert codes(sources.find(tmp_path / "t.csv", "diagnosis")) == [[], [], ["duplicate-subject"]]


def test_a_strange_age_is_a_warning(tmp_path):
    root = bids(tmp_path, 2)
    table = root / "participants.tsv"
    table.write_text(table.read_text().replace("60", "89+"))
    image = sources.find(root, "diagnosis").images[0]
    assert image.age is None
    assert [finding.code for finding in image.findings] == ["age"]


def test_subjects_without_images_and_images_without_subjects_are_warnings(tmp_path):
    root = bids(tmp_path, 3)
    table = root / "participants.tsv"
    table.write_text(table.read_text() + "sub-77\t60\tM\tAD\n")
    assert "77" in sources.find(root, "diagnosis").findings[0].message
    table.write_text(
        "\n".join(line for line in table.read_text().split("\n") if not line.startswith("sub-02"))
    )
    assert codes(sources.find(root, "diagnosis"))[2] == ["no-participant", "missing-label"]


def _table(text: str):
    def make(root: Path) -> Path:
        nifti(root / "a.nii")
        nifti(root / "b.nii", data=np.flip(head()))
        (root / "t.csv").write_text(text)
        return root / "t.csv"

    return make


def _bids_with(text: str | None):
    def make(root: Path) -> Path:
        bids(root, 2)
        (root / "participants.tsv").unlink()
        if text is not None:
            (root / "participants.tsv").write_text(text)
        return root

    return make


def _folder(*names: str):
    def make(root: Path) -> Path:
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(b"x")
        return root

    return make


UNUSABLE = {
    "nothing there": (lambda root: root / "nowhere", "there is no such file or folder"),
    "empty folder": (_folder(), "holds no images"),
    "only DICOM": (_folder("a.dcm"), "cingulum dicom"),
    "no labels at all": (_folder("a.nii", "b.nii"), "--labels FILE"),
    "a single image": (lambda root: nifti(root / "a.nii"), "is a single image"),
    "no participants.tsv": (_bids_with(None), "has no participants.tsv"),
    "no label column": (_bids_with("participant_id\tdiagnosi\nsub-00\tAD\n"), "Did you mean 'diagnosi'?"),
    "no subject column": (_bids_with("name\tdiagnosis\nsub-00\tAD\n"), "no column 'participant_id'"),
    "empty participants.tsv": (_bids_with(""), "is empty"),
    "subject twice": (_bids_with("participant_id\tdiagnosis\nsub-00\tAD\n00\tNC\n"), "twice"),
    "one class": (_bids_with("participant_id\tdiagnosis\nsub-00\tAD\nsub-01\tAD\n"), "only one class, 'AD'"),
    "no label filled in": (_bids_with("participant_id\tdiagnosis\nsub-00\tn/a\n"), "no image has a label"),
    "no image column": (_table("picture,diagnosis\na.nii,AD\n"), "no column 'image'"),
    "no rows": (_table("image,diagnosis\n"), "holds no images"),
    "ragged row": (_table("image,diagnosis\na.nii,AD\nb.nii\n"), "line 3 has 1 cells, but the header has 2"),
    "column twice": (_table("image,diagnosis,image\na.nii,AD,b\n"), "names the column 'image' twice"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_source_is_named_with_its_cure(tmp_path, case):
    make, message = UNUSABLE[case]
    root = tmp_path / "source"
    root.mkdir()
    source = make(root)
    with pytest.raises(CohortError) as caught:
        sources.find(source, "diagnosis")
    assert message in str(caught.value)
    assert caught.value.cure


def test_a_table_that_is_not_text_is_named(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00\x01image")
    with fails_with(CohortError):
        sources.find(tmp_path / "t.csv", "diagnosis")


def test_a_classes_option_that_leaves_one_class_is_named(tmp_path):
    with fails_with(CohortError):
        sources.find(bids(tmp_path, 2), "diagnosis", classes=["AD"])


def test_a_class_that_no_image_has_is_named_with_the_one_meant(tmp_path):
    with fails_with(CohortError) as caught:
        sources.find(bids(tmp_path, 2), "diagnosis", classes=["ad", "NC"])
    assert caught.value.cure == "Its labels are AD, NC."


def test_a_bids_folder_without_a_name_is_called_by_its_folder(tmp_path):
    root = bids(tmp_path / "cohort", 3)
    (root / "dataset_description.json").write_text('{"BIDSVersion": "1.9.0"}')
    assert sources.find(root, "diagnosis").name == "cohort"
