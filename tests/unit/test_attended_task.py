"""One task of an attended job, without MPI: a task that ends just when it is told to, and what is counted."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import processes
from jobs.attended_task import Task
from jobs.ledger import Entry
from jobs.terms import Terms

TERMS = Terms("0" * 16, "test", (("sleep", "600"),), "/", grace_s=5)


@pytest.fixture
def task(tmp_path: Path):
    made = []

    def make(*command: str, entry: Entry | None = None, **changes) -> Task:
        agreed = dataclasses.replace(TERMS, token=tmp_path.name, **changes)
        agreed = dataclasses.replace(agreed, commands=(command,)) if command else agreed
        made.append(Task(tmp_path, agreed, 0, entry, 0o077))
        return made[-1]

    yield make
    for one in made:
        processes.end_marked(one.mark)


def wait(done: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.005)


def has_ended(task: Task) -> bool:
    task.look()
    return not task.is_running


def test_a_task_that_ended_a_moment_before_it_is_told_to_save_has_completed(task) -> None:
    one = task("true")
    assert one.start([])
    wait(lambda: processes.identity(one.entry.pid) is None, "the end, which nobody has looked at yet")
    one.save("again")
    wait(lambda: has_ended(one), "the end")
    assert one.entry.state == "COMPLETED"


def test_a_lost_job_may_fail_as_often_as_a_new_one_after_a_requeue(task) -> None:
    lost = Entry(0, state="RUNNING", failures=3, lost_hosts=("n1",))
    one = task("false", entry=lost, requeues=1)
    assert one.entry.state == "REQUEUED"
    one.requeue()
    assert (one.entry.failures, one.entry.lost_hosts, one.entry.restarts) == (0, (), 1)
    assert one.start([])
    wait(lambda: has_ended(one), "the end")
    assert one.entry.state == "REQUEUED"
