"""A training that saves and is started again must get somewhere; with stand-ins for Slurm's commands."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from batch_bench import Bench

SAVES = "mkdir -p {run}/checkpoints/step-0000000{step}; exit 75"


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def run(tmp_path) -> Path:
    return tmp_path / "run"


def test_who_saves_and_comes_no_further_is_warned_about_and_then_not_started_again(bench, run):
    for requeued, words in (
        (1, "saved and stopped; to be started again"),  # from none to step 7
        (2, "stopped at step 7, without progress in start 1 of 3"),
        (3, "stopped at step 7, without progress in start 2 of 3"),
        (3, "stopped at step 7, without progress in 3 starts in a row"),
    ):
        assert bench.run(SAVES.format(run=run, step=7), trains=run, minutes=9) == 75
        assert bench.requeued == requeued
        log = (bench.folder / "out.log").read_text()
        assert words in log.splitlines()[-1] or words in log.splitlines()[-2]
    assert "use a longer --time" in log and "To try once more: scontrol requeue 7" in log
    (task,) = json.loads((bench.folder / "state.json").read_text())["tasks"]
    assert (task["state"], task["exit_code"]) == ("FAILED", 75)
    assert bench.failures == []
    # By hand it is tried anew, as often as before.
    assert bench.run(SAVES.format(run=run, step=7), trains=run) == 75
    assert bench.requeued == 4


def test_a_step_further_now_and_then_is_enough(bench, run):
    for requeued, step in enumerate((1, 1, 1, 2, 2, 2), 1):
        bench.run(SAVES.format(run=run, step=step), trains=run)
        assert bench.requeued == requeued


def test_who_is_ended_by_slurm_or_preempted_is_not_counted(bench, run):
    for _ in range(4):
        assert bench.signal(signal.SIGTERM, "exit 75", trains=run) == 75
    bench.slurm_says("JobState=RUNNING PreemptTime=2026-01-02T00:00:00 StartTime=2026-01-01T00:00:00")
    for _ in range(4):
        assert bench.signal(signal.SIGUSR2, "exit 75", trains=run) == 75
    assert bench.requeued == 8 and "without progress" not in (bench.folder / "out.log").read_text()


def test_tasks_of_an_array_are_judged_each_by_itself(bench, run):
    for task in (0, 0, 1):
        bench.run(SAVES.format(run=run, step=7), trains=run, task=task)
    assert (bench.folder / "standing-0").read_text() == "7 1\n"
    assert (bench.folder / "standing-1").read_text() == "7 1\n"


def test_a_job_that_trains_nothing_saves_as_often_as_it_likes(bench):
    for requeued in range(1, 6):
        assert bench.run("exit 75") == 75
        assert bench.requeued == requeued
