"""IXI is listed by the names of its files and its table; faults are named, dates of birth are not read."""

from __future__ import annotations

from pathlib import Path

import pytest
from wording import fails_with

from trainer.data.sources import sources
from trainer.data.sources.listing import SourceListing
from trainer.errors import CohortError

HEADER = 'IXI_ID,"SEX_ID (1=m, 2=f)",HEIGHT,DOB,AGE'
ROWS = ("2,2,164,1970-01-31,35.80", "12,1,175,1966-08-20,38.78", "13,1,182,1958-09-15,46.71")


def made(root: Path, *names: str, rows: tuple[str, ...] = ROWS) -> tuple[Path, Path]:
    """An IXI of empty files, and its table."""
    for name in names or ("IXI002-Guys-0828-T1", "IXI012-HH-1211-T1", "IXI013-HH-1212-T1"):
        path = root / "IXI" / f"{name}.nii.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    table = root / "IXI.csv"
    table.write_text("\n".join((HEADER, *rows)) + "\n")
    return root / "IXI", table


def listed(place: tuple[Path, Path], label: str = "sex", **more: object) -> SourceListing:
    root, table = place
    return sources.find(root, label, labels=table, **more)  # type: ignore[arg-type]


def codes(listing: SourceListing) -> dict[str, list[str]]:
    return {image.subject: [finding.code for finding in image.findings] for image in listing.images}


def test_names_and_table_tell_of_each_scan(tmp_path):
    listing = listed(made(tmp_path))
    assert (listing.kind, listing.contrast, listing.findings) == ("ixi", "T1w", ())
    assert [(i.subject, i.site, i.sex, i.age, i.label, i.session) for i in listing.images] == [
        ("IXI002", "Guys", "F", 35.8, "F", None),
        ("IXI012", "HH", "M", 38.78, "M", None),
        ("IXI013", "HH", "M", 46.71, "M", None),
    ]
    assert listing.images[0].source == "IXI002-Guys-0828-T1.nii.gz"


def test_a_folder_for_each_archive_and_other_labels(tmp_path):
    names = ("IXI-T1/IXI002-Guys-0828-T1", "IXI-T1/IXI012-HH-1211-T1")
    place = made(tmp_path, *names, "IXI-T2/IXI002-Guys-0828-T2", "IXI-T2/IXI013-HH-1212-T2")
    assert [image.label for image in listed(place, "site").images] == ["Guys", "HH"]
    assert [image.label for image in listed(place, "HEIGHT").images] == ["164", "175"]
    both = listed(place, contrasts=("T1w", "T2w"))
    assert [file.source for file in both.images[0].contrasts] == ["IXI-T2/IXI002-Guys-0828-T2.nii.gz"]
    assert codes(both) == {"IXI002": [], "IXI012": ["missing-contrast"]}
    other = listed(place, contrast="T2w")
    assert [image.source for image in other.images] == [
        "IXI-T2/IXI002-Guys-0828-T2.nii.gz",
        "IXI-T2/IXI013-HH-1212-T2.nii.gz",
    ]


def test_nothing_is_read_of_dates_of_birth(tmp_path):
    listing = listed(made(tmp_path))
    assert "1970-01-31" not in repr(listing) and "1966" not in repr(listing)


def test_several_rows_of_a_person_complete_but_never_contradict_each_other(tmp_path):
    rows = (*ROWS, "2,,,,", "IXI012,2,175,1966-08-20,38.78")
    listing = listed(made(tmp_path, rows=rows))
    assert codes(listing) == {"IXI002": [], "IXI012": ["ambiguous-row"], "IXI013": []}
    assert "sex M and F" in listing.images[1].findings[0].message


def test_who_has_no_row_or_no_age_is_told(tmp_path):
    listing = listed(made(tmp_path, rows=("2,2,164,1970-01-31,", "13,1,182,1958-09-15,200", "99,1,,,50")))
    assert codes(listing) == {"IXI002": [], "IXI012": ["no-row", "missing-label"], "IXI013": ["age"]}
    assert {finding.code for finding in listing.findings} == {"no-image", "missing-value"}
    assert "IXI099" in listing.findings[0].message


def test_what_is_no_ixi_is_listed_as_before(tmp_path):
    """Files in a folder for each label, and other names."""
    for place in ("M/IXI002-Guys-0828-T1.nii.gz", "F/IXI012-HH-1211-T1.nii.gz"):
        (tmp_path / "sorted" / place).parent.mkdir(parents=True)
        (tmp_path / "sorted" / place).touch()
    listing = sources.find(tmp_path / "sorted", "sex")
    assert listing.kind == "folder" and {image.label for image in listing.images} == {"M", "F"}


def test_a_table_of_ones_own_counts_as_for_any_folder(tmp_path):
    root, table = made(tmp_path)
    names = sorted(path.name for path in root.iterdir())
    table.write_text("image,group\n" + "".join(f"{name},{k % 2}\n" for k, name in enumerate(names)))
    assert [image.label for image in listed((root, table), "group").images] == ["0", "1", "0"]


def test_what_is_missing_is_said_with_a_cure(tmp_path):
    place = made(tmp_path)
    with fails_with(CohortError):
        sources.find(place[0], "sex")
    with fails_with(CohortError):
        listed(place, contrast="FLAIR")
    with fails_with(CohortError):
        listed(place, contrast="T2w")
    with fails_with(CohortError):
        listed(place, "diagnosis")
    with fails_with(CohortError):
        listed(made(tmp_path / "others", rows=("501,1,,,40",)))


@pytest.mark.parametrize("column", ["IXI_ID", "AGE", "SEX_ID (1=m, 2=f)"])
def test_a_table_without_a_column_is_another_one(tmp_path, column):
    root, table = made(tmp_path)
    table.write_text(table.read_text().replace(column, "other", 1))
    with pytest.raises(CohortError, match="has no column"):
        sources.find(root, "sex", labels=table)
