"""DICOM files of phantoms become the images they were made of, and nothing of a name or a date is left."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
from wording import fails_with

from trainer.data.dicom import converting, people
from trainer.data.dicom import series as reading
from trainer.data.importing import importing
from trainer.data.importing.import_request import ImportRequest
from trainer.data.phantom import archives, dicom_series
from trainer.data.phantom.cohort import make_cohort
from trainer.data.phantom.people import draw
from trainer.errors import CohortError, InputError

PEOPLE = 3
# 24 slices are no whole head: the rules are tested with more of them in tests/unit.
T1 = ("t1*",)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cohort")
    make_cohort(folder, PEOPLE, 24, workers=1, groups=("AD", "NC"), contrasts=("T1w", "T2w"))
    persons = [draw(0, number, ("AD", "NC")) for number in range(PEOPLE)]
    archives.write_dicom(folder, persons, ("T1w", "T2w"))
    return folder


@pytest.fixture
def archive(cohort, tmp_path):
    return Path(shutil.copytree(cohort / "sourcedata" / "DICOM", tmp_path / "archive"))


def silent(done: int, total: int) -> None:
    pass


def cohort_of(root: Path, **asked: object) -> people.DicomCohort:
    listed = reading.series_of(reading.read(root, 1, silent))
    return people.cohort(listed, root, **{"patterns": T1, **asked})  # type: ignore[arg-type]


def sessions(root: Path, **asked: object) -> tuple[people.DicomSession, ...]:
    return cohort_of(root, **asked).sessions


def converted(root: Path, out: Path, **asked: object) -> list[converting.Conversion]:
    return converting.convert(sessions(root, **asked), out, 1, silent)


def image_of(bids: Path, subject: str) -> Path:
    return bids / f"sub-{subject}" / "ses-01" / "anat" / f"sub-{subject}_ses-01_T1w.nii.gz"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def change(path: Path, **values: object) -> None:
    data = pydicom.dcmread(path)
    for name, value in values.items():
        setattr(data, name, value)
    data.save_as(path)


def test_images_are_those_that_the_files_were_made_of(cohort, archive, tmp_path):
    assert [one.failure for one in converted(archive, tmp_path / "bids")] == [""] * PEOPLE
    for number in range(1, PEOPLE + 1):
        made = nibabel.load(image_of(tmp_path / "bids", f"PH{number:04d}"))
        truth = nibabel.load(cohort / f"sub-{number:04d}/anat/sub-{number:04d}_T1w.nii.gz")
        upright = nibabel.as_closest_canonical(made)
        assert np.array_equal(upright.get_fdata(), truth.get_fdata())
        assert np.allclose(upright.affine, truth.affine, atol=1e-3)
    table = rows(tmp_path / "bids" / "participants.tsv")
    person = draw(0, 0, ("AD", "NC"))
    assert table[0] == {
        "participant_id": "sub-PH0001",
        "sex": person.sex,
        "age": f"{person.age:g}",
        "scanner": f"Cingulum Phantom {person.site} 3 T",
    }
    table = rows(tmp_path / "bids" / "series.tsv")
    judged = [(row["series"], row["taken"], row["reason"]) for row in table[:3]]
    other, small = "does not match --series", "24 slices of 8.83 mm"
    assert judged == [("1", "no", other), ("2", "yes", small), ("3", "no", other)]


def test_no_name_and_no_date_is_left(archive, tmp_path):
    first = next(archive.rglob("series2/IM0001"))
    more = {"ReferringPhysicianName": "Doktor^Karl", "InstitutionName": "Hospital of Nowhere"}
    for path in archive.rglob("series2/*"):
        change(path, SeriesDescription="t1 of Mustermann", **more)
    converted(archive, tmp_path / "bids")
    born = pydicom.dcmread(first).PatientBirthDate
    day = pydicom.dcmread(first).StudyDate
    dates = born, day, f"{day[:4]}-{day[4:6]}"
    names = dicom_series.NAME.lower().split("^")
    secret = [text.encode() for text in (*names, "muster", "karl", "nowhere", *dates)]
    table = archive.parent / "labels.csv"
    table.write_text("subject,diagnosis\nPH0001,AD\nPH0002,NC\nPH0003,AD\n")
    importing.run(ImportRequest(source=tmp_path / "bids", target=tmp_path / "shards", labels=table, size=16))
    for path in (*(tmp_path / "bids").rglob("*"), *(tmp_path / "shards").rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            plain = gzip.decompress(content) if path.suffix == ".gz" else content
            assert not [word for word in secret if word in plain.lower()], path
            assert not [word for word in secret if word in str(path.relative_to(tmp_path)).lower().encode()]
    assert "t1 of ***" in (tmp_path / "bids" / "series.tsv").read_text()
    header = nibabel.load(next((tmp_path / "bids").rglob("*.nii.gz"))).header
    assert not header.extensions and header["descrip"].tobytes().strip(b"\0") == b""


def test_stopped_and_called_again_nothing_is_made_twice_and_what_changed_is_made_anew(archive, tmp_path):
    converted(archive, tmp_path / "bids")
    images = {path: path.read_bytes() for path in (tmp_path / "bids").rglob("*.nii.gz")}
    second = image_of(tmp_path / "bids", "PH0002")
    second.with_name(second.name.replace(".nii.gz", ".json")).unlink()  # as if it was stopped there
    again = converted(archive, tmp_path / "bids")
    assert [one.is_kept for one in again] == [True, False, True]
    assert {path: path.read_bytes() for path in images} == images
    shutil.rmtree(archive / "person0003")
    left = converting.left_behind(sessions(archive), tmp_path / "bids")
    assert left == [image_of(tmp_path / "bids", "PH0003").relative_to(tmp_path / "bids").as_posix()]


def test_files_of_a_series_may_lie_anywhere_and_twice(archive, tmp_path):
    """All in one folder, under names without a meaning, one of them copied; with files that are none."""
    flat = tmp_path / "flat" / "all"
    flat.mkdir(parents=True)
    for number, path in enumerate(sorted(archive.rglob("IM*"))):
        shutil.copy(path, flat / f"{(number * 7919) % 100003:06d}")
    shutil.copy(next(archive.rglob("series2/IM0001")), flat / "copy")
    (flat / "readme.txt").write_text("hello")
    (flat / "cut").write_bytes(next(archive.rglob("series2/IM0002")).read_bytes()[:200])
    headers = reading.read(tmp_path / "flat", 1, silent)
    assert (headers.others, headers.damaged) == (1, 1)
    assert [len(one.taken.files) for one in sessions(tmp_path / "flat") if one.taken] == [24] * PEOPLE


def test_slices_that_are_missing_are_told_and_nothing_is_made_of_the_others(archive):
    for name in ("IM0005", "IM0006"):
        (archive / "person0001/study/series2" / name).unlink()
    first = sessions(archive)[0]
    assert first.taken is None and first.verdicts[1].reason == "2 of 24 slices are missing"


def test_several_echoes_of_a_series_are_several_images(archive):
    study = archive / "person0001/study"
    (study / "echo2").mkdir()
    for path in sorted((study / "series2").iterdir()):
        shutil.copy(path, study / "echo2")
        change(study / "echo2" / path.name, EchoTime=4.7, SOPInstanceUID=f"1.2.3.{path.name[2:].lstrip('0')}")
    first = sessions(archive)[0]
    listed = [verdict.series for verdict in first.verdicts]
    echoes = [one.key.echo_ms for one in listed if one.acquisition.number == 2]
    assert sorted(echoes) == [2.98, 4.7] and first.taken.key.echo_ms == 2.98


def test_studies_of_a_subject_are_sessions_in_the_order_of_their_days(archive, tmp_path):
    for path in (archive / "person0002").rglob("IM*"):
        change(path, PatientID="PH0001", PatientSex="", PatientBirthDate="", StudyDate="20010101")
    cohort = cohort_of(archive)
    listed = cohort.sessions
    assert [(one.subject, one.number) for one in listed] == [("PH0001", 1), ("PH0001", 2), ("PH0003", 1)]
    assert "person0002" in listed[0].taken.files[0].path and not cohort.doubts
    converting.convert(listed, tmp_path / "bids", 1, silent)
    people.write_key(listed, tmp_path / "private" / "key.csv")
    lines = (tmp_path / "private" / "key.csv").read_text().splitlines()
    assert lines[:2] == ["subject,session,id,scanned", "PH0001,01,PH0001,20010101"]
    assert (tmp_path / "private" / "key.csv").stat().st_mode & 0o077 == 0
    for path in (archive / "person0002").rglob("IM*"):
        change(path, PatientName="Jemand^Anders", StudyDate="")
    assert [doubt.split(":")[0] for doubt in cohort_of(archive).doubts] == [
        "subject PH0001 has two names",
        "subject PH0001 has studies without a day, whose order is not known",
    ]
    visits = rows(tmp_path / "bids/sub-PH0001/sub-PH0001_sessions.tsv")
    assert [row["session_id"] for row in visits] == ["ses-01", "ses-02"]


def test_who_is_who_is_never_guessed(archive, tmp_path):
    for path in archive.rglob("person0001/**/IM*"):
        change(path, PatientID="Mustermann-1")
    with fails_with(CohortError):
        sessions(archive)
    table = tmp_path / "subjects.csv"
    table.write_text("id,subject\nMustermann-1,A1\nPH0002,A2\n")
    with fails_with(CohortError):
        sessions(archive, table=table)
    table.write_text("id,subject\nMustermann-1,A1\nPH0002,A1\nPH0003,A3\n")
    with fails_with(CohortError):  # two days of birth
        sessions(archive, table=table)
    table.write_text("id,subject\nMustermann-1,A1\nPH0002,A2\nPH0003,A3\n")
    assert [one.subject for one in sessions(archive, table=table)] == ["A1", "A2", "A3"]
    by_folder = [one.subject for one in sessions(archive, by="folder")]
    assert by_folder == ["person0001", "person0002", "person0003"]
    table.write_text("id,subject\nMustermann-1,A1\nMustermann-1,A2\n")
    with fails_with(CohortError):
        sessions(archive, table=table)
    for same in (("", "S1"), ("S-1", "S1"), ("S01", "S1"), ("Nobody", "S1")):
        for number, person in enumerate(sorted(archive.iterdir())):
            for one in person.rglob("IM*"):
                change(one, PatientID=same[number % 2], PatientBirthDate="", PatientSex="")
        with fails_with(CohortError):
            sessions(archive)


def test_a_folder_of_something_else_is_left_alone(archive, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all my work")
    with fails_with(InputError):
        converted(archive, tmp_path / "mine")
    with fails_with(InputError):
        converted(archive, tmp_path / "mine" / "thesis.tex")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def command(*words: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "cingulum", "dicom", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_says_what_it_takes_and_ends_with_2_for_what_it_cannot(archive, tmp_path):
    out = tmp_path / "bids"
    rehearsed = command(archive, out, "--series", "T1*", "--dry-run")
    assert rehearsed.returncode == 0 and "3 images can be converted" in rehearsed.stdout and not out.exists()
    outcome = command(archive, out, "--series", "T1*", "--json")
    assert outcome.returncode == 0, outcome.stderr
    tree = json.loads(outcome.stdout)
    assert tree["images"] == PEOPLE and sum(row["taken"] for row in tree["series"]) == PEOPLE
    assert "Muster" not in outcome.stdout + outcome.stderr + rehearsed.stdout
    for words, said in (
        ((archive, out), "24 slices of"),
        ((archive, out, "--series", "nothing"), "none of 9 series"),
        ((archive, out, "--series", "t1*", "--key", out / "key.csv"), "in another folder"),
        ((tmp_path / "bids", tmp_path / "b"), "holds no DICOM images"),
        ((tmp_path / "typo", out), "there is no such folder"),
        ((archive, out, "--workers", "0"), "--workers 0"),
    ):
        refused = command(*words)
        assert refused.returncode == 2 and said in refused.stderr, (words, refused.stderr)
        assert "Traceback" not in refused.stderr


def test_one_id_for_all_is_doubted(archive, tmp_path):
    for path in archive.rglob("IM*"):
        change(path, PatientID="ANON1", PatientSex="", PatientBirthDate="")
    refused = command(archive, tmp_path / "bids", "--series", "t1*", "--dry-run")
    assert refused.returncode == 0 and "--subject folder" in refused.stderr
