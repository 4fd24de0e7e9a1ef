"""What launchers with attendants leave for them; here no attendant is started."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from wording import fails_with

from jobs.local import attended_files, processes
from jobs.local.attended import Attended
from jobs.local.attended_files import TERMS, Ledger, TaskEntry, Terms
from trainer.errors import JobError, LauncherError


@pytest.fixture
def spawned(monkeypatch) -> list[dict[str, str]]:
    """Environments of the attendants that would have been started."""
    found: list[dict[str, str]] = []

    def run(line: list[str], *, env: dict[str, str], **_) -> subprocess.CompletedProcess[str]:
        found.append(env)
        return subprocess.CompletedProcess(line, 1 if "FAIL" in env else 0)

    monkeypatch.setattr(subprocess, "run", run)
    return found


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """An array whose attendant has gone."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / TERMS).write_text(Terms("0" * 16, "test", (("true",),) * 3, "/").to_json())
    states = ("COMPLETED", "FAILED", "RUNNING")
    Ledger.new("0" * 16, [TaskEntry(k, state=state) for k, state in enumerate(states)]).write(folder)
    return folder


def asked(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.asked")}


def test_a_requeue_asks_for_all_tasks_that_have_not_completed(job, spawned) -> None:
    Attended().requeue(str(job))
    assert asked(job) == {"requeue-1.asked", "requeue-2.asked"} and len(spawned) == 1


def test_a_requeue_of_one_task_asks_for_that_one(job, spawned) -> None:
    Attended().requeue(str(job), 0)
    assert asked(job) == {"requeue-0.asked"}
    with fails_with(JobError):
        Attended().requeue(str(job), 3)


def test_an_old_request_to_cancel_ends_no_new_start(job, spawned) -> None:
    for task in (None, 1):
        attended_files.request(job, "cancel", task).touch()
    Attended().requeue(str(job), 1)
    assert asked(job) == {"requeue-1.asked"}


def test_a_job_that_submits_jobs_is_not_their_end(job, spawned, monkeypatch) -> None:
    monkeypatch.setenv(processes.MARK, "of the job that submits")
    Attended().requeue(str(job))
    assert processes.MARK not in spawned[0]


def test_an_attendant_that_cannot_start_says_why(job, spawned, monkeypatch) -> None:
    monkeypatch.setenv("FAIL", "1")
    (job / attended_files.OWN_LOG).write_text("error: no room\n")
    with fails_with(LauncherError):
        Attended().requeue(str(job))


def test_a_cancel_leaves_no_request_where_nobody_would_take_it(job, spawned) -> None:
    Attended().cancel(str(job))
    assert asked(job) == set()


def test_a_request_to_cancel_what_is_being_started_is_kept(job, spawned, monkeypatch) -> None:
    plain = attended_files.lock

    def lock(folder: Path):
        held = plain(folder)
        Attended().cancel(str(folder), 1)
        return held

    monkeypatch.setattr(attended_files, "lock", lock)
    Attended().requeue(str(job), 1)
    assert asked(job) == {"requeue-1.asked", "cancel-1.asked"}


def test_a_job_whose_state_cannot_be_read_does_not_hide_the_others(job, tmp_path) -> None:
    other = tmp_path / "other"
    shutil.copytree(job, other)
    (job / attended_files.STATE).write_text("{")
    found = Attended().states([str(job), str(other)])
    assert list(found) == [str(other)]
    assert [state.state for state in found[str(other)]] == ["COMPLETED", "FAILED", "LOST"]
