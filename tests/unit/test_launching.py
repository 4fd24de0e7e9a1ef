"""The command that starts ranks, put together on the host of the batch script."""

from __future__ import annotations

from pathlib import Path

import pytest
from wording import fails_with

from jobs.schedulers.slurm.supervisor import rank_command
from jobs.schedulers.slurm.supervisor.rank_command import RankLauncher
from jobs.supervisor import mpirun_command
from jobs.supervisor.mpirun_command import Refused


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder of programs, the only one on PATH besides the system's."""
    for name, said in [("srun", "MPI plugin types are...\n\tpmix_v4\n\tnone"), ("mpirun", ""), ("train", "")]:
        program(tmp_path / name, f"printf '{said}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_plugin_that_this_srun_lacks_is_refused_also_where_another_one_begins_with_its_name(place):
    launch = rank_command.prepare(
        RankLauncher("srun", 2, mpi="pmix_v4"), 3, ["train"], {"SLURM_CPUS_PER_TASK": "4"}
    )
    assert launch.line == ["srun", "--mpi=pmix_v4", "--ntasks=6", "--kill-on-bad-exit=1", "train"]
    assert launch.environment["SRUN_CPUS_PER_TASK"] == "4"
    with fails_with(Refused):
        rank_command.prepare(RankLauncher("srun", 2, mpi="pmix"), 3, ["train"], {})


@pytest.mark.parametrize("has", [True, False])
def test_mpirun_of_asynchronous_training_is_ended_by_a_program_that_is_beside_it(place, has):
    program(place / "python", f'[ "$2" = "import jobs.local.surviving" ] && exit {0 if has else 1}; exit 9')
    line = rank_command.prepare(RankLauncher("mpirun", 2, outlives=True), 1, [str(place / "train")], {}).line
    plain, ended = [str(place / "mpirun"), "--mca"], [str(place / "python"), "-m", "jobs.local.surviving"]
    start = next(at for at, word in enumerate(line) if word.startswith("/"))
    assert line[start:][: 3 if has else 2] == (ended if has else plain)


def test_a_job_of_one_process_is_run_as_it_is(place):
    given = {"SRUN_CPUS_PER_TASK": "3"}
    assert rank_command.prepare(RankLauncher("", 1), 1, ["train", "x"], given) == (["train", "x"], given)


@pytest.mark.timeout(15)
def test_an_mpirun_that_prints_no_version_is_not_waited_for(place, monkeypatch):
    monkeypatch.setattr(mpirun_command, "_ASK_S", 0.2)
    program(place / "mpirun", "exec sleep 20")
    command = [str(place / "train")]
    assert rank_command.prepare(RankLauncher("mpirun", 1), 1, command, {}).line[-1:] == command
