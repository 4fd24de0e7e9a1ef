"""An installed Cingulum has what a checkout has: templates, batch scripts and profiles of sites."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
ASK = """
from pathlib import Path
from jobs import spec
from jobs.schedulers import site_profiles
from jobs.schedulers.slurm import script
from trainer.planning.simulation import cluster
print(site_profiles.__file__)
print(",".join(sorted(path.name for path in site_profiles.shipped().glob("*.sbatch"))))
print(",".join(name for name, _ in site_profiles.listed()))
job = spec.JobSpec("n", "train", (("cingulum", "train"),), "/")
print(",".join(sorted(name for name, _ in cluster.shipped())))
print(script.batch_script(job, site_profiles.load("lab"), Path("/j"), "0" * 16).splitlines()[0])
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """What a wheel of this checkout unpacks to; built without a network, from files of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("cingulum", "trainer", "jobs", "slurm"):
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=source, capture_output=True, timeout=240, check=False
    )
    assert built.returncode == 0, built.stderr.decode()[-3000:]
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_brings_scripts_and_profiles(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed), "XDG_CONFIG_HOME": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", ASK],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    where, scripts, profiles, clusters, first = ran.stdout.splitlines()
    assert Path(where).is_relative_to(installed)
    assert scripts == ",".join(sorted(path.name for path in (ROOT / "slurm").glob("*.sbatch")))
    assert set(profiles.split(",")) == {path.stem for path in (ROOT / "slurm" / "sites").glob("*.yaml")}
    folder = ROOT / "trainer" / "planning" / "simulation" / "clusters"
    assert clusters == ",".join(sorted(path.stem for path in folder.glob("*.yaml")))
    assert first == "#!/bin/bash"


def test_the_wheel_takes_no_name_from_others(installed):
    """A folder `slurm` at its top would be a package of that name."""
    tops = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"cingulum", "trainer", "jobs"}
