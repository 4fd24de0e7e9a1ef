"""Processes told apart and ended, here real ones of `sleep`; and who attends to a job."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from wording import fails_with

from jobs.local import attended, attended_files, processes
from jobs.local.attended import Attended
from jobs.local.attended_files import TERMS, Ledger, TaskEntry, Terms
from trainer.errors import LauncherError


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, processes.MARK: f"{tmp_path.name}.0"}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        yield process
        process.kill()


@pytest.fixture(params=["", "pidfd_open", "refused"])
def _without(request, monkeypatch) -> None:
    """Also where Python, or the kernel, knows no descriptors of processes."""

    def refused(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    if request.param == "refused":
        monkeypatch.setattr(os, "pidfd_open", refused)
    elif request.param:
        monkeypatch.delattr(os, request.param)


@pytest.mark.usefixtures("_without")
def test_only_the_very_process_is_sent_a_signal(sleeper) -> None:
    who = processes.identity(sleeper.pid)
    number, started, boot = who.split()
    for other in (f"{number} {int(started) - 1} {boot}", f"{number} {started} {boot[::-1]}"):
        assert not processes.tell(sleeper.pid, other, signal.SIGKILL)
    assert sleeper.poll() is None
    assert processes.tell(sleeper.pid, who, signal.SIGTERM)
    assert sleeper.wait(20) == -signal.SIGTERM
    assert not processes.tell(sleeper.pid, who, signal.SIGTERM)


@pytest.mark.usefixtures("_without")
def test_what_carries_a_mark_is_ended_and_nothing_else(sleeper, tmp_path) -> None:
    assert processes.end_marked(f"{tmp_path.name}.1", tmp_path.name) == 0
    assert sleeper.poll() is None
    os.kill(sleeper.pid, signal.SIGSTOP)
    assert processes.end_marked(f"{tmp_path.name}.1", f"{tmp_path.name}.0") == 1
    assert sleeper.wait(20) == -signal.SIGKILL


def lost(folder: Path, token: str, **entry) -> None:
    folder.mkdir()
    (folder / TERMS).write_text(Terms(token, "test", (("true",),), "/").to_json())
    Ledger.new(token, [TaskEntry(0, **entry)]).write(folder)


def test_who_finds_a_dead_attendant_ends_what_it_left(sleeper, tmp_path) -> None:
    lost(tmp_path / "job", tmp_path.name, state="RUNNING")
    (state,) = Attended().states([str(tmp_path / "job")])[str(tmp_path / "job")]
    assert state.state == "LOST" and f"process {os.getpid()}" in state.reason
    assert sleeper.wait(20) == -signal.SIGKILL


def test_no_attendant_starts_while_what_a_dead_one_left_is_ended(tmp_path, monkeypatch) -> None:
    """It would be ended, too: its tasks carry the same marks."""
    lost(tmp_path / "job", tmp_path.name, state="RUNNING")
    begun = threading.Event()

    def start() -> None:
        with attended_files.lock(tmp_path / "job"):
            begun.set()

    starting = threading.Thread(target=start)

    def end(agreed: Terms) -> None:
        starting.start()
        assert not begun.wait(0.3)

    monkeypatch.setattr(attended, "_leave_nothing", end)
    Attended().states([str(tmp_path / "job")])
    starting.join(20)
    assert begun.is_set()


def test_an_attendant_on_another_host_lives_while_it_touches_its_state(tmp_path) -> None:
    lost(tmp_path / "job", tmp_path.name, state="RUNNING")
    known = Ledger.read(tmp_path / "job")
    known.host = "another"
    known.write(tmp_path / "job")
    assert attended_files.is_attended(tmp_path / "job")
    state = tmp_path / "job" / attended_files.STATE
    long_ago = state.stat().st_mtime - attended_files.SILENT_S
    os.utime(state, (long_ago, long_ago))
    assert not attended_files.is_attended(tmp_path / "job")


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch) -> None:
    def flock(file: int, kind: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with fails_with(LauncherError) as caught:
        attended_files.lock(tmp_path)
    assert "CINGULUM_HOME" in caught.value.cure
