"""Hosts that are asked before a job starts; here `ssh` is a script that runs what a host would."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from wording import fails_with

from jobs import home
from jobs.local import host_checks, host_facts, mpirun, processes
from jobs.local.attended_files import TERMS, Terms
from jobs.local.mpirun import Mpirun
from jobs.sites import HERE, Site
from jobs.spec import JobSpec, Resources
from trainer.errors import LauncherError

# After `--` come the host and the words for its shell.
SSH = """#!/bin/sh
until [ "$1" = -- ]; do shift; done
case $2 in
  off*) echo "ssh: connect to host $2 port 22: No route to host" >&2; exit 255 ;;
  odd*) echo '{"greeting": "hello"'; exit 0 ;;
  bare*) echo 'env: python: not found' >&2; exit 127 ;;
  shared*) sleep 600 & ;;
  hung*) exec sleep 600 ;;
esac
echo "Welcome to $2"
exec sh -c "$3"
"""


@pytest.fixture(autouse=True)
def _hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", f"{ssh.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(processes.MARK, f"{tmp_path.name}.0")  # so that sleepers can be ended
    monkeypatch.setattr(mpirun, "find", lambda: "true")
    for name in [key for key in os.environ if key.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    host_checks.warn.cache_clear()
    yield
    processes.end_marked(f"{tmp_path.name}.0")


@pytest.fixture
def preflight(tmp_path: Path):
    def run(hosts: str, *, after=(), shrink: bool = False, interfaces=(), **resources) -> None:
        (tmp_path / "hosts").write_text(hosts.replace(" ", "\n"))
        given = Resources(**{"nodes": 2, **resources})
        job = JobSpec("x", "command", (("true",),), str(tmp_path), given, shrink=shrink, after=after)
        Mpirun().preflight(job, Site(hostfile=str(tmp_path / "hosts"), interfaces=interfaces))

    return run


def said(capfd) -> list[str]:
    """Lines, but for what is said of other jobs that really run on this host."""
    return [line for line in capfd.readouterr().err.splitlines() if "runs there" not in line]


def test_sound_hosts_are_taken_without_a_word(preflight, capfd) -> None:
    preflight("n1 n2")
    assert said(capfd) == []


def test_a_silent_spare_is_named_and_done_without(preflight, capfd) -> None:
    preflight("n1 off n2")
    preflight("n1 off n2")
    (first, second) = said(capfd)  # once, though asked twice
    assert first.startswith("warning: the job starts without") and "off: cannot be reached by ssh" in second


def test_a_job_that_may_shrink_goes_on_with_the_hosts_that_answer(preflight, capfd) -> None:
    preflight("n1 off1 off2", nodes=3, least_nodes=1, shrink=True)
    err = capfd.readouterr().err
    assert "off1" in err and "off2" in err
    with fails_with(LauncherError):
        preflight("n1 off1 off2", nodes=3, least_nodes=2, shrink=True)


@pytest.mark.parametrize(
    ("host", "said"),
    [("off", "No route to host"), ("odd", "unexpected answer"), ("bare", "cannot run cingulum as it is run")],
)
def test_a_host_that_is_needed_and_cannot_run_the_job_is_named(preflight, host, said) -> None:
    with pytest.raises(LauncherError, match=f"{host}: .*{said}"):
        preflight(f"n1 {host}")


def test_a_spare_that_answers_and_cannot_run_the_job_is_no_spare(preflight) -> None:
    with fails_with(LauncherError):
        preflight("n1 n2 bare")


def test_a_host_with_too_few_slots_is_not_asked(preflight, capfd) -> None:
    preflight("n1:2 n2:2 off:1", ranks_per_node=2)
    assert said(capfd) == []


def test_what_ssh_leaves_running_is_not_waited_for(preflight) -> None:
    began = time.monotonic()
    preflight("n1 shared")
    assert time.monotonic() - began < host_checks.TIMEOUT_S / 2


def test_a_host_that_says_nothing_is_given_up(preflight, monkeypatch) -> None:
    monkeypatch.setattr(host_checks, "TIMEOUT_S", 1.0)
    with fails_with(LauncherError):
        preflight("n1 hung")


def test_without_ssh_there_is_a_word_for_it(preflight, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with fails_with(LauncherError):
        preflight("n1 n2")


def test_a_job_that_runs_there_already_is_named(preflight, tmp_path, capfd) -> None:
    token = home.new_token()
    with subprocess.Popen(["sleep", "600"], env={**os.environ, processes.MARK: f"{token}.0"}) as other:
        preflight("n1 n2")
        err = capfd.readouterr().err
        assert f"warning: n1, n2: job with the token {token} runs there" in err and "--after" in err
        host_checks.warn.cache_clear()
        agreed = Terms(token, "the other", (("true",),), "/")
        (home.job_folder(token) / TERMS).write_text(agreed.to_json())
        job = JobSpec("x", "command", (("true",),), str(tmp_path))
        Mpirun().preflight(job, HERE)
        assert "job 'the other' runs there" in capfd.readouterr().err
        # Who waits for another job shares with nobody that runs now.
        host_checks.warn.cache_clear()
        preflight("n1 n2", after=("mpirun-1",))
        assert "runs there" not in capfd.readouterr().err
        other.kill()


def test_this_host_needs_the_networks_of_the_site_as_the_others_do(preflight, monkeypatch) -> None:
    facts = host_facts.facts
    monkeypatch.setattr(host_facts, "facts", lambda *words: {**facts(*words), "interfaces": ["eno1"]})
    with fails_with(LauncherError):
        preflight("n1 n2", interfaces=("lo",))
