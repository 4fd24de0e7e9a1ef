"""A download from ADNI's archive is listed by its folders and its CSV; faults are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from adni_download import add, collection, download, image, row, visits
from wording import fails_with

from trainer.data.sources import sources
from trainer.data.sources.listing import SourceListing
from trainer.data.sources.source_adni import AdniRequest
from trainer.errors import CohortError, ConfigError


def labels(listing: SourceListing) -> dict[str, str | None]:
    return {image.subject: image.label for image in listing.images}


def codes(listing: SourceListing) -> list[list[str]]:
    return [[finding.code for finding in image.findings] for image in listing.images]


def messages(listing: SourceListing) -> str:
    return "\n".join(finding.message for finding in listing.findings)


@pytest.fixture
def adni(tmp_path) -> tuple[Path, Path]:
    return download(tmp_path)


def test_images_have_what_the_collection_says_of_them(adni):
    root, table = adni
    listing = sources.find(root, "diagnosis", labels=table)
    assert (listing.kind, listing.name) == ("adni", "ADNI")
    assert labels(listing) == {
        "002_S_0001": "AD", "002_S_0002": "CN", "011_S_0003": "MCI", "011_S_0004": "LMCI",
    }  # fmt: skip
    first = listing.images[0]
    assert (first.session, first.age, first.sex, first.site) == ("2006-04-18", 71.0, "F", "002")
    assert first.source == (
        "002_S_0001/MP-RAGE/2006-04-18_08_20_30.0/I101/ADNI_002_S_0001_MR_MP-RAGE_Br_S13408_I101.nii"
    )
    assert codes(listing) == [[], [], [], []]
    assert listing.findings == ()


def test_a_table_of_a_spreadsheet_and_bare_ids_are_read(adni):
    root, table = adni
    text = table.read_text().replace('"I10', '"10').replace("\n", "\r\n")
    table.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert len(labels(sources.find(root, "diagnosis", labels=table))) == 4


def test_the_id_may_end_the_name_of_the_file(tmp_path):
    for number in (101, 102):
        image(tmp_path / "ADNI", number, f"002_S_0{number}", folder="S13408")
    table = collection(tmp_path / "c.csv", row(101, "002_S_0101", "AD"), row(102, "002_S_0102", "CN"))
    listing = sources.find(tmp_path / "ADNI", "diagnosis", labels=table)
    assert labels(listing) == {"002_S_0101": "AD", "002_S_0102": "CN"}


def test_diagnoses_divide_mci_and_leave_out_who_is_neither(adni, tmp_path):
    root, table = adni
    image(root, 105, "011_S_0005")
    add(table, row(105, "011_S_0005", "EMCI"))
    dx = visits(
        tmp_path / "dx.csv",
        *("3,bl,2006-04-20,2", "3,m12,2007-04-20,3"),
        *("4,bl,2006-04-20,2", "4,m36,2009-04-20,2"),
        *("5,bl,2006-04-20,2", "5,m12,2007-04-20,2"),
        *("1,bl,2006-04-20,3", "2,bl,2006-04-20,1"),
    )
    listing = sources.find(root, "diagnosis", labels=table, adni=AdniRequest(dx))
    assert labels(listing) == {
        "002_S_0001": "AD", "002_S_0002": "CN", "011_S_0003": "pMCI", "011_S_0004": "sMCI",
    }  # fmt: skip
    assert messages(listing) == "1 image is left out, MCI, but followed for less than 36 months: 011_S_0005."
    (why, left) = next(iter(listing.left_out.items()))
    assert why == "MCI, but followed for less than 36 months"
    assert [Path(source).parts[0] for source in left] == ["011_S_0005"]


def test_the_first_scan_of_a_subject_is_taken_or_one_of_each_day(adni, tmp_path):
    root, table = adni
    image(root, 99, "002_S_0001", day="2007-04-18")
    image(root, 100, "002_S_0001")
    add(table, row(99, "002_S_0001", "AD", "4/18/2007"), row(100, "002_S_0001", "AD"))
    baseline = sources.find(root, "diagnosis", labels=table)
    assert [Path(i.source).parts[3] for i in baseline.images] == ["I100", "I102", "I103", "I104"]
    assert sorted(baseline.left_out) == ["a further scan of a day", "not the first scan of its subject"]
    every = sources.find(root, "diagnosis", labels=table, adni=AdniRequest(visits="all"))
    assert [Path(i.source).parts[3] for i in every.images][:2] == ["I100", "I99"]
    assert [(i.subject, i.session) for i in every.images][:2] == [
        ("002_S_0001", "2006-04-18"), ("002_S_0001", "2007-04-18"),
    ]  # fmt: skip
    assert codes(every) == [[]] * 5


def test_what_is_wrong_with_one_image_goes_with_it(adni):
    root, table = adni
    twin = image(root, 101, "002_S_0001")
    twin.rename(twin.with_name("again.nii"))
    image(root, 101, "002_S_0001")
    for number in (105, 106, 107):
        image(root, number, f"023_S_0{number}")
    add(table, row(106, "023_S_0999", "AD"), row(107, "023_S_0107", "Patient"), row(108, "023_S_0108", "AD"))
    listing = sources.find(root, "diagnosis", labels=table)
    found = {Path(i.source).name[-8:]: [f.code for f in i.findings] for i in listing.images if i.findings}
    assert found == {
        "gain.nii": ["duplicate-image", "missing-label"],
        "I105.nii": ["no-row", "missing-label"],
        "I106.nii": ["other-subject"],
        "I107.nii": ["unknown-label"],
    }
    assert messages(listing) == "1 rows of collection.csv have no image: I108."


def test_other_modalities_are_left_out(adni):
    root, table = adni
    lines = table.read_text().splitlines()
    lines[1] = lines[1].replace('"MRI"', '"PET"')
    table.write_text("\n".join(lines) + "\n")
    assert list(sources.find(root, "diagnosis", labels=table).left_out) == ["modality PET"]


def test_another_column_may_be_the_label(adni):
    root, table = adni
    table.write_text(table.read_text().replace('"F"', '"M"', 1))
    assert set(labels(sources.find(root, "Sex", labels=table)).values()) == {"F", "M"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Image Data ID", "Image", "no column 'Image Data ID'"),
        ("Group", "Research Group", "no column 'Group'"),
        ("Acq Date", "Date", "no column 'Acq Date'"),
        ("Subject", "Patient", "no column 'Subject'"),
        ('"I102"', '"I101"', "has the image I101 twice"),
    ],
)
def test_a_collection_that_cannot_be_read_is_refused(adni, old, new, said):
    root, table = adni
    table.write_text(table.read_text().replace(old, new, 1))
    with pytest.raises(CohortError) as caught:
        sources.find(root, "diagnosis", labels=table)
    assert said in str(caught.value)
    assert str(table) in str(caught.value)
    assert caught.value.cure


@pytest.mark.parametrize("day", ["18/4/2006", "", "-4.0", "4/18/2006 08:20"])
def test_a_scan_whose_date_cannot_be_read_is_left_out_with_a_count(adni, day):
    root, table = adni
    table.write_text(table.read_text().replace('"4/18/2006"', f'"{day}"', 1))
    listing = sources.find(root, "diagnosis", labels=table)
    assert sorted(labels(listing)) == ["002_S_0002", "011_S_0003", "011_S_0004"]
    assert list(listing.left_out) == ["its Acq Date in the table is not a date"]
    assert "1 image is left out, its Acq Date in the table is not a date: 002_S_0001." in messages(listing)


@pytest.mark.parametrize("cell", ["baseline", "", "n/a"])
def test_a_row_without_an_image_id_is_left_out_with_a_count(adni, cell):
    root, table = adni
    table.write_text(table.read_text().replace('"I102"', f'"{cell}"', 1))
    listing = sources.find(root, "diagnosis", labels=table)
    assert codes(listing) == [[], ["no-row", "missing-label"], [], []]
    assert "1 row is left out of collection.csv, without an image id in Image Data ID" in messages(listing)
    text = table.read_text()
    for number in (101, 103, 104):
        text = text.replace(f'"I{number}"', '"x"')
    table.write_text(text)
    with fails_with(CohortError):
        sources.find(root, "diagnosis", labels=table)


def test_a_line_of_the_collection_with_other_cells_is_left_out_with_a_count(adni):
    root, table = adni
    table.write_text(table.read_text().replace('"I102","002_S_0002"', '"I102","002_S_0002","x"', 1))
    listing = sources.find(root, "diagnosis", labels=table)
    assert codes(listing) == [[], ["no-row", "missing-label"], [], []]
    assert "1 row is left out of collection.csv" in messages(listing)
    assert "other cells than the header on line 3" in messages(listing)


def test_image_ids_and_subjects_of_spreadsheets_are_numbers(adni):
    root, table = adni
    table.write_text(table.read_text().replace('"I101"', '"101.0"').replace("002_S_0001", "2_s_1"))
    listing = sources.find(root, "diagnosis", labels=table)
    assert (labels(listing)["002_S_0001"], codes(listing)) == ("AD", [[], [], [], []])


def test_tables_of_other_images_or_people_show_the_first_ids_of_both_sides(adni, tmp_path):
    root, table = adni
    dx = visits(tmp_path / "dx.csv", *(f"{rid}.0,bl,2006-04-20,2" for rid in (295, 296, 297, 298)))
    with pytest.raises(CohortError) as caught:
        sources.find(root, "diagnosis", labels=table, adni=AdniRequest(dx))
    assert "(002_S_0001, 002_S_0002, 011_S_0003, ...)" in caught.value.message
    assert "whose RIDs are 295, 296, 297, ..." in caught.value.message
    table.write_text(table.read_text().replace('"I10', '"I90'))
    with fails_with(CohortError):
        sources.find(root, "diagnosis", labels=table)


def test_subjects_without_a_visit_are_counted_and_named(adni, tmp_path):
    root, table = adni
    dx = visits(
        tmp_path / "dx.csv", "3.0,bl,2006-04-20,2", "3,m12,2007-04-20,3", "1,bl,2006-04-20,3", "2,bl,,1"
    )
    listing = sources.find(root, "diagnosis", labels=table, adni=AdniRequest(dx))
    assert labels(listing) == {"002_S_0001": "AD", "002_S_0002": "CN", "011_S_0003": "pMCI"}
    assert "2 subjects have no visit in dx.csv (its RIDs are 3, 1)" in messages(listing)
    assert "1 visit is left out of dx.csv, EXAMDATE is not a date: line 5 (RID 2, DIAGNOSIS 1)." in messages(
        listing
    )


@pytest.mark.parametrize(
    ("odd", "label"),
    [
        (["3,x,,3"], None),
        (["3,x,2007-04-20 00:00:00,3"], None),
        (["3,x,2007-04-20,2", "3,y,2007-04-20,1"], None),
        (["3,x,,2"], "sMCI"),
        (["3,x,,-4.0"], "sMCI"),
        (["4,x,,3"], "sMCI"),
        (["3,x,,3", "3,y,2007-04-20,3"], "pMCI"),
    ],
)
def test_nobody_is_stable_whose_other_diagnosis_is_on_an_unknown_day(adni, tmp_path, odd, label):
    root, table = adni
    lines = ["3,bl,2006-04-20,2", *odd, "3,m36,2009-04-20,2", "1,bl,2006-04-20,3", "2,bl,2006-04-20,1"]
    dx = visits(tmp_path / "dx.csv", *lines)
    listing = sources.find(root, "diagnosis", labels=table, adni=AdniRequest(dx))
    assert labels(listing).get("011_S_0003") == label
    left = listing.left_out.get("MCI, but another diagnosis has no readable date", [])
    assert [source.split("/")[0] for source in left] == ["011_S_0003"] * (label is None)


def test_a_folder_of_another_day_than_the_table_is_a_warning(adni):
    root, table = adni
    table.write_text(table.read_text().replace('"4/18/2006"', '"4/19/2006"', 1))
    assert codes(sources.find(root, "diagnosis", labels=table)) == [["other-day"], [], [], []]


def test_without_the_collection_the_error_asks_for_it(adni):
    with fails_with(CohortError) as caught:
        sources.find(adni[0], "diagnosis")
    assert "--labels" in caught.value.cure


def test_dicom_is_refused_with_how_to_convert_it(adni):
    root, table = adni
    for path in root.rglob("*.nii"):
        path.rename(path.with_suffix(".dcm"))
    with fails_with(CohortError) as caught:
        sources.find(root, "diagnosis", labels=table)
    assert "dcm2niix" in caught.value.cure


def test_an_image_without_an_id_is_refused(adni):
    root, table = adni
    path = next(root.rglob("*.nii"))
    (path.parent.parent / "S1").mkdir()
    path.rename(path.parent.parent / "S1" / "scan.nii")
    with fails_with(CohortError):
        sources.find(root, "diagnosis", labels=table)


def test_options_of_adni_are_refused_elsewhere_and_months_without_diagnoses(adni, tmp_path):
    root, table = adni
    with fails_with(ConfigError):
        sources.find(table, "diagnosis", adni=AdniRequest(visits="all"))
    with fails_with(ConfigError):
        AdniRequest.of(None, 24, None)
    with fails_with(ConfigError):
        sources.find(root, "Sex", labels=table, adni=AdniRequest(tmp_path / "dx.csv"))
    assert AdniRequest.of(None, None, None) is None
    assert json.dumps(AdniRequest.of(Path("dx"), 24, "all").decisive) == '{"visits": "all", "within": 24}'
