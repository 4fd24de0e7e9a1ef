"""A cohort on disk: what is written, that it is the same every time, and that it can be stopped."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nibabel
import numpy as np
import psutil
import pytest
from wording import fails_with

from cingulum.cli.data import phantom as command
from trainer.data.phantom import bids, files, image, people, template
from trainer.data.phantom.cohort import make_cohort
from trainer.errors import CingulumError, InputError

SUBJECTS, SIZE, SEED = 5, 16, 3
_BEFORE_WORK = "derivatives/disease/truth.tsv"


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("phantom") / "one"
    make_cohort(out, SUBJECTS, SIZE, seed=SEED, workers=1)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def times(folder: Path) -> dict[Path, int]:
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def running(group: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_one_and_two_workers_write_the_same_bytes(cohort: Path, tmp_path: Path) -> None:
    make_cohort(tmp_path / "two", SUBJECTS, SIZE, seed=SEED, workers=2)
    assert contents(tmp_path / "two") == contents(cohort)


def test_a_cohort_is_a_bids_folder_that_says_it_is_a_phantom(cohort: Path) -> None:
    assert "not people" in (cohort / "README").read_text()
    description = json.loads((cohort / "dataset_description.json").read_text())
    assert description["BIDSVersion"] and description["DatasetType"] == "raw"
    derived = json.loads((cohort / "derivatives/tissue/dataset_description.json").read_text())
    assert derived["DatasetType"] == "derivative"
    with (cohort / "participants.tsv").open() as table:
        rows = list(csv.DictReader(table, delimiter="\t"))
    assert [row["diagnosis"] for row in rows] == ["AD", "NC", "sMCI", "pMCI", "AD"]
    assert set(json.loads((cohort / "participants.json").read_text())) == set(rows[0]) - {"participant_id"}
    folders = sorted(p.name for p in cohort.glob("sub-*"))
    assert folders == [row["participant_id"] for row in rows] and len(folders) == SUBJECTS
    images = [p for p in contents(cohort) if p.endswith(".nii.gz")]
    assert len(images) == 5 * SUBJECTS + 1


def test_images_are_ras_in_mm_and_tissue_maps_share_their_grid(cohort: Path) -> None:
    t1 = nibabel.nifti1.load(cohort / "sub-0001/anat/sub-0001_T1w.nii.gz")
    assert t1.shape == (SIZE,) * 3 and t1.get_data_dtype() == np.int16
    assert t1.header.get_zooms() == pytest.approx([212 / SIZE] * 3)
    assert t1.header.get_xyzt_units()[0] == "mm"
    assert nibabel.aff2axcodes(t1.affine) == ("R", "A", "S")
    assert np.allclose(t1.get_qform(), t1.get_sform(), atol=1e-4)
    maps = [
        nibabel.nifti1.load(
            cohort / f"derivatives/tissue/sub-0001/anat/sub-0001_label-{tissue}_probseg.nii.gz"
        )
        for tissue in ("GM", "WM", "CSF")
    ]
    total = sum(np.asarray(m.dataobj) for m in maps)
    assert all(np.array_equal(m.affine, t1.affine) for m in maps)
    assert 0.98 < total.max() < 1.01
    litres = total.sum() * (212 / SIZE) ** 3 / 1e6
    assert 1.2 < litres < 2.6


def test_a_displacement_map_lies_on_the_subjects_own_grid_and_says_mm(cohort: Path) -> None:
    t1 = nibabel.nifti1.load(cohort / "sub-0001/anat/sub-0001_T1w.nii.gz")
    moved = nibabel.nifti1.load(cohort / bids.displacement_file("sub-0001"))
    assert moved.shape == t1.shape and np.array_equal(moved.affine, t1.affine)
    person = people.draw(SEED, 0)
    made = image.make(template.build(SIZE), person, SEED, 1.5).moved
    assert np.abs(np.asarray(moved.dataobj) - made).max() <= 0.0051  # stored in steps of 0.01 mm
    assert np.asarray(moved.dataobj)[np.asarray(t1.dataobj) == 0].max() < np.asarray(moved.dataobj).max()


def test_a_second_contrast_lies_beside_the_first_and_leaves_it_as_it_was(
    cohort: Path, tmp_path: Path
) -> None:
    make_cohort(tmp_path / "both", SUBJECTS, SIZE, seed=SEED, workers=2, contrasts=("T1w", "T2w"))
    both, one = contents(tmp_path / "both"), contents(cohort)
    images = [name for name in one if name.endswith((".nii.gz", ".tsv"))]
    assert {name: both[name] for name in images} == {name: one[name] for name in images}
    added = {name for name in both if name not in one}
    assert added == {f"sub-{n + 1:04d}/anat/sub-{n + 1:04d}_T2w.nii.gz" for n in range(SUBJECTS)} | {
        "T2w.json"
    }
    assert "--contrasts T1w,T2w" in both["README"].decode()
    with fails_with(InputError):
        make_cohort(tmp_path / "both", SUBJECTS, SIZE, seed=SEED)


def test_a_cohort_from_before_the_choice_of_contrasts_and_displacements_is_completed(
    cohort: Path, tmp_path: Path
) -> None:
    out = tmp_path / "old"
    for name, content in contents(cohort).items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        if "displacement" not in name:
            (out / name).write_bytes(content)
    description = json.loads((out / "dataset_description.json").read_text())
    del description["GeneratedBy"][0]["Parameters"]["contrasts"]
    (out / "dataset_description.json").write_text(json.dumps(description))
    assert make_cohort(out, SUBJECTS, SIZE, seed=SEED, workers=1).made == SUBJECTS
    assert contents(out) == contents(cohort)


def test_the_disease_of_earlier_cohorts_is_kept_by_name(cohort: Path, tmp_path: Path) -> None:
    """A cohort from before there was a choice is the diffuse one, and is completed as that alone."""
    out = tmp_path / "old"
    make_cohort(out, SUBJECTS, SIZE, seed=SEED, workers=1, pattern="diffuse")
    made = contents(out)
    header = made["derivatives/disease/truth.tsv"].decode().splitlines()[0].split("\t")
    assert header[2:] == [f"{name}_mm" for name in template.REGIONS[:4]]
    assert "--disease diffuse" in made["README"].decode()
    assert made["sub-0001/anat/sub-0001_T1w.nii.gz"] != contents(cohort)["sub-0001/anat/sub-0001_T1w.nii.gz"]
    description = json.loads((out / "dataset_description.json").read_text())
    del description["GeneratedBy"][0]["Parameters"]["disease"]
    (out / "dataset_description.json").write_text(json.dumps(description))
    (out / "participants.tsv").unlink()
    with fails_with(InputError):
        make_cohort(out, SUBJECTS, SIZE, seed=SEED)
    assert make_cohort(out, SUBJECTS, SIZE, seed=SEED, workers=1, pattern="diffuse").made == 0
    assert contents(out) == made


def test_compressed_files_carry_no_name_and_no_time(cohort: Path) -> None:
    header = (cohort / "sub-0001/anat/sub-0001_T1w.nii.gz").read_bytes()[:10]
    assert header[:2] == b"\x1f\x8b"
    assert header[3] == 0, "no optional fields: no file name"
    assert header[4:8] == bytes(4), "no time"


def test_a_whole_cohort_is_left_alone(cohort: Path) -> None:
    before = times(cohort)
    assert make_cohort(cohort, SUBJECTS, SIZE, seed=SEED).made == 0
    assert times(cohort) == before


def test_a_cohort_cut_short_is_completed_to_the_same_bytes(cohort: Path, tmp_path: Path) -> None:
    out = tmp_path / "short"
    people_drawn = [people.draw(SEED, number) for number in range(SUBJECTS)]
    for name, content in contents(cohort).items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)
    (out / "participants.tsv").unlink()
    (out / bids.subject_files(people_drawn[1])["WM"]).unlink()
    (out / bids.subject_files(people_drawn[4])["T1w"]).unlink()
    left_behind = out / "sub-0005/anat/.sub-0005_T1w.nii.gz.partial"
    left_behind.write_bytes(b"half")
    kept = out / bids.subject_files(people_drawn[0])["T1w"]
    before = kept.stat().st_mtime_ns

    seen: list[tuple[int, int]] = []
    outcome = make_cohort(
        out, SUBJECTS, SIZE, seed=SEED, workers=1, on_progress=lambda *now: seen.append(now)
    )
    assert outcome.made == 2
    assert seen == [(3, 5), (4, 5), (5, 5)]
    assert kept.stat().st_mtime_ns == before
    assert contents(out) == contents(cohort)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"subjects": 0}, "--subjects 0"),
        ({"size": 15}, "--size 15"),
        ({"size": 1000}, "--size 1000"),
        ({"gap": -0.1}, "--gap -0.1"),
        ({"gap": float("nan")}, "--gap nan"),
        ({"gap": 6.0}, "--gap 6"),
        ({"seed": -1}, "--seed -1"),
        ({"workers": 0}, "--workers 0"),
        ({"groups": ("AD", "CN")}, "'CN'"),
        ({"groups": ()}, "groups"),
        ({"groups": ("AD", "AD")}, "twice"),
        ({"contrasts": ("T1w", "FLAIR")}, "'FLAIR'"),
        ({"contrasts": ("T2w",)}, "first contrast"),
        ({"contrasts": ()}, "first contrast"),
        ({"pattern": "global"}, "--disease 'global'"),
        ({"sites": "far"}, "--sites 'far'"),
    ],
)
def test_an_impossible_argument_is_refused_before_anything_is_written(
    wrong: dict, named: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=named) as caught:
        make_cohort(tmp_path / "out", **{"subjects": 2, "size": 16, **wrong})
    assert caught.value.cure and caught.value.exit_code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("other", [{"seed": 4}, {"subjects": 6}, {"gap": 1.0}, {"groups": ("AD", "NC")}])
def test_a_folder_with_another_cohort_is_refused_and_kept(cohort: Path, other: dict) -> None:
    before = contents(cohort)
    with pytest.raises(InputError, match=f"other parameters.*{next(iter(other))}"):
        make_cohort(cohort, **{"subjects": SUBJECTS, "size": SIZE, "seed": SEED, **other})
    assert contents(cohort) == before


@pytest.mark.parametrize("content", [None, "{", "[]", '{"GeneratedBy": [{"Name": "fMRIPrep"}]}'])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    if content is not None:
        (tmp_path / "dataset_description.json").write_text(content)
    with fails_with(InputError):
        make_cohort(tmp_path, 2, 16)
    assert not (tmp_path / "README").exists()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with fails_with(InputError):
            make_cohort(out, 2, 16)


def test_a_full_disk_is_told_and_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with fails_with(InputError):
        files.write(tmp_path / "deep" / "file.txt", b"content")
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_killed_worker_is_told_and_the_others_end(tmp_path: Path) -> None:
    def kill_one(done: int, _: int) -> None:
        if done == 1:
            multiprocessing.active_children()[0].kill()

    with fails_with(CingulumError) as caught:
        make_cohort(tmp_path / "out", 200, 32, workers=1, on_progress=kill_one)
    assert caught.value.exit_code == 1 and "again" in str(caught.value)
    assert multiprocessing.active_children() == []
    assert not (tmp_path / "out" / "participants.tsv").exists()


@pytest.mark.parametrize("images", [0, 4], ids=["while workers start", "while they work"])
def test_ctrl_c_ends_all_workers_and_leaves_nothing_half_written(tmp_path: Path, images: int) -> None:
    out = tmp_path / "out"
    # Python's own end shows a traceback for each further Ctrl-C, which is not what is looked at here.
    script = (
        "import signal; from trainer.data.phantom.cohort import make_cohort\n"
        f"try: make_cohort({str(out)!r}, 4000, 32, workers=2)\n"
        "except KeyboardInterrupt: signal.signal(signal.SIGINT, signal.SIG_IGN); raise"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    give_up = time.monotonic() + 60
    began = (
        (lambda: list(out.glob("sub-*/anat/*_T1w.nii.gz"))[images - 1 :])
        if images
        else (out / _BEFORE_WORK).exists
    )
    while not began() and process.poll() is None and time.monotonic() < give_up:
        time.sleep(0.02)
    time.sleep(0.2)
    for _ in range(3):  # as an impatient user at a terminal does: to the parent and its workers alike
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.005)
    asked = time.monotonic()
    _, told = process.communicate(timeout=30)
    assert time.monotonic() - asked < 10
    assert process.returncode == -signal.SIGINT
    assert told.count("Traceback") == 1, f"only the parent may be interrupted:\n{told}"
    while running(process.pid) and time.monotonic() - asked < 10:
        time.sleep(0.02)
    assert running(process.pid) == []
    written = list(out.rglob("*_T1w.nii.gz"))
    assert images <= len(written) < 4000
    assert not list(out.rglob(".*")) and not (out / "participants.tsv").exists()
    assert all(nibabel.nifti1.load(path).get_fdata().shape == (32,) * 3 for path in written[:5])


def test_the_command_reports_as_json(cohort: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(cohort, SUBJECTS, SIZE, seed=SEED, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["made"] == 0 and told["subjects"] == SUBJECTS and told["path"] == str(cohort)
