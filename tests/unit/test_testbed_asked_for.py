"""What can be asked of a testbed, what Slurm is told, and what is said where none can be had."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from wording import fails_with

from cingulum.cli import app
from jobs.testbed import Testbed, layout, links, making, namespaces, programs, slurm_daemons
from jobs.testbed.layout import Settings
from trainer.errors import JobError, LauncherError


@pytest.mark.parametrize("name", ["", "-a", "A", "a b", "a/b", "..", "a\n", "$(id)", "x" * 32, "ä"])
def test_a_name_that_could_be_a_path_or_an_option_is_refused(name):
    with fails_with(JobError):
        Settings(name=name)
    with fails_with(JobError):
        making.take_down(name)


@pytest.mark.parametrize("rate", ["", "0gbit", "1", "1gb", "-1gbit", "1gbit 2", "1gbit\n", "nan", "1e3mbit"])
def test_a_rate_that_tc_would_take_for_something_else_is_refused(rate):
    with fails_with(JobError):
        Settings(bandwidth=rate)


@pytest.mark.parametrize(("delay", "expected"), [("0.2ms", 200), ("150us", 150), ("0s", 0), ("1s", 1e6)])
def test_a_delay_is_read_with_its_unit(delay, expected):
    assert layout.microseconds(delay) == pytest.approx(expected)


@pytest.mark.parametrize("delay", ["", "5", "-1ms", "1.1s", "ms", "1 ms", "1ms\n", "1m"])
def test_a_delay_without_unit_or_beyond_a_second_is_refused(delay):
    with fails_with(JobError):
        Settings(delay=delay)


@pytest.mark.parametrize(
    "wrong",
    [
        {"hosts": 0},
        {"hosts": 201},
        {"cpus": 0},
        {"gpus": -1},
        {"memory_mb": 0},
        {"cpus_per_host": 0.0},
        {"cpus_per_host": float("nan")},
        {"slurm": False, "accounting": True},
    ],
)
def test_numbers_that_cannot_be_are_refused(wrong):
    with pytest.raises(JobError):
        Settings(**wrong)


def test_every_host_has_an_address_of_its_own():
    settings = Settings(hosts=layout.MOST_HOSTS)
    addresses = {layout.address(host) for host in settings.all_names}
    assert len(addresses) == layout.MOST_HOSTS + 1
    assert all(0 < int(address.split(".")[-1]) < 255 for address in addresses)
    assert "10.99.0.11 n1\n" in layout.hosts_file(settings)


def test_slurm_is_told_of_every_host_and_of_accounting_only_where_it_runs():
    plain = slurm_daemons.slurm_conf(Settings(hosts=3, cpus=4, gpus=2), Path("/f"))
    assert "NodeName=n3 NodeAddr=10.99.0.13 CPUs=4 RealMemory=4000 Gres=gpu:2 State=UNKNOWN\n" in plain
    assert "NodeName=n4" not in plain
    assert "Accounting" not in plain
    kept = slurm_daemons.slurm_conf(Settings(accounting=True), Path("/f"))
    assert "AccountingStoragePass=/f/munge.socket\n" in kept
    assert "Gres" not in kept  # without slurmdbd's knowing gpu, tracking it is fatal


def test_each_pretended_gpu_has_a_device_file_as_slurm_counts_none_without():
    assert (
        slurm_daemons.gres_conf(Settings(hosts=1, gpus=2), Path("/f"))
        == "NodeName=n1 Name=gpu File=/f/dev/gpu[0-1]\n"
    )
    assert (
        slurm_daemons.gres_conf(Settings(hosts=1, gpus=1), Path("/f"))
        == "NodeName=n1 Name=gpu File=/f/dev/gpu0\n"
    )
    assert slurm_daemons.gres_conf(Settings(hosts=1), Path("/f")) == ""


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A machine where a testbed could be had, with its files elsewhere; nothing is started."""
    monkeypatch.delenv(namespaces.MARK, raising=False)
    monkeypatch.setattr(layout, "BASE", tmp_path / "cingulum" / "testbeds")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(programs, "find", lambda program: f"/bin/{program}")
    return monkeypatch


def told(capsys, *arguments: str) -> tuple[int, str]:
    code = app.run(["testbed", *arguments])
    return code, capsys.readouterr().err


def test_without_root_it_says_so(here, capsys):
    here.setattr(os, "geteuid", lambda: 1000)
    code, said = told(capsys, "up")
    assert code == 1
    assert "needs root" in said
    assert "sudo" in said
    assert not layout.BASE.exists()


def test_without_root_a_testbed_is_neither_shown_nor_taken_down(here, capsys):
    (layout.BASE / "testbed").mkdir(parents=True)
    here.setattr(os, "geteuid", lambda: 1000)
    for command in (["down"], ["exec", "n1", "--", "true"]):
        code, said = told(capsys, *command)
        assert code == 1
        assert "needs root" in said
    assert app.run(["testbed", "status"]) == 0
    assert "needs root" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/run", "/tmp/../tmp"])  # noqa: S108
def test_places_that_each_host_needs_for_itself_cannot_be_shared(here, place):
    with fails_with(JobError):
        Testbed.up(1, shared=Path(place))


def test_on_another_system_it_says_so(here, capsys):
    here.setattr("sys.platform", "darwin")
    code, said = told(capsys, "up")
    assert code == 1
    assert "this is darwin" in said


def test_missing_programs_are_named_with_the_line_that_installs_them(here, capsys):
    here.setattr(programs, "find", lambda program: None if program in ("slurmd", "munged", "gcc") else "/x")
    code, said = told(capsys, "up", "--delay", "1ms")
    assert code == 1
    assert "munged" in said
    assert "apt-get install --no-install-recommends slurmd munge gcc libc6-dev" in said


def test_programs_are_asked_for_only_where_they_are_used(here):
    here.setattr(programs, "find", lambda program: None if program in ("slurmd", "mariadbd", "gcc") else "/x")
    here.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "", ""))
    programs.check(slurm=False, accounting=False, delay=False)


def test_without_the_pmix_that_slurm_opens_it_names_the_package(here, capsys):
    """Slurm 22.05 of Debian is installed without it, and `srun --mpi=pmix` then starts nothing."""
    here.setattr(subprocess, "run", lambda line, **_: subprocess.CompletedProcess(line, 1, "", ""))
    code, said = told(capsys, "up")
    assert code == 1
    assert "missing: libpmix.so." in said and "apt-get install --no-install-recommends libpmix-dev" in said


def test_where_namespaces_are_forbidden_it_says_so(here, capsys):
    refused = subprocess.CompletedProcess([], 1, "", "unshare: unshare failed: Operation not permitted")
    done = subprocess.CompletedProcess([], 0, "", "")
    here.setattr(subprocess, "run", lambda line, **_: refused if line[0] == "unshare" else done)
    code, said = told(capsys, "up")
    assert code == 1
    assert "does not allow namespaces: unshare: unshare failed: Operation not permitted" in said
    assert "--privileged" in said


def test_a_testbed_cannot_be_made_or_taken_down_from_within_one(here, capsys):
    here.setenv(namespaces.MARK, "/var/lib/cingulum/testbeds/testbed")
    for arguments in (["up"], ["down", "--name", "testbed"], ["exec", "n1", "--", "true"]):
        code, said = told(capsys, *arguments)
        assert code == 1
        assert "host of a testbed" in said


def test_a_testbed_that_is_not_there_is_an_error_for_all_but_down(here, capsys):
    assert told(capsys, "exec", "n1", "--", "true")[0] == 2
    assert told(capsys, "status", "--name", "other")[0] == 2
    assert told(capsys, "down", "--name", "other") == (0, "")
    assert told(capsys, "status") == (0, "")


def test_several_testbeds_must_be_told_apart(here, capsys):
    for name in ("one", "two"):
        (layout.BASE / name).mkdir(parents=True)
    code, said = told(capsys, "down")
    assert code == 2
    assert "one, two" in said
    assert "--name one" in said


def test_a_half_made_testbed_is_told_by_status_and_refused_by_all_else(here, capsys):
    (layout.BASE / "half").mkdir(parents=True)
    assert app.run(["testbed", "status"]) == 0
    assert "half: The testbed 'half' is half made:" in capsys.readouterr().out
    code, said = told(capsys, "boot", "n1")
    assert code == 1
    assert "cingulum testbed down --name half" in said


def test_a_second_testbed_of_the_same_name_is_refused_and_the_first_stays(here):
    here.setattr(programs, "check", lambda **_: None)
    (layout.BASE / "testbed").mkdir(parents=True)
    with fails_with(JobError):
        Testbed.up(1)
    assert (layout.BASE / "testbed").exists()


def test_a_folder_that_exists_is_not_taken(here, tmp_path):
    here.setattr(programs, "check", lambda **_: None)
    (tmp_path / "mine").mkdir()
    with fails_with(JobError):
        Testbed.up(1, folder=tmp_path / "mine")
    assert (tmp_path / "mine").exists()
    assert not layout.BASE.parent.exists()


def test_what_cannot_be_made_leaves_nothing(here):
    here.setattr(programs, "check", lambda **_: None)

    def refuse(*_: object) -> None:
        raise LauncherError("no")

    here.setattr("jobs.testbed.making.write", refuse)
    here.setattr(namespaces, "remove_quotas", lambda _: None)
    with pytest.raises(LauncherError):
        Testbed.up(1)
    assert not layout.BASE.parent.exists()


def test_quotas_that_cannot_be_set_are_an_error_with_a_cure(here, tmp_path):
    here.setattr(namespaces, "_CGROUPS", tmp_path / "nowhere")
    with fails_with(LauncherError) as raised:
        namespaces.set_quota(tmp_path, "x", ("n1",), 0.5)
    assert "--cpus-per-host" in str(raised.value)


def test_quotas_of_version_2_are_written_as_the_kernel_reads_them(here, tmp_path):
    root = tmp_path / "cgroup"
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpu memory\n")
    here.setattr(namespaces, "_CGROUPS", root)
    namespaces.set_quota(tmp_path, "x", ("n1", "n2"), 0.25)
    assert (root / "cgroup.subtree_control").read_text() == "+cpu"
    group = root / "cingulum-testbed-x" / "n2"
    assert (group / "cpu.max").read_text() == "25000 100000"
    assert namespaces.quota_of(tmp_path, "n2") == group / "cgroup.procs"
    assert namespaces.quota_of(tmp_path, "ctl") is None


def test_the_switch_tells_its_links_and_no_others(here):
    told = [
        {"ifname": "lo", "flags": ["UP"]},
        {"ifname": "n1", "flags": ["UP"], "master": "br0"},
        {"ifname": "n2", "flags": [], "master": "br0"},
    ]
    here.setattr(programs, "run", lambda *_, **__: json.dumps(told))
    here.setattr(namespaces, "need", lambda *_: 1)
    assert links.ports(Path("/f")) == {"n1": True, "n2": False}


def test_of_many_testbeds_two_are_named(monkeypatch, capsys):
    monkeypatch.setattr(layout, "names", lambda: [f"test-{number}" for number in range(9)])
    assert app.run(["testbed", "boot", "n1"]) == 2
    said = capsys.readouterr().err
    assert "Several testbeds are up: test-0, test-1 and 7 more." in said
    assert max(map(len, said.splitlines())) <= 80
