"""Ranks that another MPI than Open MPI starts: a real MPICH, in an environment of its own."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_runs

from jobs import mpi
from trainer.errors import LauncherError

VERSION = "5.0.2"


@pytest.fixture(scope="module")
def mpich() -> Path:
    """Its mpirun, installed beside the environment that tests run in."""
    place = Path(sys.prefix) / f"mpich-{VERSION}"
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "ready").exists():
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, timeout=120)
            pip = (str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps")
            subprocess.run([*pip, f"mpich=={VERSION}"], check=True, timeout=300)
            (place / "ready").touch()
    return place / "bin" / "mpirun"


def test_no_rank_that_mpich_starts_trains_alone(mpich, tmp_path):
    config = tiny_runs.write_config(tmp_path, tiny_runs.make_shards(tmp_path / "shards"), "run")
    line = [str(mpich), "-np", "2", sys.executable, "-m", "cingulum", "train", str(config)]
    ran = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 2, ran.stderr
    assert "2 ranks were started in the way of MPICH" in ran.stderr, ran.stderr
    assert not (tmp_path / "run").exists()


def test_its_mpirun_is_known_by_what_it_says(mpich):
    with pytest.raises(LauncherError, match=r"belongs to MPICH.* each would train alone"):
        mpi.check(str(mpich))
