"""A batch script with an image compares the Open MPI of host and image before it starts a rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import run_script

from jobs.schedulers.slurm.script import batch_script
from jobs.sites import Site
from jobs.spec import JobSpec

TOKEN = "0123456789abcdef"  # noqa: S105 - names a submission


def run(tmp_path: Path, *, outside: str, inside: str, parallel: bool = True) -> run_script.Noted:
    place = run_script.stubs(tmp_path)
    for name, said in [("mpirun", outside), ("apptainer", inside)]:
        path = place / name
        path.write_text(
            f'#!/bin/sh\ncase "$*" in --version | *"mpirun --version") echo "{said}"; exit ;; esac\n'
            + path.read_text().partition("\n")[2]
        )
    spec = JobSpec(
        *("n", "train", (("cingulum", "train"),), str(tmp_path)), image="/i.sif", parallel=parallel
    )
    script = batch_script(spec, Site(container="apptainer"), tmp_path, TOKEN)
    (tmp_path / "notes").mkdir()
    (tmp_path / "out.log").touch()
    return run_script.run(script, place, tmp_path / "notes")


def test_another_series_is_refused_and_no_rank_is_started(tmp_path):
    noted = run(tmp_path, outside="mpirun (Open MPI) 5.0.8", inside="mpirun (Open MPI) 4.1.8")
    assert noted.code == 2 and noted.arguments == []  # 2: never tried again
    assert "Open MPI is 5.0 on" in noted.stderr and "4.1 in the image" in noted.stderr


@pytest.mark.parametrize(
    ("outside", "inside"),
    [("mpirun (Open MPI) 4.1.4", "mpirun (Open MPI) 4.1.8"), ("", "mpirun (Open MPI) 4.1.8"), ("", "")],
)
def test_the_same_series_or_one_that_is_not_told_is_tried(tmp_path, outside, inside):
    noted = run(tmp_path, outside=outside, inside=inside)
    assert noted.code == 0, noted.stderr
    assert noted.arguments[-3:] == ["/i.sif", "cingulum", "train"]


def test_a_job_of_one_process_asks_for_no_mpi(tmp_path):
    noted = run(tmp_path, outside="mpirun (Open MPI) 5.0.8", inside="mpirun (Open MPI) 4.1.8", parallel=False)
    assert noted.code == 0 and noted.arguments[-2:] == ["cingulum", "train"]
