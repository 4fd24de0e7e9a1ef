"""OASIS-1 is listed by its folders and its table; who has no rating has no diagnosis; faults are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from wording import fails_with

from trainer.data.images import reading
from trainer.data.phantom import archives
from trainer.data.phantom.cohort import make_cohort
from trainer.data.phantom.people import draw
from trainer.data.sources import sources
from trainer.data.sources.listing import SourceListing
from trainer.errors import CohortError

HEADER = "ID,M/F,Hand,Age,Educ,SES,MMSE,CDR,eTIV,nWBV,ASF,Delay"
ROWS = (
    "OAS1_0001_MR1,F,R,74,2,3,29,0,1344,0.743,1.306,N/A",
    "OAS1_0003_MR1,F,R,73,4,3,27,0.5,1454,0.708,1.207,N/A",
    "OAS1_0004_MR1,M,R,28,,,,,1588,0.803,1.105,N/A",
)
NAMES = ("disc1/OAS1_0001_MR1", "disc1/OAS1_0003_MR1", "disc2/OAS1_0004_MR1")


def made(root: Path, *names: str, rows: tuple[str, ...] = ROWS) -> tuple[Path, Path]:
    """An OASIS of empty files, and its table."""
    for name in names or NAMES:
        folder = root / "OASIS" / name / "PROCESSED" / "MPRAGE" / "T88_111"
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("masked_gfc.img", "masked_gfc.hdr", "gfc.img", "masked_gfc_tra_90.gif"):
            (folder / f"{Path(name).name}_mpr_n4_anon_111_t88_{kind}").touch()
    table = root / "OASIS.csv"
    table.write_text("\n".join((HEADER, *rows)) + "\n")
    return root / "OASIS", table


def listed(place: tuple[Path, Path], label: str = "diagnosis", **more: object) -> SourceListing:
    root, table = place
    return sources.find(root, label, labels=table, **more)  # type: ignore[arg-type]


def codes(listing: SourceListing) -> dict[str, list[str]]:
    return {image.subject: [finding.code for finding in image.findings] for image in listing.images}


def test_folders_and_table_tell_of_each_scan(tmp_path):
    listing = listed(made(tmp_path))
    assert (listing.kind, listing.contrast, listing.findings) == ("oasis", "T1w", ())
    assert [(i.subject, i.session, i.sex, i.age, i.label) for i in listing.images] == [
        ("OAS1_0001", "MR1", "F", 74.0, "NC"),
        ("OAS1_0003", "MR1", "F", 73.0, "AD"),
        ("OAS1_0004", "MR1", "M", 28.0, None),
    ]
    assert codes(listing)["OAS1_0004"] == ["missing-label"]
    assert listing.images[0].source.endswith("T88_111/OAS1_0001_MR1_mpr_n4_anon_111_t88_masked_gfc.img")


def test_other_labels_and_a_folder_without_discs(tmp_path):
    place = made(tmp_path, *(Path(name).name for name in NAMES))
    assert [image.label for image in listed(place, "CDR").images] == ["0", "0.5", None]
    assert [image.label for image in listed(place, "sex").images] == ["F", "F", "M"]


def test_a_second_visit_is_a_session_of_its_subject(tmp_path):
    rows = (*ROWS, "OAS1_0001_MR2,F,R,74,,,,,1344,0.743,1.306,42")
    listing = listed(made(tmp_path, *NAMES, "disc1/OAS1_0001_MR2", rows=rows))
    assert [(image.session, image.label) for image in listing.images[:2]] == [("MR1", "NC"), ("MR2", None)]


def test_what_the_table_lacks_or_has_more_is_told(tmp_path):
    rows = (
        ROWS[0].replace(",74,", ",740,"),
        ROWS[1].replace(",0.5,", ",mild,"),
        ROWS[2].replace("OAS1_0004_MR1", "OAS1_0005_MR1").replace(",,,,,", ",,,,2,"),
        "OAS1_0009_MR1,M,R,50,,,,0,,,,",
        ",M,R,50,,,,0,,,,",
    )
    listing = listed(made(tmp_path, *NAMES, "disc2/OAS1_0005_MR1", rows=rows))
    assert codes(listing) == {
        "OAS1_0001": ["age"],
        "OAS1_0003": ["unknown-label"],
        "OAS1_0004": ["no-row", "missing-label"],
        "OAS1_0005": [],
    }
    assert [finding.code for finding in listing.findings][:2] == ["no-id", "no-image"]
    assert "OAS1_0009_MR1" in listing.findings[1].message


def test_what_is_missing_is_said_with_a_cure(tmp_path):
    place = made(tmp_path)
    with fails_with(CohortError):
        sources.find(place[0], "diagnosis")
    with fails_with(CohortError):
        listed(place, contrast="T2w")
    with fails_with(CohortError):
        listed(place, "dementia")
    with fails_with(CohortError):
        listed(made(tmp_path / "twice", rows=(*ROWS, ROWS[0])))
    with fails_with(CohortError):
        listed(made(tmp_path / "others", rows=("OAS1_0301_MR1,F,R,74,2,3,29,0,,,,",)))
    (tmp_path / "raw" / "OAS1_0001_MR1" / "RAW").mkdir(parents=True)
    with fails_with(CohortError):
        listed((tmp_path / "raw", place[1]))


@pytest.mark.parametrize(("column", "label"), [("ID", "sex"), ("CDR", "diagnosis"), ("M/F", "sex")])
def test_a_table_without_a_column_is_another_one(tmp_path, column, label):
    root, table = made(tmp_path)
    table.write_text(table.read_text().replace(column, "other", 1))
    with pytest.raises(CohortError, match="has no column"):
        sources.find(root, label, labels=table)


def test_phantoms_are_packed_so_that_they_lie_as_they_did(tmp_path):
    """Analyze has no orientation: what reads it takes axes to the left, to the front and up."""
    make_cohort(tmp_path, 4, 16, workers=1, groups=("AD", "NC"))
    archives.write_oasis(tmp_path, [draw(0, number, ("AD", "NC")) for number in range(4)], ("T1w",))
    listing = listed((tmp_path / "sourcedata" / "OASIS", tmp_path / "sourcedata" / "OASIS.csv"))
    assert [image.label for image in listing.images] == ["AD", "NC", "AD", "NC"]
    packed = reading.read(listing.images[0].path)
    made_of = reading.read(tmp_path / "sub-0001" / "anat" / "sub-0001_T1w.nii.gz")
    assert packed.stored_shape == (16, 16, 16, 1) and not packed.oriented
    assert packed.data.any() and (packed.data[::-1] == made_of.data).all()
