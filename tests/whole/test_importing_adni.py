"""Phantoms in ADNI's layout, from `cingulum phantom` to a shard set with both tasks' classes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from cingulum.cli.data import phantom
from cingulum.cli.from_model import with_options
from cingulum.cli.import_ import import_images
from trainer.data.shards.shards import ShardSet

app = typer.Typer()
app.command("import")(with_options(import_images))
app.command("phantom")(phantom)


def invoke(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def imported(cohort: Path, shards: Path, diagnoses: Path | None = None):
    folder = cohort / "sourcedata"
    tables = ("--labels", folder / "ADNI.csv", "--diagnoses", diagnoses or folder / "DXSUM.csv")
    return invoke("import", folder / "ADNI", shards, *tables, "--size=16", "--workers=1")


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("adni") / "cohort"
    made = invoke("phantom", out, "--subjects=8", "--size=16", "--workers=1", "--layout=adni")
    assert made.exit_code == 0, made.output
    return out


def test_phantoms_in_the_layout_of_adni_are_imported_with_both_tasks_classes(cohort, tmp_path):
    done = imported(cohort, tmp_path / "adni")
    assert done.exit_code == 0, done.output
    assert "8 volumes (AD 2, CN 2, pMCI 2, sMCI 2)" in done.output
    assert "is already done" in imported(cohort, tmp_path / "adni").output

    assert invoke("import", cohort, tmp_path / "bids", "--size=16", "--workers=1").exit_code == 0
    one, other = ShardSet.open(tmp_path / "adni"), ShardSet.open(tmp_path / "bids")
    by_number = {int(volume.subject[-4:]): (row, volume) for row, volume in enumerate(one.volumes)}
    for row, volume in enumerate(other.volumes):
        same, its = by_number[int(volume.subject)]
        np.testing.assert_array_equal(one.read(same), other.read(row))
        assert its.tissue == volume.tissue
        assert its.label == {"NC": "CN"}.get(str(volume.label), volume.label)
    assert len(by_number) == 8


def test_who_is_left_out_is_said_and_kept_with_the_set(cohort, tmp_path):
    table = cohort / "sourcedata" / "DXSUM.csv"
    rows = list(csv.reader(table.read_text().splitlines()))
    short = tmp_path / "DXSUM.csv"
    kept = [row for row in rows if row[1] != "3" or row[2] in ("bl", "m06")]
    short.write_text("\r\n".join(",".join(row) for row in kept), encoding="utf-8-sig")
    done = imported(cohort, tmp_path / "set", diagnoses=short)
    assert done.exit_code == 0, done.output
    assert "7 volumes (AD 2, CN 2, pMCI 2, sMCI 1)" in done.output
    assert "note: 1 image is left out, MCI, but followed for less than 36 months: 991_S_0003." in done.output
    story = json.loads((tmp_path / "set" / "import.json").read_text())
    assert [len(images) for images in story["not_taken"].values()] == [1]


def test_the_same_phantoms_in_two_layouts_take_no_more_of_the_disk(cohort):
    link = next((cohort / "sourcedata" / "ADNI").glob("*/*/*/*/sub-0001_T1w.nii.gz"))
    assert link.samefile(cohort / "sub-0001" / "anat" / "sub-0001_T1w.nii.gz")
