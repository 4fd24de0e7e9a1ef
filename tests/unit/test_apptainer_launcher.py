"""The apptainer launcher and what it asks before a launch; with stand-ins for apptainer and mpirun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from wording import fails_with

from jobs import containers
from jobs.local import apptainer, attended_files
from jobs.local.apptainer import Apptainer
from jobs.sites import HERE, Site
from jobs.spec import JobSpec, Resources
from trainer.errors import JobError, LauncherError

TOKEN = "0123456789abcdef"  # noqa: S105
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_allocation(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)


def spec(folder: Path, **changes: object) -> JobSpec:
    wanted = {
        "name": "a run",
        "kind": "train",
        "tasks": (("/venv/bin/cingulum", "train", "run.yaml"),),
        "folder": str(folder),
        "resources": Resources(ranks_per_node=2),
        "image": str(folder / "image.sif"),
    }
    return JobSpec(**{**wanted, **changes})


def program(folder: Path, name: str, script: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def world(tmp_path: Path):
    """`world(mpirun=..., runtime=..., inside=...)`: a launcher and a site with programs that say so."""
    (tmp_path / "image.sif").touch()

    def make(
        mpirun="mpirun (Open MPI) 4.1.4",
        runtime="apptainer version 1.4.5",
        inside="4.1.8",
        size="2",
        ranks='"$@" && "$@"',
    ):
        version = f'*mpirun\\ --version) echo "mpirun (Open MPI) {inside}" ;;'
        said = f"*mpi4py*) echo world {size} ;; *) exit 3 ;;"
        noted = f'echo "$*" >>"{tmp_path}/asked"'
        answers = f'case "$*" in --version) echo "{runtime}" ;;\n{version}\n{said} esac'
        inner = program(tmp_path, "apptainer", f"{noted}\n{answers}")
        outer = program(
            tmp_path,
            "mpirun",
            f'[ "$1" = --version ] && echo "{mpirun}" && exit\n'
            f'{noted}\nwhile [ "$1" != "{inner}" ]; do shift; done; {ranks}',
        )
        return Apptainer(inner), Site(mpirun=outer)

    return make


def test_each_rank_has_a_container_and_the_hosts_mpirun_is_outside(tmp_path, monkeypatch):
    monkeypatch.setattr("jobs.local.mpirun.find", lambda: "/site/mpirun")
    plan = Apptainer("apptainer").plan(spec(tmp_path), HERE, tmp_path, TOKEN)
    line = plan.command
    assert line[0] == "/site/mpirun" and line.index("-np") < line.index("apptainer")
    inside = line[line.index("apptainer") :]
    assert inside[:4] == ("apptainer", "exec", "--no-eval", "--no-home")
    assert inside[-4:] == (str(tmp_path / "image.sif"), "cingulum", "train", "run.yaml")
    assert f"--pwd={tmp_path}" in inside
    assert attended_files.TERMS in plan.files


def test_a_command_without_ranks_runs_in_a_container_too(tmp_path):
    plan = Apptainer("apptainer").plan(spec(tmp_path, parallel=False), HERE, tmp_path, TOKEN)
    assert plan.command[:2] == ("apptainer", "exec")


def test_folders_variables_and_options_reach_the_container(tmp_path, monkeypatch):
    monkeypatch.setattr("jobs.local.mpirun.find", lambda: "/site/mpirun")
    job = spec(
        tmp_path,
        binds=("/data",),
        readonly=("/shards",),
        environment={"A": "$(id)"},
        resources=Resources(gpus_per_node=2, ranks_per_node=2),
    )
    site = Site(container_options=("--bind=/scratch",))
    line = Apptainer("apptainer").plan(job, site, tmp_path, TOKEN).command
    assert "APPTAINERENV_A=$(id)" in line and "--nv" in line and "--bind=/scratch" in line
    assert "--mount=type=bind,source=/data,destination=/data" in line
    assert "--mount=type=bind,source=/shards,destination=/shards,ro" in line


@pytest.mark.parametrize("user", [0, 1000])
def test_a_sound_world_passes_asked_as_its_ranks_will_be_started(world, tmp_path, monkeypatch, user):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    launcher, site = world()
    launcher.preflight(spec(tmp_path), site)
    asked = (tmp_path / "asked").read_text().splitlines()
    inside = [line for line in asked if line.startswith("exec ")]
    assert len(inside) == 3  # its mpirun's version, and two ranks
    assert all(line.startswith("exec --no-eval --no-home ") for line in inside)
    (ranks,) = [line for line in asked if line.startswith("-np 2 ")]
    assert ("--allow-run-as-root" in ranks) == (user == 0)


@pytest.mark.parametrize("other", ["5.0.3", "4.0.7", "3.1.6"])
def test_another_open_mpi_is_refused_with_its_cure(world, tmp_path, other):
    launcher, site = world(mpirun=f"mpirun (Open MPI) {other}")
    with pytest.raises(LauncherError, match=f"Open MPI is {re.escape(other)} on the host") as caught:
        launcher.preflight(spec(tmp_path), site)
    assert f"--build-arg OPENMPI={other}" in caught.value.cure and "Open MPI 4.1" in caught.value.cure


def test_ranks_that_are_alone_are_refused(world, tmp_path):
    launcher, site = world(size="1")
    with fails_with(LauncherError):
        launcher.preflight(spec(tmp_path), site)


def test_a_rank_that_says_nothing_is_missed(world, tmp_path):
    launcher, site = world(ranks='"$@"')
    with fails_with(LauncherError):
        launcher.preflight(spec(tmp_path), site)


def test_an_image_that_may_not_be_read_is_named(world, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, _: not str(path).endswith("image.sif"))
    launcher, site = world()
    with fails_with(JobError):
        launcher.preflight(spec(tmp_path), site)


def test_what_a_rank_says_is_written_in_one_piece(tmp_path):
    """Else the words of two ranks mix, and a sound image is refused."""
    (tmp_path / "mpi4py").mkdir()
    stand_in = "class MPI:\n    class COMM_WORLD:\n        size = 2\n"
    (tmp_path / "mpi4py" / "__init__.py").write_text(stand_in)
    reader, writer = os.pipe2(os.O_DIRECT)  # hands out one write at a time
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    line = [sys.executable, "-c", containers._HANDSHAKE]
    subprocess.run(line, env=environment, stdout=writer, check=True, timeout=60)
    assert os.read(reader, 100) == b"world 2\n"
    os.close(reader)
    os.close(writer)


def test_another_mpi_with_a_number_like_open_mpis_is_refused(world, tmp_path):
    launcher, site = world(mpirun="HYDRA build details: Version: 4.1.2")
    with fails_with(LauncherError):
        launcher.preflight(spec(tmp_path), site)


def test_a_command_without_ranks_asks_for_no_mpi(world, tmp_path):
    launcher, site = world(mpirun="mpirun (Open MPI) 5.0.3")
    launcher.preflight(spec(tmp_path, parallel=False), site)


@pytest.mark.parametrize(
    "old", ["apptainer version 0.9.1", "singularity version 3.8.7", "singularity-ce version 3.9.0"]
)
def test_an_old_runtime_is_refused(world, tmp_path, old):
    launcher, site = world(runtime=old)
    with fails_with(LauncherError):
        launcher.preflight(spec(tmp_path), site)


def test_a_missing_runtime_is_named(world, tmp_path):
    _, site = world()
    with fails_with(LauncherError):
        Apptainer("/nowhere/apptainer").preflight(spec(tmp_path), site)


def test_a_runtime_that_hangs_is_given_up(world, tmp_path, monkeypatch):
    monkeypatch.setattr(containers, "ANSWER_S", 0.2)
    _, site = world()
    with fails_with(LauncherError):
        Apptainer(program(tmp_path, "hangs", "exec sleep 60")).preflight(spec(tmp_path), site)


@pytest.mark.parametrize(
    ("image", "said"),
    [(None, "needs an image"), ("image.sif", "not an absolute path"), ("/nowhere.sif", "is not there")],
)
def test_an_image_that_is_not_there_is_named(world, tmp_path, image, said):
    launcher, site = world()
    with pytest.raises(JobError, match=said):
        launcher.preflight(spec(tmp_path, image=image), site)


def test_a_folder_that_is_not_there_is_named(world, tmp_path):
    launcher, site = world()
    for missing in ({"binds": ("/nowhere",)}, {"readonly": ("/nowhere",)}):
        with fails_with(JobError):
            launcher.preflight(spec(tmp_path, **missing), site)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("mpirun (Open MPI) 4.1.8\n\nReport bugs to http://www.open-mpi.org/community/help/", (4, 1, 8)),
        ("mpirun (Open MPI) 5.0.0rc12", (5, 0, 0)),
        ("apptainer version 1.4.5-2.el9", (1, 4, 5)),
        ("singularity-ce version 4.1", (4, 1)),
    ],
)
def test_versions_are_read_from_what_programs_say(text, version):
    assert containers.version_of(text) == version


def test_what_says_no_version_is_shown():
    with fails_with(LauncherError):
        containers.version_of("Segmentation fault")


def test_singularity_is_taken_where_there_is_no_apptainer(tmp_path, monkeypatch):
    monkeypatch.delenv("CINGULUM_APPTAINER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert containers.find_program() == "apptainer"
    program(tmp_path, "singularity", "true")
    assert containers.find_program() == "singularity"
    monkeypatch.setenv("CINGULUM_APPTAINER", "/opt/apptainer")
    assert containers.find_program() == "/opt/apptainer"


def test_the_definition_takes_the_pinned_open_mpi_and_the_dockerfiles_base():
    definition = (ROOT / "docker" / "apptainer.def").read_text()
    pinned = re.search(r"^openmpi==(\S+)", (ROOT / "requirements.lock").read_text(), re.M)
    base = re.search(r"^ARG BASE_IMAGE=(\S+)", (ROOT / "docker" / "Dockerfile").read_text(), re.M)
    assert pinned and set(re.findall(r"^    OPENMPI=(\S+)", definition, re.M)) == {pinned[1]}
    assert base and set(re.findall(r"^    (?:BUILD_)?BASE=(\S+)", definition, re.M)) == {base[1]}


def test_the_definition_names_the_version_of_the_package_in_both_stages():
    definition = (ROOT / "docker" / "apptainer.def").read_text()
    assert re.findall(r"^    VERSION=(\S+)", definition, re.M) == [version("cingulum")] * 2


def test_files_of_the_definition_are_there_and_those_that_an_image_is_built_from_are_all_known():
    definition = (ROOT / "docker" / "apptainer.def").read_text()
    block = definition.split("%files\n")[1].split("\n\n")[0]
    copied = {line.split()[0] for line in block.splitlines()}
    for name in copied:
        assert (ROOT / name).exists(), name
    into_docker = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    # slurm/ is copied as jobs/slurm, a link to it.
    assert {name.split("/")[0] for name in copied} | {"slurm"} == into_docker
    assert (ROOT / "jobs" / "slurm").resolve() == ROOT / "slurm"
    assert "setup.py" in into_docker  # without it, what it compiles is silently left out
    assert os.access(ROOT / "docker" / "test-tools" / "install-apptainer.sh", os.X_OK)
    assert apptainer.Apptainer.name == "apptainer"
