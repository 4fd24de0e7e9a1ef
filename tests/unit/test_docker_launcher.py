"""The command line of a job in a container, and what is looked at before it is started."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wording import fails_with

from jobs.local import docker
from jobs.local.docker import Docker, mount
from jobs.sites import HERE, Site
from jobs.spec import JobSpec, Resources
from jobs.supervisor import record
from trainer.errors import JobError, LauncherError

ROOT = Path(__file__).parents[2]
TASK = ("cingulum", "train", "my-run.yaml", "--resume")
TOKEN = "0123456789abcdef"  # noqa: S105 (names a submission)


def spec(**changes: object) -> JobSpec:
    return JobSpec(**{"name": "run", "kind": "train", "tasks": (TASK,), "folder": "/study", **changes})


def line(
    job: JobSpec, site: Site = HERE, user: tuple[int, int, Sequence[int]] = (1000, 100, ())
) -> list[str]:
    plan = Docker("docker", user).plan(job, site, Path("/home/jobs/token"), TOKEN)
    return list(plan.command)


def test_ranks_are_started_by_the_mpirun_of_the_image() -> None:
    words = line(spec(resources=Resources(ranks_per_node=4), image="cingulum:1"))
    after = words[words.index("cingulum:1") + 1 :]
    assert after[:3] == ["mpirun", "-np", "4"]
    assert after[-len(TASK) :] == list(TASK)


def test_a_job_of_one_process_needs_no_mpirun() -> None:
    words = line(spec(parallel=False, resources=Resources(nodes=3), image="cingulum:1"))
    assert words[words.index("cingulum:1") + 1 :] == list(TASK)


def test_the_programs_path_on_this_host_is_not_asked_for_in_the_image() -> None:
    assert line(spec(tasks=(("/home/me/.venv/bin/cingulum", "doctor"),)))[-2:] == ["cingulum", "doctor"]


def test_a_container_runs_as_the_calling_user_with_its_groups_and_no_more_rights() -> None:
    words = line(spec(), user=(1234, 100, (100, 27)))
    assert "--user=1234:100" in words
    assert [word for word in words if word.startswith("--group-add")] == ["--group-add=27"]
    assert {"--cap-drop=ALL", "--security-opt=no-new-privileges"} <= set(words)


def test_a_container_goes_with_its_job_hears_signals_and_can_be_found() -> None:
    assert {
        "--rm",
        "--init",
        "--sig-proxy=true",
        "--ipc=private",
        "--env=CINGULUM_TASK",
        "--env=CINGULUM_RESTARTS",
    } <= set(line(spec()))


def test_a_container_has_the_memory_asked_for_and_shared_memory_for_each_rank() -> None:
    words = line(spec(resources=Resources(ranks_per_node=3, memory_mib=512)))
    assert {"--memory=512m", "--memory-swap=512m", "--shm-size=1024m", "--workdir=/study"} <= set(words)
    assert not [word for word in line(spec()) if word.startswith("--memory")]


def test_ranks_of_root_may_be_started_and_more_of_them_than_there_are_cores() -> None:
    allowed = "--env=OMPI_ALLOW_RUN_AS_ROOT=1"
    assert allowed in line(spec(), user=(0, 0, ())) and allowed not in line(spec())
    words = line(spec(image="x"))
    assert words[words.index("mpirun") + 3 :][:3] == ["--oversubscribe", "--bind-to", "none"]


def test_tasks_run_one_after_the_other_and_the_job_has_the_last_word_on_variables() -> None:
    site = Site(name="s", environment={"OF_SITE": "1", "BOTH": "site"})
    job = spec(tasks=(TASK, TASK), environment={"BOTH": "job"})
    plan = Docker("docker", (1, 1, ())).plan(job, site, Path("/j"), TOKEN)
    assert json.loads(plan.files["attended.json"])["at_once"] == 1
    assert plan.environment == {"OF_SITE": "1", "BOTH": "job"}
    assert {"--env=OF_SITE", "--env=BOTH"} <= set(plan.command)


def test_client_and_user_are_those_of_the_caller(monkeypatch) -> None:
    monkeypatch.setenv("CINGULUM_DOCKER", "/opt/docker")
    for name, value in (("getuid", 7), ("getgid", 8), ("getgroups", [8, 9])):
        monkeypatch.setattr(f"os.{name}", lambda value=value: value)
    words = list(Docker().plan(spec(), HERE, Path("/j"), TOKEN).command)
    assert words[0] == "/opt/docker"
    assert {"--user=7:8", "--group-add=9"} <= set(words)


def test_an_image_that_is_gone_is_never_fetched_from_a_registry() -> None:
    words = line(spec(image="cingulum:1"))
    assert words.index("--pull=never") < words.index("cingulum:1")


def test_a_container_is_named_by_token_and_task() -> None:
    plan = Docker("docker", (1, 1, ())).plan(spec(tasks=(TASK, TASK)), HERE, Path("/j"), TOKEN)
    commands = json.loads(plan.files["attended.json"])["commands"]
    assert [re.findall("--name=([^ ]+)", " ".join(words)) for words in commands] == [
        [f"cingulum-{TOKEN}-0"],
        [f"cingulum-{TOKEN}-1"],
    ]


def test_folders_are_shown_once_and_data_so_that_they_cannot_be_changed() -> None:
    job = spec(binds=("/runs", "/study", "/data"), readonly=("/data", "/study/shards"))
    assert [word for word in line(job) if word.startswith("--mount")] == [
        "--mount=type=bind,source=/study,target=/study",
        "--mount=type=bind,source=/runs,target=/runs",
        "--mount=type=bind,source=/data,target=/data,readonly",
        "--mount=type=bind,source=/study/shards,target=/study/shards,readonly",
        "--mount=type=bind,source=/home/jobs/token/failures.d,target=/home/jobs/token/failures.d",
    ]


def test_ranks_leave_why_they_failed_in_a_folder_of_their_task() -> None:
    assert "--env=CINGULUM_FAILURES" in line(spec())
    plan = Docker("docker", (1, 1, ())).plan(spec(tasks=(TASK, TASK)), HERE, Path("/j"), TOKEN)
    for number, words in enumerate(json.loads(plan.files["attended.json"])["commands"]):
        outside = record.Record(Path("/j"), number, 2).of_ranks
        (mounted,) = [word for word in words if word.startswith("--mount") and "/j/" in word]
        assert f"target={outside.parent}" in mounted.split(",")


def test_a_job_that_was_stored_before_there_was_readonly_can_be_read() -> None:
    stored = json.loads(spec(readonly=("/data",)).to_json())
    assert JobSpec.from_json(json.dumps(stored)).readonly == ("/data",)
    del stored["readonly"]
    assert JobSpec.from_json(json.dumps(stored)).readonly == ()


def test_gpus_are_asked_for_only_where_there_are_any() -> None:
    assert not [word for word in line(spec()) if word.startswith("--gpus")]
    words = line(spec(resources=Resources(gpus_per_node=2, ranks_per_node=2)))
    assert "--gpus=2" in words
    assert "cingulum:gpu" in words


def test_values_of_variables_are_not_in_the_command_line() -> None:
    plan = Docker("docker", (1, 1, ())).plan(spec(environment={"TRACKER": "hush"}), HERE, Path("/j"), TOKEN)
    assert "--env=TRACKER" in plan.command
    assert "hush" not in " ".join(plan.command)
    assert plan.environment["TRACKER"] == "hush"


def test_the_site_has_the_last_word_on_options() -> None:
    words = line(spec(image="x"), Site(name="s", container_options=("--network=none",)))
    assert words.index("--network=host") < words.index("--network=none") < words.index("x")


@pytest.mark.parametrize("image", ["--privileged", "", "a b", "a\nb", "$(x)"])
def test_what_is_no_name_of_an_image_is_refused(image: str) -> None:
    with fails_with(JobError):
        line(spec(image=image))


def test_several_hosts_are_refused() -> None:
    with fails_with(JobError):
        line(spec(resources=Resources(nodes=2)))


@given(st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=("Cs",))))
def test_any_path_reaches_docker_whole(name: str) -> None:
    path = "/" + name
    (fields,) = csv.reader([mount(path, readonly=True)])
    assert fields == ["type=bind", f"source={path}", f"target={path}", "readonly"]


@pytest.mark.parametrize("path", ["relative", "/two\nlines", "/a\rb", ""])
def test_a_path_that_no_mount_can_hold_is_refused(path: str) -> None:
    with fails_with(JobError):
        mount(path)


def pretend(folder: Path, labels: str) -> str:
    """A client that answers as docker would; `labels` is what it prints of an image; "": there is none."""
    program = folder / "docker"
    answer = f"printf '%s' '{labels}'" if labels else "echo 'Error: No such image' >&2; exit 1"
    program.write_text(f'#!/bin/sh\ncase "$1" in version) echo 20 ;; *) {answer} ;; esac\n')
    program.chmod(0o755)
    return str(program)


def test_the_image_must_hold_this_version(tmp_path: Path) -> None:
    job = spec(folder=str(tmp_path))
    Docker(pretend(tmp_path, json.dumps({docker.VERSION_LABEL: version("cingulum")}))).preflight(job, HERE)
    with fails_with(JobError):
        Docker(pretend(tmp_path, json.dumps({docker.VERSION_LABEL: "0.0.1"}))).preflight(job, HERE)
    with fails_with(JobError):
        Docker(pretend(tmp_path, "null")).preflight(job, HERE)


def test_a_missing_image_is_named_with_the_command_that_builds_it(tmp_path: Path) -> None:
    with fails_with(JobError) as raised:
        Docker(pretend(tmp_path, "")).preflight(spec(folder=str(tmp_path)), HERE)
    assert "docker build -f docker/Dockerfile -t cingulum ." in str(raised.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    client = Docker(pretend(tmp_path, json.dumps({docker.VERSION_LABEL: version("cingulum")})))
    for missing in ({"binds": ("/nowhere",)}, {"readonly": ("/nowhere",)}, {"folder": "/nowhere"}):
        with fails_with(JobError):
            client.preflight(spec(**{"folder": str(tmp_path), **missing}), HERE)


def test_a_folder_that_nobody_may_look_for_is_named(tmp_path: Path, monkeypatch) -> None:
    client = Docker(pretend(tmp_path, json.dumps({docker.VERSION_LABEL: version("cingulum")})))
    refuse = PermissionError(13, "Permission denied", "/closed/data")
    monkeypatch.setattr("os.stat", lambda *_, **__: (_ for _ in ()).throw(refuse))
    with fails_with(JobError):
        client.preflight(spec(folder="/closed/data"), HERE)


def test_a_missing_docker_is_named(tmp_path: Path) -> None:
    with fails_with(LauncherError):
        Docker(str(tmp_path / "docker")).preflight(spec(), HERE)


def test_a_daemon_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(docker, "ANSWER_S", 0.2)
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    with fails_with(LauncherError):
        Docker(str(program)).preflight(spec(), HERE)


def test_the_image_is_labelled_with_the_version_of_setup_cfg() -> None:
    wanted = re.search(r"^version = (.+)$", (ROOT / "setup.cfg").read_text(), re.M)
    named = re.search(r"^ARG VERSION=(.+)$", (ROOT / "docker" / "Dockerfile").read_text(), re.M)
    assert wanted and named and named[1] == wanted[1]


def test_the_gpu_image_pins_the_tensorflow_of_setup_cfg() -> None:
    pinned = (ROOT / "docker" / "gpu.lock").read_text().split()
    wanted = re.search(r"tensorflow\[and-cuda\]==(\S+)", (ROOT / "setup.cfg").read_text())
    assert wanted and f"tensorflow=={wanted[1]}" in pinned
