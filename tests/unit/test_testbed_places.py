"""A testbed's name, folder and users are its own, whatever else goes on; nothing hangs where it has ended."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from wording import fails_with

from jobs.testbed import Testbed, layout, links, making, namespaces, programs
from jobs.testbed.layout import Settings
from trainer.errors import JobError, LauncherError


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A machine where we are root and testbeds have their files elsewhere."""
    monkeypatch.delenv(namespaces.MARK, raising=False)
    monkeypatch.setattr(layout, "BASE", tmp_path / "cingulum" / "testbeds")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return monkeypatch


def test_a_testbed_whose_first_process_is_gone_boots_no_host_and_says_so(here):
    folder = layout.BASE / "testbed"
    (folder / "pids").mkdir(parents=True)
    os.mkfifo(folder / "boot")  # nobody reads it: a writer would wait for ever
    layout.save(Settings(), folder)
    found = Testbed.open("testbed")
    with fails_with(LauncherError):
        found.boot("n1")
    with fails_with(LauncherError):
        found.exec("n1", ["true"])
    assert not any(host["up"] for host in found.status()["host_states"])


def test_where_there_is_no_slurm_a_host_has_no_daemons_of_it(here):
    Testbed(Settings(slurm=False), layout.BASE / "nowhere").start_daemons("n1")
    with fails_with(JobError):
        Testbed(Settings(), layout.BASE / "nowhere").start_daemons("n9")


def test_a_name_is_taken_although_the_end_of_another_testbed_removes_the_folder_above(here):
    real, removed = Path.chmod, []

    def chmod(path: Path, mode: int) -> None:
        real(path, mode)
        if path == layout.BASE and len(removed) < 3:
            path.rmdir()
            removed.append(path)

    here.setattr(Path, "chmod", chmod)
    assert making.claim("mine", None) == layout.BASE / "mine"
    assert len(removed) == 3


def test_two_testbeds_never_share_a_folder(here, tmp_path):
    """Both saw that there was none; the second must not take the first one down."""
    (tmp_path / "files").mkdir()
    here.setattr(Path, "exists", lambda _: False)
    with fails_with(JobError):
        making.claim("second", tmp_path / "files")
    assert not os.path.lexists(layout.BASE / "second")


@pytest.mark.parametrize("folder", ["/a b", "/a,b", '/a"b', "/a#b", "/ä", "/a\nb", "/a$(b)"])
def test_a_folder_that_slurms_files_cannot_name_is_refused(here, folder):
    with fails_with(JobError):
        making.claim("mine", Path(folder))
    assert not layout.BASE.exists()


def test_down_ends_although_another_one_takes_its_files_away(here):
    folder = layout.BASE / "testbed"
    (folder / "etc").mkdir(parents=True)
    real = shutil.rmtree

    def raced(path: Path) -> None:
        here.setattr(shutil, "rmtree", real)
        raise FileNotFoundError(2, "No such file or directory", str(path / "etc"))

    here.setattr(shutil, "rmtree", raced)
    here.setattr(namespaces, "remove_quotas", lambda _: None)
    assert making.take_down("testbed")
    assert not layout.BASE.parent.exists()


def test_a_process_with_odd_bytes_under_the_marks_name_is_nobodys():
    variables = {os.fsencode(namespaces.MARK): b"/\xff", b"PATH": os.environb[b"PATH"]}
    with subprocess.Popen(["sleep", "30"], env=variables) as other:
        try:
            namespaces.end_all(Path("/no/testbed"))
            assert other.poll() is None
        finally:
            other.kill()


def test_the_list_of_testbeds_bears_that_the_last_one_goes(here):
    here.setattr(Path, "is_dir", lambda _: True)
    assert layout.names() == []


def test_a_program_that_would_not_be_found_when_it_is_run_counts_as_missing(monkeypatch, tmp_path):
    program = tmp_path / "slurmd-of-mine"
    program.touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert programs.find("slurmd-of-mine") is None
    assert programs.find("sh") is not None


def test_the_user_of_the_hosts_has_nobodys_number(monkeypatch, tmp_path):
    machine = {
        "passwd": "root:x:0:0::/:/bin/bash\nlast:x:20004:20004::/:/bin/sh\n+::::::\n",
        "group": "root:x:0:\nstudy:x:20010:last\n+:::\n",
    }
    monkeypatch.setattr(Path, "read_text", lambda path: machine[path.name])
    monkeypatch.setattr(programs, "run", lambda *_, **__: (tmp_path / "etc").mkdir())
    monkeypatch.setattr(making, "_write_ssh", lambda *_: None)
    owners = []
    monkeypatch.setattr(os, "chown", lambda _, user, group: owners.append((user, group)))
    making.write(Settings(), tmp_path)
    assert owners == [(20011, 20011)]
    written = (tmp_path / "etc" / "group").read_bytes()
    assert written == b"root:x:0:\nstudy:x:20010:last\ntester:x:20011:\n"


def test_a_delay_that_the_kernel_does_not_take_is_an_error_with_its_reason(monkeypatch, tmp_path):
    """Packets pass at once where nobody holds the queue: no delay, and nobody would know."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "delay.n1.log").write_text("binding the queue: Operation not permitted\n")
    monkeypatch.setattr(namespaces, "need", lambda *_: os.getpid())
    monkeypatch.setattr(namespaces, "running", lambda *_: [])
    monkeypatch.setattr(links, "compiled", lambda folder: folder / "nfqdelay")
    monkeypatch.setattr(links, "_SECONDS", 0.1)
    ran = []
    monkeypatch.setattr(programs, "run", lambda argv, doing, **_: ran.append(doing) or "")
    with fails_with(LauncherError):
        links.set_delay(tmp_path, "n1", "1ms")
    assert "delaying what n1 sends" not in ran
