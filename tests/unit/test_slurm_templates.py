"""The batch scripts in slurm/ that users edit and submit by hand."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import run_script

from jobs.schedulers import site_profiles

PLACE = site_profiles.shipped()
SCRIPTS = sorted(path.name for path in PLACE.glob("*.sbatch"))
ARGUMENTS = {
    "import.sbatch": ["my cohort", "my shards", "--label", "a b"],
    "evaluate.sbatch": ["runs/my run"],
}
EXPECTED = {
    "single-node.sbatch": ["cingulum", "train", "my run.yaml", "--resume", "a=b c"],
    "multi-node.sbatch": ["cingulum", "train", "my run.yaml", "--resume", "a=b c"],
    "hybrid.sbatch": ["cingulum", "train", "my run.yaml", "--resume", "a=b c"],
    "kfold-array.sbatch": ["cingulum", "crossval", "my run.yaml", "--folds", "5", "--fold", "3", "a=b c"],
    "import.sbatch": ["import", "my cohort", "my shards", "--label", "a b"],
    "evaluate.sbatch": ["report", "runs/my run"],
}


def start(name: str, place: Path, notes: Path, stub: str = "", **extra: str) -> subprocess.Popen[bytes]:
    """The script as slurmd runs it, with stand-ins for mpirun and cingulum."""
    for program in ("mpirun", "cingulum"):
        text = (place / "mpirun").read_text() if not stub else f"#!/bin/bash\n{stub}\n"
        (notes / program).write_text(text)
        (notes / program).chmod(0o755)
    environment = {
        "PATH": f"{notes}:{place}:/usr/bin:/bin",
        "NOTES": str(notes),
        "HOME": str(notes),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_CPUS_PER_TASK": "8",
        **({"SLURM_ARRAY_JOB_ID": "4710", "SLURM_ARRAY_TASK_ID": "3"} if "array" in name else {}),
        **extra,
    }
    given = ARGUMENTS.get(name, ["my run.yaml", "a=b c"])
    return subprocess.Popen(["bash", str(PLACE / name), *given], env=environment, cwd=notes)


@pytest.fixture
def place(tmp_path) -> Path:
    return run_script.stubs(tmp_path)


def notes_in(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


def test_there_is_one_for_each_kind_of_job():
    assert set(EXPECTED) == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_starts_what_it_says(name, place, tmp_path):
    notes = notes_in(tmp_path)
    assert start(name, place, notes, SRUN_CPUS_PER_TASK="8").wait(30) == 0
    words = (notes / "arguments").read_bytes().decode().split("\0")[:-1]
    assert words[-len(EXPECTED[name]) :] == EXPECTED[name]
    if words[0].endswith("mpirun"):
        assert words[1:5] == ["-np", "8", "--bind-to", "none"]
        assert b"SRUN_CPUS_PER_TASK" not in (notes / "environment").read_bytes()
    assert not (notes / "scontrol").exists()


def test_a_task_of_an_array_prepares_its_part_of_an_import(place, tmp_path):
    notes = notes_in(tmp_path)
    array = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "50"}
    assert start("import.sbatch", place, notes, **array).wait(30) == 0
    words = (notes / "arguments").read_bytes().decode().split("\0")[:-1]
    assert words[1:] == [*EXPECTED["import.sbatch"], "--part=3/50"]


@pytest.mark.parametrize("code", [0, 1, 2, 75, 127])
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "evaluate.sbatch"])
def test_it_ends_with_the_exit_code_of_the_ranks_and_is_queued_again_on_75_only(name, code, place, tmp_path):
    notes = notes_in(tmp_path)
    assert start(name, place, notes, stub=f"exit {code}").wait(30) == code
    asked = (notes / "scontrol").read_bytes() if (notes / "scontrol").exists() else b""
    job = b"4710_3" if "array" in name else b"4711"
    assert asked == (b"requeue\0" + job + b"\0" if code == 75 else b"")


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "evaluate.sbatch"])
def test_a_job_that_saved_because_it_was_cancelled_stays_cancelled(name, place, tmp_path):
    """Slurm would start it again: `scontrol requeue` takes a cancelled job, too."""
    notes = notes_in(tmp_path)
    assert start(name, place, notes, stub="exit 75", STUB_STATE="COMPLETING").wait(30) == 75
    assert not (notes / "scontrol").exists()


@pytest.mark.parametrize("sent", [signal.SIGUSR2, signal.SIGTERM])
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "evaluate.sbatch"])
def test_it_lets_the_ranks_save_when_told_to(name, sent, place, tmp_path):
    notes = notes_in(tmp_path)
    stub = (
        "trap 'saved=1' USR2; touch ready; until [ -n \"$saved\" ]; do read -rt 0.05 <> <(:); done; exit 75"
    )
    started = start(name, place, notes, stub=stub)
    try:
        until = time.monotonic() + 30
        while not (notes / "ready").exists():
            assert time.monotonic() < until, "the ranks did not start"
            assert started.poll() is None
            time.sleep(0.01)
        started.send_signal(sent)
        assert started.wait(30) == 75
    finally:
        started.kill()
    assert (notes / "scontrol").exists()


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_keeps_the_conventions_of_the_scripts_that_we_render(name):
    options = re.findall(r"^#SBATCH (--[^\s#]+)", (PLACE / name).read_text(), re.M)
    assert {"--open-mode=append", "--requeue"} <= set(options)
    assert any(option.startswith("--cpus-per-task=") for option in options)
    if name != "evaluate.sbatch":
        assert "--signal=B:USR2@120" in options
    per_node = dict(option.split("=") for option in options if option.count("=") == 1)
    if "--gpus-per-node" in per_node:
        assert per_node["--gpus-per-node"] == per_node["--ntasks-per-node"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_says_how_it_is_used(name, place, tmp_path):
    ran = subprocess.run(
        ["bash", str(PLACE / name)], capture_output=True, text=True, cwd=tmp_path, timeout=30, check=False
    )
    assert ran.returncode != 0
    assert f"usage: sbatch {name}" in ran.stderr
