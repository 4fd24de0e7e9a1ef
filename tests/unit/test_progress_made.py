"""Whether a training gets anywhere between its starts."""

from __future__ import annotations

import errno
import os

import pytest
from tiny_runs import write_config

from jobs.requests.chains import Wanted, chain
from jobs.spec import JobSpec
from jobs.supervisor import progress
from jobs.supervisor.progress import Standing, begun, is_stuck, newest_step, saved
from trainer.crossval import folds

SPEC = JobSpec("mine", "train", (("true",),), "/study", run="/study/runs/mine")


def test_the_newest_checkpoint_is_that_of_the_largest_step_and_halves_are_none(tmp_path) -> None:
    run = str(tmp_path)
    assert newest_step(run) == -1
    names = ("step-00000099", "step-00000100", "step-100000000", "step-00000200.partial", "step-0", "step-x")
    for name in names:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert newest_step(run) == 100_000_000


@pytest.mark.parametrize(
    ("steps", "idle"),
    [((5, 9, 14), 0), ((5, 5, 5), 2), ((-1, -1, -1), 3), ((5, 5, 6), 0), ((5, 4, 4), 2)],
)
def test_starts_that_come_no_further_are_counted_in_a_row(steps, idle) -> None:
    now = Standing()
    for step in steps:
        now = saved(now, step)
    assert now.idle == idle and is_stuck(now) == (idle >= 3)


def test_a_start_that_finds_fewer_or_more_checkpoints_counts_anew() -> None:
    assert begun(Standing(9, 2), 9) == Standing(9, 2)
    assert begun(Standing(9, 2), 3) == Standing(3, 0)
    assert begun(Standing(9, 2), 12) == Standing(12, 0)


def test_the_run_folders_of_a_job_are_those_that_its_tasks_train_in(tmp_path) -> None:
    assert SPEC.run_folders == ("/study/runs/mine",)
    assert JobSpec("e", "evaluate", (("true",),), "/", run="/study/runs/mine").run_folders == ()
    config = write_config(tmp_path, tmp_path / "shards", "mine")
    asked = folds.plan(config, [], folds=3, seeds=2)
    job = JobSpec("cv", "crossval", (("true",),), "/", run=str(asked.folder))
    wanted = Wanted(str(config), "", "", 0, ("cingulum",), "cv", job, kind="crossval", folds=3, seeds=2)
    (array,) = chain(wanted)
    assert list(array.run_folders) == [str(fold.config.folder) for fold in asked.folds]


def test_a_folder_that_cannot_be_read_now_says_nothing_about_a_training(tmp_path, monkeypatch):
    def stale(path):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "listdir", stale)
    newest = progress.newest_step(str(tmp_path))
    standing = Standing(7, 2)
    assert newest is None
    assert progress.begun(standing, newest) == standing == progress.saved(standing, newest)
