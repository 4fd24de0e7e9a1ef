"""The exit codes of `cingulum wait` that docs/how-to/submit-jobs.md promises, with real attended jobs."""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from pathlib import Path

import pytest

from cingulum.cli import app
from jobs.local import processes
from jobs.local.attended_files import TERMS, Ledger, Terms
from jobs.local.mpirun import Mpirun
from jobs.requests import known
from jobs.requests.submission import submit
from jobs.schedulers.base import Launch
from jobs.sites import HERE
from jobs.spec import JobSpec
from jobs.store.store import Store
from trainer.errors import StoreError

SLEEPS = "touch begun; exec sleep 600"
# Does not save when it is told to.
DEAF = "trap '' USR2; touch begun; while :; do sleep 0.02; done"


class Soon(Mpirun):
    """Its jobs end so many minutes after their start; `--time` is a minute at least."""

    def __init__(self, minutes: float | None) -> None:
        self.minutes = minutes

    def plan(self, *asked) -> Launch:
        launch = super().plan(*asked)
        changed = dataclasses.replace(Terms.from_json(launch.files[TERMS]), minutes=self.minutes, grace_s=0.1)
        return dataclasses.replace(launch, files={**launch.files, TERMS: changed.to_json()})


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CINGULUM_STORE", raising=False)

    def started(*scripts: str, minutes: float | None = None) -> str:
        tasks = tuple(("sh", "-c", script) for script in scripts)
        spec = JobSpec("mine", "command", tasks, str(tmp_path), parallel=False, requeues=0)
        return submit(Store(), Soon(minutes), spec, HERE).label

    yield started
    for folder in (tmp_path / "home" / "jobs").glob("*"):
        ledger = Ledger.read(folder)
        if ledger is not None:
            processes.tell(ledger.pid, ledger.process, signal.SIGKILL)
            for entry in ledger.tasks:
                processes.end_marked(f"{ledger.token}.{entry.task}")


def wait(*words: str) -> int:
    return app.run(["wait", *words, "--timeout", "60"])


def begun(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while not (folder / "begun").exists():
        assert time.monotonic() < deadline, "it never began"
        time.sleep(0.02)


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 2", 2), ("exit 3", 3), ("kill $$", 143)])
def test_a_job_that_ended_by_itself_gives_its_own(start, script, code) -> None:
    assert wait(start(script)) == code


def test_a_job_that_was_cancelled_gives_1(start, tmp_path) -> None:
    job = start(SLEEPS)
    begun(tmp_path)
    assert app.run(["cancel", job]) == 0
    assert wait(job) == 1
    assert Store().get(job).exit_code == 143


def test_a_job_that_had_not_saved_at_its_time_limit_gives_1(start) -> None:
    job = start(DEAF, minutes=0.002)
    assert wait(job) == 1
    assert Store().get(job).state == "TIMEOUT"


def test_of_several_tasks_the_first_that_failed_gives_its_own(start) -> None:
    job = start("exit 0", "exit 5", "exit 3")
    assert wait(job) == 5
    assert [wait(f"{job}_{task}") for task in range(3)] == [0, 5, 3]


def test_one_that_goes_on_gives_124_and_one_that_is_not_there_2(start, capsys) -> None:
    job = start(SLEEPS)
    assert app.run(["wait", job, "--timeout", "0.2"]) == 124
    assert wait("mpirun-99") == 2
    assert wait(job, "mpirun-99") == 2  # one at a time
    assert "wait" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["wait", "logs"])
def test_a_database_that_does_not_answer_for_a_moment_is_not_the_end_of_a_job(
    start, tmp_path, monkeypatch, command
):
    label = start("until [ -e go ]; do sleep 0.02; done; exit 3")
    plain, failures = known.current, []

    def current(*arguments, **options):
        if len(failures) in (1, 2):
            failures.append("failed")
            (tmp_path / "go").touch()
            raise StoreError("the database does not answer")
        failures.append("worked")
        return plain(*arguments, **options)

    monkeypatch.setattr(known, "current", current)
    monkeypatch.setattr(sys.modules["cingulum.cli.job_output"], "ASK_S", 0.1)
    if command == "wait":
        assert wait(label) == 3
    else:
        assert app.run(["logs", label, "--follow"]) == 0
    assert failures.count("failed") == 2
