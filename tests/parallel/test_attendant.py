"""Jobs under mpirun on this host, each with an attendant: what becomes of them when processes die."""

from __future__ import annotations

import dataclasses
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_runs

from jobs import home
from jobs.local import attended_files, processes
from jobs.local.attended_files import TERMS, Ledger, Terms
from jobs.local.mpirun import Mpirun
from jobs.schedulers.base import ENDED, TaskState
from jobs.sites import HERE
from jobs.spec import JobSpec, Resources
from trainer.errors import LauncherError

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
PROGRAM = (sys.executable, str(PROGRAMS / "attended.py"))
# Two ranks start in about a second; others may use the cores.
WAIT_S = 60.0
TRAINING_S = 240.0


@pytest.fixture(autouse=True)
def _jobs_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in [key for key in os.environ if key.startswith(("SLURM_", "PMIX_"))]:
        monkeypatch.delenv(name)
    yield
    for folder in (tmp_path / "home" / "jobs").glob("*"):
        known = Ledger.read(folder)
        if known is not None:
            processes.tell(known.pid, known.process, signal.SIGKILL)
            for entry in known.tasks:
                processes.end_marked(f"{known.token}.{entry.task}")


class Job:
    """A job that was started: its launcher, folder and states."""

    def __init__(self, spec: JobSpec, after: tuple[str, ...] = (), minutes: float | None = None) -> None:
        self.launcher = Mpirun()
        self.token = home.new_token()
        self.folder = home.job_folder(self.token)
        self.plan = self.launcher.plan(spec, HERE, self.folder, self.token)
        if minutes is not None:
            agreed = dataclasses.replace(Terms.from_json(self.plan.files[TERMS]), minutes=minutes)
            self.plan = dataclasses.replace(self.plan, files={TERMS: agreed.to_json()})
        self.external = self.launcher.start(self.plan, self.folder, after)

    def states(self) -> list[TaskState]:
        return self.launcher.states([self.external])[self.external]

    @property
    def log(self) -> str:
        return self.launcher.logs(self.folder, self.external, 0).read_text()

    def wait(self, done: Callable[[], Any], what: str, seconds: float = WAIT_S) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := done()):
            assert time.monotonic() < deadline, f"waited for {what}; {self.states()}\n{self.log}"
            time.sleep(0.05)
        return found

    def end(self, seconds: float = WAIT_S) -> list[TaskState]:
        self.wait(lambda: all(one.state in ENDED for one in self.states()), "the end", seconds)
        return self.states()

    def rank(self, place: Path, rank: int = 0, start: int = 0) -> int:
        """Process of a rank, once it runs."""
        path = place / f"rank-{rank}-start-{start}"
        self.wait(path.exists, f"{path.name}")
        return int(path.read_text().split()[0])

    @property
    def attendant(self) -> tuple[int, str]:
        known = self.wait(lambda: Ledger.read(self.folder), "the attendant's state")
        return known.pid, known.process


def job(
    place: Path, *what: str, after: tuple[str, ...] = (), minutes: float | None = None, **changes: Any
) -> Job:
    place.mkdir(exist_ok=True)
    spec = {
        "name": "test",
        "kind": "command",
        "tasks": ((*PROGRAM, str(place), *what),),
        "folder": str(place),
        "resources": Resources(ranks_per_node=2),
        "requeues": 1,
        "grace_s": 20,
        **changes,
    }
    return Job(JobSpec(**spec), after, minutes)


def lives(pid: int) -> bool:
    return processes.identity(pid) is not None


def test_a_killed_rank_is_named_and_the_job_is_started_again(tmp_path):
    started = job(tmp_path / "a", "once")
    other = started.rank(tmp_path / "a", rank=0)
    os.kill(started.rank(tmp_path / "a", rank=1), signal.SIGKILL)
    (state,) = started.end()
    assert (state.state, state.exit_code, state.restarts) == ("COMPLETED", 0, 1)
    assert not lives(other)
    (line,) = (started.folder / "failures").read_text().splitlines()
    _, code, where, why = line.split("\t")
    assert code == "137" and where.startswith("rank 1") and why == "was killed by signal 9 (SIGKILL)"


def test_a_job_that_always_fails_is_started_so_often_and_no_more(tmp_path):
    started = job(tmp_path / "a", "3", requeues=2)
    (state,) = started.end()
    assert (state.state, state.exit_code, state.restarts) == ("FAILED", 3, 2)
    assert "exit code 3" in state.reason and "failed 3 times" in state.reason
    assert len((started.folder / "failures").read_text().splitlines()) == 3


def test_bad_input_is_not_tried_again(tmp_path):
    (state,) = job(tmp_path / "a", "2", requeues=5).end()
    assert (state.state, state.exit_code, state.restarts) == ("FAILED", 2, 0)


def test_a_killed_attendant_takes_its_ranks_along_and_the_job_is_lost_until_it_is_requeued(tmp_path):
    started = job(tmp_path / "a", "once")
    pids = [started.rank(tmp_path / "a", rank) for rank in (0, 1)]
    pid, who = started.attendant
    assert processes.tell(pid, who, signal.SIGKILL)
    started.wait(lambda: not any(map(lives, pids)), "the end of all ranks")
    (state,) = started.states()
    assert state.state == "LOST" and f"process {pid}" in state.reason and "requeue" in state.reason
    started.launcher.requeue(started.external)
    (state,) = started.end()
    assert (state.state, state.restarts) == ("COMPLETED", 1)


def test_ranks_that_hear_nothing_are_ended_by_who_asks_for_the_state(tmp_path):
    """mpirun itself is stopped, so that it cannot take its ranks along when the attendant is killed."""
    started = job(tmp_path / "a", "deaf")
    pids = [started.rank(tmp_path / "a", rank) for rank in (0, 1)]
    mpirun = Ledger.read(started.folder).tasks[0].pid
    os.kill(mpirun, signal.SIGSTOP)
    processes.tell(*started.attendant, signal.SIGKILL)
    started.wait(lambda: started.states()[0].state == "LOST", "the loss")
    started.wait(lambda: not any(map(lives, [*pids, mpirun])), "the end of all ranks")


def test_usr2_to_the_attendant_saves_and_starts_again_without_counting_as_a_failure(tmp_path):
    started = job(tmp_path / "a", "once", requeues=0)
    started.rank(tmp_path / "a", rank=0)
    processes.tell(*started.attendant, signal.SIGUSR2)
    (state,) = started.end()
    assert (state.state, state.restarts) == ("COMPLETED", 1)
    assert not (started.folder / "failures").exists()
    assert "saved and stopped; is started again" in started.log


def test_term_to_the_attendant_saves_and_ends(tmp_path):
    started = job(tmp_path / "a")
    started.rank(tmp_path / "a", rank=0)
    processes.tell(*started.attendant, signal.SIGTERM)
    (state,) = started.end()
    assert (state.state, state.exit_code, state.restarts) == ("PREEMPTED", 75, 0)
    assert "its state is saved" in state.reason
    started.wait(lambda: not lives(started.attendant[0]), "the attendant's end")


def test_ranks_that_do_not_save_within_the_grace_are_ended_all_the_same(tmp_path):
    started = job(tmp_path / "a", "deaf", grace_s=1)
    pids = [started.rank(tmp_path / "a", rank) for rank in (0, 1)]
    processes.tell(*started.attendant, signal.SIGTERM)
    (state,) = started.end()
    assert state.state == "PREEMPTED" and "unsaved" in state.reason
    assert not any(map(lives, pids))


def test_at_its_time_limit_a_job_saves_and_goes_on_in_a_new_start(tmp_path):
    started = job(tmp_path / "a", "once", requeues=0, resources=Resources(), minutes=0.2)
    (state,) = started.end()
    assert (state.state, state.restarts) == ("COMPLETED", 1)


def test_who_does_not_save_before_its_time_limit_is_ended(tmp_path):
    started = job(tmp_path / "a", "deaf", requeues=3, grace_s=2, resources=Resources(), minutes=0.1)
    (state,) = started.end()
    assert (state.state, state.restarts) == ("TIMEOUT", 0)
    assert "did not save within 2 s" in state.reason


def test_a_cancelled_job_ends_soon_and_stays_cancelled(tmp_path):
    started = job(tmp_path / "a")
    pids = [started.rank(tmp_path / "a", rank) for rank in (0, 1)]
    started.launcher.cancel(started.external)
    (state,) = started.end()
    assert state.state == "CANCELLED" and not any(map(lives, pids))
    started.launcher.cancel(started.external)
    assert started.states() == [state]


def test_tasks_of_an_array_run_so_many_at_once_and_can_be_cancelled_one_by_one(tmp_path):
    (tmp_path / "b").mkdir()
    tasks = ((*PROGRAM, str(tmp_path / "a")), (*PROGRAM, str(tmp_path / "b")), (*PROGRAM, "/nowhere", "0"))
    started = job(tmp_path / "a", tasks=tasks, at_once=2, resources=Resources())
    started.rank(tmp_path / "a")
    started.rank(tmp_path / "b")
    assert [one.state for one in started.states()] == ["RUNNING", "RUNNING", "PENDING"]
    assert started.states()[2].reason == "JobArrayTaskLimit"
    started.launcher.cancel(started.external, 1)
    started.wait(lambda: started.states()[2].state == "COMPLETED", "the third task")
    assert [one.state for one in started.states()] == ["RUNNING", "CANCELLED", "COMPLETED"]
    started.launcher.cancel(started.external)
    assert [one.state for one in started.end()] == ["CANCELLED", "CANCELLED", "COMPLETED"]
    assert (started.folder / "out-2.log").is_file() and not (started.folder / "out.log").exists()


def test_a_job_waits_for_another_and_is_cancelled_when_that_fails(tmp_path):
    first = job(tmp_path / "a")
    then = job(tmp_path / "b", "0", after=(first.external,))
    first.rank(tmp_path / "a")
    assert then.states()[0].state == "PENDING"
    first.launcher.cancel(first.external)
    first.end()
    (state,) = then.end()
    assert state.state == "CANCELLED" and "DependencyNeverSatisfied" in state.reason

    good = job(tmp_path / "c", "0")
    late = job(tmp_path / "d", "0", after=(good.external,))
    assert late.end()[0].state == "COMPLETED"
    assert late.end()[0].started >= good.end()[0].ended


def test_a_job_is_found_by_its_token_and_has_one_attendant(tmp_path):
    started = job(tmp_path / "a")
    assert started.launcher.find(started.token) == started.external
    with pytest.raises(LauncherError, match="has an attendant already"):
        started.launcher.start(started.plan, started.folder, ())
    # The submitter died after it wrote the files, before it started the attendant.
    token = home.new_token()
    folder = home.job_folder(token)
    for name, text in started.plan.files.items():
        (folder / name).write_text(text)
    assert started.launcher.find(token) is None
    with attended_files.lock(folder):  # from the first instant on, an attendant holds it
        assert started.launcher.find(token) == str(folder)


def test_a_job_goes_on_when_its_submitter_and_its_terminal_are_gone(tmp_path):
    place = tmp_path / "a"
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import test_attendant as t;"
        "print(t.job(Path(sys.argv[2]), 'once').external, flush=True); import time; time.sleep(600)"
    )
    submitter = subprocess.Popen(
        [sys.executable, "-c", script, str(Path(__file__).parent), str(place)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'helpers'}"},
    )
    with submitter:
        external = submitter.stdout.readline().strip()
        os.killpg(submitter.pid, signal.SIGHUP)
        os.killpg(submitter.pid, signal.SIGKILL)
    started = Job.__new__(Job)
    started.launcher, started.folder, started.external = Mpirun(), Path(external), external
    os.kill(started.rank(place, rank=1), signal.SIGKILL)
    (state,) = started.end()
    assert (state.state, state.restarts) == ("COMPLETED", 1)


def test_what_a_job_leaves_is_private_to_its_user(tmp_path):
    started = job(tmp_path / "a", "3", requeues=0)
    started.end()
    for path in [started.folder, *started.folder.iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 5])
def test_a_training_whose_rank_is_killed_ends_finished(tmp_path, step):
    """Step 1 is before the first checkpoint: the training starts over."""
    shards = tiny_runs.make_shards(tmp_path / "shards")
    config = tiny_runs.write_config(tmp_path, shards, "run")
    program = (sys.executable, str(PROGRAMS / "fails_at_first.py"))
    task = (*program, "kill", "1", str(step), str(config), "--resume")
    started = job(tmp_path / "a", tasks=(task,), kind="train")
    (state,) = started.end(TRAINING_S)
    assert (state.state, state.restarts) == ("COMPLETED", 1), started.log
    assert tiny_runs.result(tmp_path / "run")["epochs"] == 4
    assert (f"resumed from {tmp_path / 'run'}" in started.log) == (step == 5)
