"""Rows of tables are joined to images by prefix and number; what does not join, or joins twice, is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_images import bids, image_of, nifti
from wording import fails_with

from trainer.data.sources import sources, tables
from trainer.data.sources.joins import SubjectRows, as_number, id_key, id_order
from trainer.data.sources.listing import SourceImage, SourceListing
from trainer.data.sources.map_request import numbered, stated_labels
from trainer.errors import CingulumError, CohortError, ConfigError

PARTICIPANTS = "participant_id\tage\tsex\tdiagnosis\n"


def codes(listing: SourceListing) -> dict[str, list[str]]:
    return {name(image): [f.code for f in image.findings] for image in listing.images if image.findings}


def name(image: SourceImage) -> str:
    return image.subject if image.session is None else f"{image.subject} {image.session}"


def labels(listing: SourceListing) -> dict[str, str | None]:
    return {name(image): image.label for image in listing.images}


def messages(listing: SourceListing, code: str) -> list[str]:
    return [finding.message for finding in listing.findings if finding.code == code]


def visit(root: Path, subject: str, session: str) -> Path:
    """Write the image of a session; the folder is made."""
    seed = sum(map(ord, subject + session))
    return nifti(root / f"sub-{subject}/ses-{session}/anat/sub-{subject}_ses-{session}_T1w.nii.gz", seed=seed)


def sessions(root: Path, subject: str, *rows: str, columns="session_id\tdiagnosis") -> None:
    text = "\n".join([columns, *rows]) + "\n"
    (root / f"sub-{subject}/sub-{subject}_sessions.tsv").write_text(text)


def study(root: Path) -> Path:
    """Two subjects of two sessions each; 01 is CN in participants.tsv and AD by its later session."""
    for subject in ("01", "02"):
        for session in ("M00", "M48"):
            visit(root, subject, session)
    (root / "participants.tsv").write_text(PARTICIPANTS + "sub-01\t60\tF\tCN\nsub-02\t70\tM\tAD\n")
    return root


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("sub-01", "1"), ("1.0", "01"), ("ses-M48", "M048"), ("ses-m48", "M48"), ("OAS1_0007", "oas1_7"),
        ("sub-Mu\u0308ller", "M\u00fcller"), (" 7 ", "7"), ("2006-04-18", "2006-4-18"),
    ],
)  # fmt: skip
def test_spellings_of_one_id_are_compared_as_prefix_and_number(one, other):
    assert id_key(one) == id_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "S01"), ("M4", "M48"), ("1-11", "11-1"), ("M-12", "M12"), ("10", "1"), ("1.5", "15")],
)
def test_other_ids_stay_apart(one, other):
    assert id_key(one) != id_key(other)


def test_ids_are_sorted_by_number():
    assert sorted(["M048", "M6", "M012", "M0"], key=id_order) == ["M0", "M6", "M012", "M048"]


def test_a_number_is_read_as_spreadsheets_write_it():
    assert as_number("1") == as_number("1.0") == as_number("1,0") == as_number(" 01 ") == 1
    assert [as_number(text) for text in ("1,000", "1e3", "nan", "one", "")] == [None] * 5


def test_labels_of_a_further_table_take_precedence_over_those_of_sessions(tmp_path):
    root = study(tmp_path / "b")
    sessions(root, "01", "M00\tCN", "M48\tCN")
    table = tmp_path / "l.tsv"
    table.write_text("participant_id\tdiagnosis\n1\tMCI\n2\tAD\n")
    listing = sources.find(root, "diagnosis", labels=table)
    assert labels(listing) == {"01 M00": "MCI", "01 M48": "MCI", "02 M00": "AD", "02 M48": "AD"}
    table.write_text("participant_id\tdiagnosis\n1\tn/a\n2\tAD\n2.0\tAD\n")
    with fails_with(CohortError):
        sources.find(root, "diagnosis", labels=table)


def test_a_further_table_without_a_row_or_value_is_a_missing_label_and_no_other_table_counts(tmp_path):
    root = bids(tmp_path / "b", 4)
    table = tmp_path / "l.tsv"
    table.write_text("participant_id\tdiagnosis\nsub-00\tMCI\nsub-01\tAD\nsub-02\tN/A\n")
    listing = sources.find(root, "diagnosis", labels=table)
    assert labels(listing) == {"00": "MCI", "01": "AD", "02": None, "03": None}
    assert codes(listing) == {"02": ["missing-label"], "03": ["missing-label"]}
    assert "its subject 03 is not in l.tsv, whose ids are sub-00, sub-01, sub-02" in str(
        listing.images[3].findings
    )


def test_a_further_table_may_name_sessions(tmp_path):
    root = study(tmp_path / "b")
    table = tmp_path / "l.csv"
    table.write_text("subject,session,diagnosis\n01,M0,CN\n01,M048,AD\n02,M00,AD\n")
    listing = sources.find(root, "diagnosis", labels=table)
    assert labels(listing) == {"01 M00": "CN", "01 M48": "AD", "02 M00": "AD", "02 M48": None}
    assert codes(listing) == {"02 M48": ["missing-label"]}


@pytest.mark.parametrize("session", ["M048", "ses-M048", "ses-m48"])
def test_a_session_is_joined_by_prefix_and_number(tmp_path, session):
    root = study(tmp_path)
    sessions(root, "01", "ses-M00\tCN", f"{session}\tAD")
    sessions(root, "02", "ses-M00\tAD", f"{session}\tAD")
    assert labels(sources.find(root, "diagnosis"))["01 M48"] == "AD"


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (["M00\tCN", "M48\tn/a"], "its cell in sub-01_sessions.tsv is empty"),
        (["M00\tCN", "48\tAD"], "its session M48 has no row in sub-01_sessions.tsv, which has M00, 48"),
        (["M00\tCN"], "its session M48 has no row in sub-01_sessions.tsv, which has M00"),
    ],
)
def test_a_session_without_row_or_value_has_no_label_and_never_that_of_the_subject(tmp_path, rows, why):
    root = study(tmp_path)
    sessions(root, "01", *rows)
    sessions(root, "02", "M00\tAD", "M48\tAD")
    listing = sources.find(root, "diagnosis")
    assert labels(listing)["01 M48"] is None
    assert codes(listing) == {"01 M48": ["missing-label"]}
    assert why in listing.images[1].findings[0].message


def test_an_age_is_not_that_of_another_session(tmp_path):
    root = study(tmp_path)
    for subject in ("01", "02"):
        sessions(root, subject, "M00\tCN\t60", "M48\tAD\tn/a", columns="session_id\tdiagnosis\tage")
    listing = sources.find(root, "diagnosis")
    assert [image.age for image in listing.images] == [60.0, None, 60.0, None]
    assert [image.sex for image in listing.images] == ["F", "F", "M", "M"]
    assert messages(listing, "missing-value") == ["2 of 4 images have no age: 01 M48, 02 M48."]


def test_two_rows_of_a_session_are_an_error(tmp_path):
    root = study(tmp_path)
    sessions(root, "02", "M00\tAD", "ses-M048\tAD", "M48\tCN")
    with fails_with(CohortError):
        sources.find(root, "diagnosis")


def test_the_tables_of_all_subjects_are_looked_at_for_the_label(tmp_path):
    root = study(tmp_path)
    (root / "participants.tsv").write_text("participant_id\tage\nsub-01\t60\nsub-02\t70\n")
    sessions(root, "01", "M00\t60", columns="session_id\tage")
    sessions(root, "02", "M00\tCN", "M48\tAD")
    listing = sources.find(root, "diagnosis")
    assert labels(listing) == {"01 M00": None, "01 M48": None, "02 M00": "CN", "02 M48": "AD"}
    (root / "participants.tsv").unlink()
    assert labels(sources.find(root, "diagnosis"))["02 M48"] == "AD"


def test_subjects_whose_label_is_of_another_kind_of_table_are_named(tmp_path):
    root = study(tmp_path)
    sessions(root, "02", "M00\tCN", "M48\tAD")
    (message,) = messages(sources.find(root, "diagnosis"), "label-source")
    assert message.startswith("1 subjects have the label of participants.tsv for all their sessions")
    assert message.endswith(": 01.")


def test_a_table_of_sessions_in_the_folder_of_another_subject_is_an_error(tmp_path):
    root = study(tmp_path)
    sessions(root, "01", "M00\tCN")
    (root / "sub-01/sub-01_sessions.tsv").rename(root / "sub-02/sub-01_sessions.tsv")
    with fails_with(CohortError):
        sources.find(root, "diagnosis")


def test_an_image_in_the_folder_of_another_subject_or_session_is_bad_with_both_ids(tmp_path):
    root = study(tmp_path)
    nifti(root / "sub-02/ses-A/anat/sub-01_ses-A_T1w.nii.gz", seed=5)
    nifti(root / "sub-02/ses-B/anat/sub-02_ses-C_T1w.nii.gz", seed=6)
    nifti(root / "sub-03/anat/sub-03_ses-D_T1w.nii.gz", seed=7)
    nifti(root / "sub-02/ses-A/anat/sub-02_ses-A_T1w.nii.gz", seed=8)
    listing = sources.find(root, "diagnosis")
    wrong = {
        i.source.split("/")[-1]: f.message for i in listing.images for f in i.findings if "other" in f.code
    }
    assert wrong == {
        "sub-01_ses-A_T1w.nii.gz": "is of subject 02 by its folder, and of subject 01 by its name.",
        "sub-02_ses-C_T1w.nii.gz": "is of session B by its folder, and of session C by its name.",
        "sub-03_ses-D_T1w.nii.gz": "is of no session by its folder, and of session D by its name.",
    }
    assert all(f.severity == "bad" for i in listing.images for f in i.findings if "other" in f.code)
    assert not any(f.code == "duplicate-subject" for i in listing.images for f in i.findings)


def test_participants_are_joined_by_number_and_a_row_without_an_id_is_counted(tmp_path):
    root = bids(tmp_path, 4)
    rows = "0\t60\tM\tAD\n1.0\t61\tF\tNC\n n/a\t1\tM\tAD\n002\t62\tM\tAD\nSUB-3\t63\tF\tNC\n"
    (root / "participants.tsv").write_bytes(("\ufeff" + PARTICIPANTS + rows).replace("\n", "\r\n").encode())
    listing = sources.find(root, "diagnosis")
    assert list(labels(listing).values()) == ["AD", "NC", "AD", "NC"]
    assert messages(listing, "no-id") == [
        "1 row of participants.tsv without participant_id is left out: line 4."
    ]


def test_ids_that_do_not_join_are_shown_of_both_sides(tmp_path):
    root = bids(tmp_path, 4)
    table = root / "participants.tsv"
    table.write_text(table.read_text().replace("sub-", "S"))
    with pytest.raises(CohortError) as caught:
        sources.find(root, "diagnosis")
    assert "(sub-00, sub-01, sub-02, ...)" in caught.value.message
    assert "whose ids are S00, S01, S02, ..." in caught.value.message
    assert "Fill in" not in str(caught.value)


def test_labels_of_sessions_need_no_participants(tmp_path):
    root = study(tmp_path)
    table = root / "participants.tsv"
    table.write_text(table.read_text().replace("sub-", "S"))
    for subject in ("01", "02"):
        sessions(root, subject, "M00\tCN", "M48\tAD")
    listing = sources.find(root, "diagnosis")
    assert list(labels(listing).values()) == ["CN", "AD", "CN", "AD"]
    assert set(map(str, codes(listing).values())) == {"['no-participant']"}


@pytest.mark.parametrize("other", ["sub-1", "sub-001"])
def test_two_folders_of_one_subject_are_an_error_that_names_both(tmp_path, other):
    root = bids(tmp_path, 3)
    (root / other / "anat").mkdir(parents=True)
    with pytest.raises(CohortError) as caught:
        sources.find(root, "diagnosis")
    assert other in caught.value.message and "sub-01" in caught.value.message


def test_two_folders_of_one_session_are_an_error_that_names_both(tmp_path):
    root = study(tmp_path)
    visit(root, "01", "M048")
    with pytest.raises(CohortError, match=r"ses-M48 .*ses-M048|ses-M048 .*ses-M48"):
        sources.find(root, "diagnosis")


@pytest.mark.parametrize("layout", ["table", "classes"])
def test_two_spellings_of_one_subject_are_an_error_in_every_layout(tmp_path, layout):
    first, second = nifti(tmp_path / "s/AD/x1.nii", seed=1), nifti(tmp_path / "s/NC/X01.nii", seed=2)
    source = tmp_path / "s"
    if layout == "table":
        source = tmp_path / "t.csv"
        source.write_text(f"image,subject,session,diagnosis\n{first},7,1,AD\n{second},7.0,2,NC\n")
    with pytest.raises(CohortError, match=r"two spellings of one subject: (7 .* and 7\.0|x1 .* and X01)"):
        sources.find(source, "diagnosis")


@pytest.mark.parametrize("column", ["subject", "image"])
def test_rows_and_images_of_a_folder_that_do_not_join_are_named(tmp_path, column):
    for number in range(3):
        nifti(tmp_path / "images" / f"{number:02d}.nii", seed=number)
    table = tmp_path / "t.csv"
    rows = ("0.0", "1", "9") if column == "subject" else ("./00.nii", "01", "09.nii")
    table.write_text(
        f"{column},group\n" + "".join(f"{r},{g}\n" for r, g in zip(rows, "ABA", strict=True)) + ",B\n"
    )
    listing = sources.find(tmp_path / "images", "group", labels=table)
    assert list(labels(listing).values()) == ["A", "B", None]
    assert f"02.nii is not in t.csv, whose ids are {', '.join(rows)}" in listing.images[2].findings[0].message
    assert messages(listing, "no-image") == [f"1 rows of t.csv have no image: {rows[2]}."]
    assert messages(listing, "no-id") == [f"1 row of t.csv without {column} is left out: line 5."]
    table.write_text(f"{column},group\nS00,A\nS01,B\n")
    with fails_with(CohortError):
        sources.find(tmp_path / "images", "group", labels=table)


def test_a_row_that_may_be_that_of_two_images_is_that_of_neither(tmp_path):
    for number, place in enumerate(("a/T1.nii", "b/T1.nii", "c.nii")):
        nifti(tmp_path / "images" / place, seed=number)
    (tmp_path / "t.csv").write_text("image,subject,group\nT1.nii,1,A\na/T1.nii,1,B\nc.nii,,B\n")
    listing = sources.find(tmp_path / "images", "group", labels=tmp_path / "t.csv")
    codes_of = {image.source: sorted({f.code for f in image.findings}) for image in listing.images}
    assert codes_of == {
        "a/T1.nii": ["ambiguous-row"],
        "b/T1.nii": ["ambiguous-row"],
        "c.nii": ["missing-subject"],
    }


def test_a_row_of_a_table_of_images_without_a_subject_is_bad(tmp_path):
    first, second = nifti(tmp_path / "a.nii", seed=1), nifti(tmp_path / "b.nii", seed=2)
    (tmp_path / "t.csv").write_text(f"image,subject,diagnosis\n{first},n/a,AD\n{second},2,NC\n")
    assert codes(sources.find(tmp_path / "t.csv", "diagnosis")) == {"a": ["missing-subject"]}


def test_a_quote_that_does_not_end_swallows_no_rows(tmp_path):
    (tmp_path / "t.csv").write_text('subject,group\na,A\nb,"B\nc,C\n')
    with fails_with(CohortError):
        tables.read(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text('subject,group\n"a",A\n\nb,B\n')
    assert tables.read(tmp_path / "t.csv").lines == (2, 4)


def test_a_line_with_an_empty_cell_more_may_be_shifted_and_is_not_taken(tmp_path):
    (tmp_path / "t.csv").write_text("subject,group,note\na,x,A,\nb,B,\n")
    with fails_with(CohortError):
        tables.read(tmp_path / "t.csv")
    table = tables.read(tmp_path / "t.csv", leave_odd_lines=True)
    assert (table.odd_lines, table.lines) == ((2,), (3,))


def test_a_further_table_beside_a_table_of_images_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text(f"image,diagnosis\n{nifti(tmp_path / 'a.nii')},AD\n")
    with fails_with(ConfigError):
        sources.find(tmp_path / "t.csv", "diagnosis", labels=tmp_path / "t.csv")


def test_columns_whose_names_differ_by_case_are_asked_about(tmp_path):
    (tmp_path / "t.csv").write_text("Diagnosis,DIAGNOSIS,Age,age\nAD,NC,1,2\n")
    table = tables.read(tmp_path / "t.csv")
    assert table.find(["age"]) == "age"
    with fails_with(CohortError):
        table.find(["diagnosis"])


@pytest.mark.parametrize("cell", ["N/A", "NaN", "#N/A", ".", "?", "<NA>", " n/a ", "NULL"])
def test_words_for_a_missing_value_are_no_label(tmp_path, cell):
    root = bids(tmp_path, 3, labels=("AD", "NC", cell))
    assert labels(sources.find(root, "diagnosis"))["02"] is None


def test_images_whose_names_are_not_bids_are_counted_and_named(tmp_path):
    root = bids(tmp_path, 2)
    anat = image_of(root, 1).parent
    for number, other in enumerate(("Müller 1.nii.gz", "sub-01_T1w (1).nii.gz", "Copy of sub-01_T1w.nii.gz")):
        nifti(anat / other, seed=10 + number)
    nifti(root / "sub-00" / "sub-00_T1w.nii.gz", seed=20)  # not in anat/
    nifti(root / "Sub-05" / "anat" / "Sub-05_T1w.nii.gz", seed=19)
    nifti(anat / "sub-01_t1w.nii.gz", seed=23)  # no suffix of BIDS
    nifti(anat / "sub-01_T2w.nii.gz", seed=21)
    nifti(root / "sub-00" / "func" / "anything.nii.gz", seed=22)
    listing = sources.find(root, "diagnosis")
    assert labels(listing) == {"00": "AD", "01": "NC"}
    assert codes(listing) == {}
    (message,) = messages(listing, "not-bids")
    assert message.startswith("6 image files below sub*, not read")
    assert "Sub-05/anat/Sub-05_T1w.nii.gz, sub-00/sub-00_T1w.nii.gz, sub-01/anat/Copy of " in message


def test_a_cohort_without_bids_names_is_refused_with_these(tmp_path):
    nifti(tmp_path / "sub-01" / "anat" / "brain_T1w.nii.gz")
    (tmp_path / "participants.tsv").write_text("participant_id\tdiagnosis\nsub-01\tAD\n")
    with fails_with(CohortError) as caught:
        sources.find(tmp_path, "diagnosis")
    assert "1 image file below sub*" in str(caught.value)
    assert "sub-01/anat/brain_T1w.nii.gz" in str(caught.value)
    assert "there are T1w" not in str(caught.value)


def test_a_name_that_is_not_quite_bids_is_taken_with_a_warning(tmp_path):
    root = bids(tmp_path, 3)
    image_of(root, 1).rename(image_of(root, 1).with_name("sub-01_acq-größer_T1w.nii.gz"))
    assert codes(sources.find(root, "diagnosis")) == {"01": ["bids-name"]}


def test_subjects_and_sessions_without_an_image_are_counted_and_named(tmp_path):
    root = study(tmp_path)
    with (root / "participants.tsv").open("a") as file:
        file.write("sub-77\t60\tM\tCN\n")
    (root / "sub-08" / "anat").mkdir(parents=True)
    sessions(root, "01", "M00\tCN", "M12\tCN", "M48\tAD")
    sessions(root, "02", "M0\tCN", "M48\tAD", "M60\tAD")
    assert messages(sources.find(root, "diagnosis"), "no-image") == [
        "1 subjects of the table have no T1w image: sub-77.",
        "1 folders of subjects have no T1w image: sub-08.",
        "2 sessions of the tables have no T1w image: sub-01 M12, sub-02 M60.",
    ]


def test_missing_ages_sexes_and_sites_are_counted_and_named(tmp_path):
    root = bids(tmp_path, 4)
    table = root / "participants.tsv"
    table.write_text(table.read_text().replace("61\tF", "n/a\t").replace("62\tM", "\tM"))
    assert messages(sources.find(root, "diagnosis"), "missing-value") == [
        "2 of 4 images have no age: 01, 02.",
        "1 of 4 images have no sex: 01.",
    ]
    table.write_text("participant_id\tage\tdiagnosis\nsub-00\tn/a\tAD\nsub-01\t\tNC\n")
    (message,) = messages(sources.find(root, "diagnosis"), "missing-value")
    assert message.startswith("no image has an age")


def test_a_table_of_sessions_gives_an_image_without_a_session_its_only_row(tmp_path):
    (tmp_path / "t.csv").write_text("subject,session,age\n1,M00,60\n2,M00,70\n2,M12,71\n")
    rows = SubjectRows(tables.read(tmp_path / "t.csv"))
    row, _ = rows.match("01", None)
    assert row is not None and row["age"] == "60"
    assert rows.match("02", None) == (
        None, "it states no session, and t.csv has several of subject 02: M00, M12",
    )  # fmt: skip


def test_labels_of_maps_are_numbers_and_none_is_there_twice():
    assert numbered(stated_labels("1.0=grey,02=white")).classes == ("background", "grey", "white")
    with fails_with(CingulumError):
        stated_labels("1=grey,1.0=white")


def test_a_further_contrast_of_another_subject_is_not_taken_and_named(tmp_path):
    root = bids(tmp_path, 2)
    nifti(image_of(root, 0).with_name("sub-0_T2w.nii.gz"), seed=8)
    nifti(image_of(root, 1).with_name("sub-00_T2w.nii.gz"), seed=9)
    first, second = sources.find(root, "diagnosis", contrasts=("T1w", "T2w")).images
    assert [file.path.name for file in first.contrasts] == ["sub-0_T2w.nii.gz"]
    assert second.findings[0].message == "has no T2w image beside it; not of it are sub-00_T2w.nii.gz."


def test_tissue_maps_are_those_of_the_image_and_one_pipeline(tmp_path):
    root = bids(tmp_path, 3)
    derivatives = root / "derivatives"
    nifti(derivatives / "fast/sub-00/anat/sub-01_label-GM_probseg.nii.gz")  # of another subject
    for pipeline in ("cat12", "fast"):
        nifti(derivatives / f"{pipeline}/sub-01/anat/sub-01_label-GM_probseg.nii.gz")
    nifti(derivatives / "fast/sub-01/anat/sub-01_label-WM_probseg.nii.gz")
    for kind in ("a", "b"):
        nifti(derivatives / f"fast/sub-02/anat/sub-02_desc-{kind}_label-GM_probseg.nii.gz")
    listing = sources.find(root, "diagnosis")
    assert [[tissue for tissue, _ in image.tissue_maps] for image in listing.images] == [
        [],
        ["grey", "white"],
        [],
    ]
    assert all("fast" in str(path) for _, path in listing.images[1].tissue_maps)
    assert codes(listing) == {"01": ["tissue-map"], "02": ["tissue-map"]}
    assert messages(listing, "missing-value") == ["2 of 3 images have no tissue maps: 00, 02."]
