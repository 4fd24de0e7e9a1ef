"""Labels that differ between sessions or are spelled in two ways: nothing of it is silent."""

from __future__ import annotations

from pathlib import Path

import pytest
from adni_download import add, download, image, row, visits
from made_images import bids, nifti
from wording import fails_with

from trainer.data.sources import sources
from trainer.data.sources.listing import SourceListing
from trainer.data.sources.source_adni import AdniRequest
from trainer.errors import CohortError


def labels(listing: SourceListing) -> list[str | None]:
    return [image.label for image in listing.images]


def messages(listing: SourceListing, code: str) -> list[str]:
    return [finding.message for finding in listing.findings if finding.code == code]


def converters(root: Path, names=("M000", "M6", "M048")) -> Path:
    """Write a table of three subjects with three sessions each: s1 converts, s2 has an unlabelled session."""
    rows = ["image,subject,session,diagnosis,sex"]
    subjects = {"s1": ("CN", "MCI", "AD"), "s2": ("CN", "n/a", "CN"), "s3": ("AD", "AD", "AD")}
    for subject, own in subjects.items():
        for number, (session, label) in enumerate(zip(names, own, strict=True)):
            nifti(root / f"{subject}_{session}.nii", seed=ord(subject[1]) * 10 + number)
            rows.append(f"{subject}_{session}.nii,{subject},{session},{label},F")
    (root / "t.csv").write_text("\n".join([rows[0], *reversed(rows[1:])]) + "\n")
    return root / "t.csv"


def test_a_subject_whose_label_changes_keeps_each_and_is_counted_and_named(tmp_path):
    listing = sources.find(converters(tmp_path), "diagnosis")
    assert labels(listing) == ["AD", "AD", "AD", "CN", None, "CN", "AD", "MCI", "CN"]
    (message,) = messages(listing, "label-change")
    assert message == (
        "1 of 3 subjects have sessions of different labels (diagnosis): "
        "s1 (CN at M000, MCI at M6, AD at M048). Each session keeps its own."
    )
    assert listing.label_changes == {"s1": ["CN at M000", "MCI at M6", "AD at M048"]}


def test_all_sessions_get_the_label_of_the_first_where_that_is_asked_for(tmp_path):
    listing = sources.find(converters(tmp_path), "diagnosis", label_change="first")
    assert labels(listing) == ["AD", "AD", "AD", "CN", None, "CN", "CN", "CN", "CN"]
    assert [f.code for f in listing.images[6].findings] == ["label-change"]
    assert "'AD' in the tables" in listing.images[6].findings[0].message
    assert "got the label of its first" in messages(listing, "label-change")[0]
    assert listing.sha256 != sources.find(tmp_path / "t.csv", "diagnosis").sha256


def test_a_changing_label_is_an_error_where_that_is_asked_for(tmp_path):
    with fails_with(CohortError) as caught:
        sources.find(converters(tmp_path), "diagnosis", label_change="error")
    assert "--label-change keep" in str(caught.value.cure)
    same = sources.find(bids(tmp_path / "b", 4), "diagnosis", label_change="error")
    assert same.label_changes == {}


def test_the_baseline_comes_before_months(tmp_path):
    table = converters(tmp_path, ("bl", "m06", "m12"))
    assert labels(sources.find(table, "diagnosis", label_change="first"))[6:] == ["CN", "CN", "CN"]


def test_the_first_of_sessions_without_an_order_is_not_guessed(tmp_path):
    table = converters(tmp_path, ("pre", "post", "later"))
    with fails_with(CohortError):
        sources.find(table, "diagnosis", label_change="first")
    assert len(messages(sources.find(table, "diagnosis"), "label-change")) == 1


def test_a_bad_image_is_no_change_of_a_label(tmp_path):
    first, second = nifti(tmp_path / "s/AD/1.nii", seed=1), nifti(tmp_path / "s/NC/1.nii", seed=2)
    nifti(tmp_path / "s/NC/2.nii", seed=3)
    assert first.name == second.name
    listing = sources.find(tmp_path / "s", "diagnosis", label_change="error")
    assert [f.code for image in listing.images for f in image.findings] == ["duplicate-subject"]


def test_labels_of_adnis_visits_may_change_too(tmp_path):
    root, table = download(tmp_path)
    image(root, 105, "011_S_0003", day="2008-04-18")
    add(table, row(105, "011_S_0003", "MCI", "4/18/2008"))
    lines = [f"3,x,{day},{code}" for day, code in (("2006-04-18", 2), ("2008-04-18", 2), ("2010-04-18", 3))]
    lines += ["1,x,2006-04-18,3", "2,x,2006-04-18,1", "4,x,2006-04-18,2", "4,x,2009-05-01,2"]
    request = AdniRequest(visits(tmp_path / "dx.csv", *lines), 36, "all")
    listing = sources.find(root, "diagnosis", labels=table, adni=request)
    assert listing.label_changes == {}  # the scan of 2006 is neither: dementia came after 36 months
    longer = AdniRequest(tmp_path / "dx.csv", 24, "all")
    lines[2] = "3,x,2010-03-18,3"
    visits(tmp_path / "dx.csv", "3,x,2008-04-18,2", *lines[:1], *lines[2:])
    listing = sources.find(root, "diagnosis", labels=table, adni=longer)
    assert listing.label_changes == {"011_S_0003": ["sMCI at 2006-04-18", "pMCI at 2008-04-18"]}


def test_one_number_is_one_class_however_tables_spell_it(tmp_path):
    root = bids(tmp_path, 5, labels=("1", "0", "1.0", "0.0", "01"))
    listing = sources.find(root, "diagnosis")
    assert labels(listing) == ["1", "0", "1", "0", "1"]
    (message,) = messages(listing, "spelling")
    assert "'1.0' (1) as '1'" in message and "'0.0' (1) as '0'" in message
    assert labels(sources.find(root, "diagnosis", classes=["1.0", "0.0"])) == [
        "1.0",
        "0.0",
        "1.0",
        "0.0",
        "1.0",
    ]


def test_numbers_with_one_spelling_keep_it(tmp_path):
    listing = sources.find(bids(tmp_path, 4, labels=("1.0", "2.0")), "diagnosis")
    assert labels(listing) == ["1.0", "2.0", "1.0", "2.0"]
    assert messages(listing, "spelling") == []


def test_sexes_and_sites_have_one_spelling_each(tmp_path):
    root = bids(tmp_path, 5)
    people = zip("MFmMM", ("A b", "a  B", "1", "1.0", "A b"), strict=True)
    rows = [f"sub-{n:02d}\t60\t{sex}\t{site}\t{'AN'[n % 2]}" for n, (sex, site) in enumerate(people)]
    rows[1] = rows[1].replace("\tF\t", "\tfemale\t")
    rows[3] = rows[3].replace("\tM\t", "\tF\t")
    header = "participant_id\tage\tsex\tsite\tdiagnosis"
    (root / "participants.tsv").write_text("\n".join([header, *rows]) + "\n")
    listing = sources.find(root, "diagnosis")
    assert [image.sex for image in listing.images] == ["M", "F", "M", "F", "M"]
    assert [image.site for image in listing.images] == ["A b", "A b", "1", "1", "A b"]
    assert len(messages(listing, "spelling")) == 2


def test_one_age_for_all_sessions_of_a_subject_is_named(tmp_path):
    table = converters(tmp_path)
    ages = iter(["60", "61", "62", "70", "70", "70", "", "", ""])
    header, *rows = table.read_text().split()
    table.write_text("\n".join([header + ",age", *(f"{row},{next(ages)}" for row in reversed(rows))]) + "\n")
    listing = sources.find(table, "diagnosis")
    assert messages(listing, "one-age") == ["1 subjects have one age for all their sessions: s2."]


def test_one_class_only_tells_why_the_other_images_have_no_label(tmp_path):
    root = bids(tmp_path, 3, labels=("AD", "n/a"))
    with pytest.raises(CohortError) as caught:
        sources.find(root, "diagnosis")
    assert "only one class, 'AD'" in caught.value.message
    assert "1 image has none (sub-01/anat/sub-01_T1w.nii.gz); the first has no label" in caught.value.message
    assert "its cell in participants.tsv is empty" in caught.value.message


def test_a_subject_of_two_sexes_is_named(tmp_path):
    table = converters(tmp_path)
    table.write_text(table.read_text().replace("s3_M6.nii,s3,M6,AD,F", "s3_M6.nii,s3,M6,AD,M"))
    assert messages(sources.find(table, "diagnosis"), "two-sexes") == [
        "1 subjects have sessions of different sexes: s3 (F, M)."
    ]
