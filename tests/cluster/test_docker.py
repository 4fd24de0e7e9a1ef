"""Images built from the unmodified Dockerfile by a real Docker; trainings in one container and across two.

The daemon is the tests' own, and so is the base image (`docker_daemon`). All containers run as user 12345,
which neither this host nor the image knows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker_daemon
import pytest
from docker_daemon import CLIENT, ROOT, Daemon
from slurm_jobs import FAULTY
from tiny_runs import make_shards, result, rows, steps, write_config

from jobs import home
from jobs.local import attended_files, processes
from jobs.local.attended_files import Ledger
from jobs.local.docker import Docker
from jobs.schedulers.base import ENDED, TaskState
from jobs.sites import HERE
from jobs.spec import JobSpec, Resources

# The images are built in the first; on a busy machine each may take minutes.
pytestmark = pytest.mark.timeout(1800)
USER = 12345
IMAGE, WITH_SSH = "cingulum", "cingulum:ssh"
SIZE_LIMIT_MB = 2700  # SimpleITK takes 272 of them (decision 77)
# What the image is built with a compiler for can be loaded without one.
COMPILED = """from trainer.data.shards import halves
from trainer.ranks import exchange
assert halves.LIBRARY and exchange.compiled()"""
SCRIPT = str(ROOT / "docker" / "containers.sh")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A Docker daemon with both images, built from the layers of earlier builds where nothing has changed.

    `CINGULUM_TEST_DOCKER=FOLDER`: that of this folder, which has them already, for who changes these tests.
    """
    if ready := os.environ.get("CINGULUM_TEST_DOCKER"):
        yield Daemon(Path(ready))
        return
    if why := docker_daemon.missing():
        if os.environ.get("CINGULUM_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"Docker is required here: {why}")
        pytest.skip(f"no Docker here: {why}")
    # Not below pytest's folder: the path of a socket is short.
    folder = Path(tempfile.mkdtemp(prefix="cingulum-docker-"))
    folder.chmod(0o711)  # the socket in it is for the group docker
    with docker_daemon.daemon(folder) as running:
        docker_daemon.make_base(running)
        context = docker_daemon.make_context(folder / "context")
        docker_daemon.build(running, context, IMAGE)
        docker_daemon.build(running, context, WITH_SSH, "--target=ssh")
        shutil.rmtree(context)
        yield running


@pytest.fixture(autouse=True)
def _nothing_is_left(daemon: Daemon) -> Iterator[None]:
    yield
    assert daemon.containers() == []


@pytest.fixture
def study(request) -> Iterator[Path]:
    """A folder of user 12345 with shards; pytest's own folders are closed to others.

    Docker's options hold values with commas between them, hence the name; `across` refuses such a folder.
    """
    comma = "" if "containers" in request.node.name else ","
    with tempfile.TemporaryDirectory(prefix=f"cingulum{comma} study ") as made:
        folder = Path(made)
        make_shards(folder / "shards")
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER, USER)
        yield folder


def owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


def wait_until(true: Callable[[], object], what: Callable[[], str] | str, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        said = what if isinstance(what, str) else what()
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {said}"
        time.sleep(0.1)


class Launched:
    """A job of the docker launcher, as `cingulum submit` would start it."""

    def __init__(self, spec: JobSpec) -> None:
        self.launcher = Docker(CLIENT, (USER, USER, ()))
        token = home.new_token()
        self.folder = home.job_folder(token)
        plan = self.launcher.plan(spec, HERE, self.folder, token)
        self.container = f"cingulum-{token}-0"
        self.launcher.preflight(spec, HERE)
        self.external = self.launcher.start(plan, self.folder, [])

    @property
    def state(self) -> TaskState:
        return self.launcher.states([self.external])[self.external][0]

    @property
    def log(self) -> str:
        path = attended_files.log(self.folder, 0, is_array=False)
        return path.read_text() if path.exists() else ""

    def wait(self, true: Callable[[], object], what: str, seconds: float = 240) -> None:
        wait_until(true, lambda: f"{what}; {self.state}; its log:\n{self.log[-3000:]}", seconds)

    def wait_for_end(self) -> TaskState:
        self.wait(lambda: self.state.state in ENDED, "the job has ended")
        return self.state


@pytest.fixture
def job(daemon: Daemon, study, tmp_path, monkeypatch) -> Iterator[Callable[[JobSpec], Launched]]:
    """`job(spec)` starts one; it is ended with the test, and its container with it.

    After `study`, so that its folder is there until nothing writes to it any more.
    """
    monkeypatch.setenv("DOCKER_HOST", daemon.host)
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    started: list[Launched] = []

    def start(spec: JobSpec) -> Launched:
        started.append(Launched(spec))
        return started[-1]

    yield start
    for launched in started:
        launched.launcher.cancel(launched.external)
        launched.wait_for_end()
    wait_until(lambda: not daemon.containers(), "all containers are gone", 30)


def training(study: Path, epochs: int = 4, **changes: object) -> JobSpec:
    config = write_config(study, study / "shards", "run", train__epochs=epochs)
    wanted = {
        "name": "tiny",
        "kind": "train",
        "tasks": (("cingulum", "train", str(config), "--resume"),),
        "folder": str(study),
        "resources": Resources(ranks_per_node=2),
        "readonly": (str(study / "shards"),),
        "environment": {"TF_CPP_MIN_LOG_LEVEL": "3"},
        "grace_s": 60,
    }
    return JobSpec(**{**wanted, **changes})


def in_container(daemon: Daemon, *words: str, image: str = IMAGE) -> str:
    return daemon.client("run", "--rm", "--network=none", f"--user={USER}:{USER}", image, *words)


def image_config(daemon: Daemon, image: str) -> dict:
    return json.loads(daemon.client("image", "inspect", image))[0]["Config"]


@pytest.mark.parametrize("image", [IMAGE, WITH_SSH])
def test_an_image_says_what_it_is_and_is_no_larger_than_need_be(daemon, image):
    (said,) = json.loads(daemon.client("image", "inspect", image))
    labels = said["Config"]["Labels"]
    assert {"title", "version", "revision", "licenses", "base.name"} <= {
        name.removeprefix("org.opencontainers.image.") for name in labels
    }
    assert labels["org.opencontainers.image.base.name"] == "debian:12-slim"
    assert said["Config"]["User"] == "10001:10001"
    assert said["Size"] / 1e6 < SIZE_LIMIT_MB


@pytest.mark.parametrize("image", [IMAGE, WITH_SSH])
def test_an_image_holds_no_compiler_no_keys_and_nothing_of_its_build(daemon, image):
    script = (
        "for name in cc gcc g++ c++ make cmake ld nvcc; do type -P $name; done; "
        "ls -d /etc/ssh/ssh_host_* /build /wheel ~root/.cache 2>/dev/null; "
        "ls -d /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb 2>/dev/null; true"
    )
    command = ("run", "--rm", "--network=none", "--user=0", "--entrypoint=bash", image, "-c", script)
    assert daemon.client(*command) == ""
    in_container(daemon, "python", "-c", COMPILED)


def test_the_health_checks_tell_a_sound_container_from_a_broken_one(daemon):
    first, *rest = image_config(daemon, IMAGE)["Healthcheck"]["Test"][1:]
    command = ("run", "--rm", "--network=none", f"--entrypoint={first}", IMAGE, *rest)
    assert "Usage: cingulum" in daemon.client(*command)
    broken = "--tmpfs=/opt/cingulum/lib"
    assert "exit code" in daemon.client(*command[:3], broken, *command[3:], check=False)
    # Without a server, it says so; with one: below.
    first, *rest = image_config(daemon, WITH_SSH)["Healthcheck"]["Test"][1:]
    command = ("run", "--rm", "--network=none", f"--entrypoint={first}", WITH_SSH, *rest)
    assert "exit code 1" in daemon.client(*command, check=False)


def test_the_first_word_is_a_program_or_a_command_of_cingulum(daemon):
    assert "Usage: cingulum export" in in_container(daemon, "export", "--help")
    assert in_container(daemon, "id", "-u") == str(USER)
    assert in_container(daemon, "bash", "-c", 'touch "$HOME/file" && echo "$HOME"') != "/"


def test_no_command_of_cingulum_is_hidden_by_a_program_of_the_image(daemon):
    from cingulum.cli.app import COMMANDS

    script = f"for name in {' '.join(COMMANDS)}; do type -P $name; done; true"
    assert in_container(daemon, "bash", "-c", script, image=WITH_SSH) == ""


def test_two_ranks_train_in_one_container_as_the_calling_user(job, study):
    ended = job(training(study)).wait_for_end()
    assert (ended.state, ended.exit_code, ended.restarts) == ("COMPLETED", 0, 0)
    said = result(study / "run")
    assert (said["world_size"], said["steps"]) == (2, 24)
    assert owners(study / "run") == {USER}


def test_a_container_cannot_change_what_it_may_only_read(job, study):
    index = study / "shards" / "index.json"
    before = index.read_bytes()
    task = ("bash", "-c", 'echo > "$1"', "bash", str(index))
    launched = job(training(study, tasks=(task,), parallel=False, requeues=0))
    assert launched.wait_for_end().state == "FAILED"
    assert "Read-only file system" in launched.log
    assert index.read_bytes() == before


def test_a_job_told_to_save_is_started_again_and_goes_on_at_that_step(job, study):
    """Rank 0 waits after the fifth step until it is asked to."""
    program = shutil.copy(FAULTY, study)
    config = study / "run.yaml"
    task = ("python", str(program), "wait", "0", "5", str(config), "--resume")
    launched = job(training(study, tasks=(task,)))
    launched.wait(Path(f"{config}.waiting").exists, "step 5")
    launched.launcher.requeue(launched.external)
    launched.wait(lambda: "saved and stopped" in launched.log, "it has saved")
    saved = steps(study / "run")[-1]
    assert saved >= 5
    ended = launched.wait_for_end()
    assert (ended.state, ended.restarts) == ("COMPLETED", 1)
    assert re.search(rf"resumed from .*/step-0*{saved}\b", launched.log)
    assert (result(study / "run")["world_size"], result(study / "run")["steps"]) == (2, 24)
    assert owners(study / "run") == {USER}
    assert [row["epoch"] for row in rows(study / "run")] == [1, 2, 3, 4]


def saves_when_told(process: subprocess.Popen[bytes], study: Path) -> None:
    """Told once there is a checkpoint, it ends with exit code 75, and not because it was done."""
    log = study / "log"
    try:
        wait_until(lambda: process.poll() is not None or steps(study / "run"), log.read_text)
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGUSR2)
        assert process.wait(timeout=120) == 75, log.read_text()
    finally:
        process.terminate()
        process.wait(timeout=60)
    assert 2 <= steps(study / "run")[-1] < 2400


def test_a_container_told_to_save_ends_with_75(daemon, study):
    plan = Docker(CLIENT, (USER, USER, ())).plan(training(study, epochs=400), HERE, study, "0" * 16)
    environment = {**os.environ, **plan.environment, "DOCKER_HOST": daemon.host}
    (study / "failures.d").mkdir()  # as an attendant does, for what ranks say when they fail
    with (study / "log").open("wb") as log:
        process = subprocess.Popen(plan.command, env=environment, stdout=log, stderr=log)
    saves_when_told(process, study)


def test_a_cancelled_job_leaves_no_container(daemon, job, study):
    waits = ("bash", "-c", 'touch "$1/runs" && exec sleep 600', "bash", str(study))
    launched = job(training(study, tasks=(waits,)))
    launched.wait((study / "runs").exists, "its ranks")
    assert daemon.containers() == [launched.container]
    launched.launcher.cancel(launched.external)
    assert launched.wait_for_end().state == "CANCELLED"
    wait_until(lambda: not daemon.containers(), "the container is gone", 30)


def test_a_job_whose_attendant_and_client_were_killed_leaves_no_container(daemon, job, study):
    launched = job(training(study, epochs=400))
    launched.wait(lambda: steps(study / "run"), "a checkpoint")
    ledger = Ledger.read(launched.folder)
    assert ledger is not None and ledger.tasks[0].pid is not None
    os.kill(ledger.pid, signal.SIGKILL)
    os.kill(ledger.tasks[0].pid, signal.SIGKILL)
    launched.wait(lambda: launched.state.state == "LOST", "the job is lost", 30)
    wait_until(lambda: not daemon.containers(), "the container is gone", 30)
    before = steps(study / "run")[-1]
    launched.launcher.requeue(launched.external)
    launched.wait(lambda: steps(study / "run")[-1] > before, "it goes on")


def across(daemon: Daemon, study: Path, *words: str, image: str = WITH_SSH) -> subprocess.Popen[bytes]:
    """docker/containers.sh on two containers of a rank each, as user 12345."""
    environment = {
        **{"PATH": f"/usr/bin:{os.environ['PATH']}", "DOCKER_HOST": daemon.host},
        **{"CINGULUM_DATA": str(study / "shards"), "TF_CPP_MIN_LOG_LEVEL": "3"},
    }
    with (study / "log").open("wb") as log:
        return subprocess.Popen(
            [SCRIPT, image, "2", "1", *words],
            cwd=study,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            user=USER,
            group=USER,
            extra_groups=["docker"],
            preexec_fn=processes.die_with_parent(),
        )


def test_two_containers_train_together_over_ssh(daemon, study):
    config = write_config(study, study / "shards", "run")
    process = across(daemon, study, "cingulum", "train", str(config))
    try:
        wait_until(
            lambda: process.poll() is not None or len(daemon.containers()) == 3, (study / "log").read_text
        )
        assert process.poll() is None, (study / "log").read_text()
        worker = next(name for name in daemon.containers() if name.endswith("-1"))
        daemon.client("exec", worker, *image_config(daemon, WITH_SSH)["Healthcheck"]["Test"][1:])
        assert process.wait(timeout=300) == 0, (study / "log").read_text()
    finally:
        process.terminate()
        process.wait(timeout=60)
    assert result(study / "run")["world_size"] == 2
    assert len(set(hosts_of(study / "run"))) == 2
    assert owners(study / "run") == {USER}
    assert daemon.client("network", "ls", "--filter", "label=cingulum.run", "--quiet") == ""


def hosts_of(run: Path) -> list[str]:
    return json.loads((run / "run.json").read_text())["hosts"]


def test_two_containers_told_to_save_end_with_75(daemon, study):
    config = write_config(study, study / "shards", "run", train__epochs=400)
    saves_when_told(across(daemon, study, "cingulum", "train", str(config), "--resume"), study)


def test_containers_that_cannot_start_are_named_and_removed(daemon, study):
    process = across(daemon, study, "true", image=IMAGE)
    assert process.wait(timeout=120) == 1
    assert "has ended" in (study / "log").read_text()
