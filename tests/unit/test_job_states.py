"""Labels of jobs, the state of a job from its tasks, and which change of a state is believed."""

from __future__ import annotations

import pytest
from wording import fails_with

from jobs.job import believed, is_news, label, overall, split_label
from jobs.schedulers.base import ACTIVE, ENDED, TaskState
from jobs.store import submitter
from trainer.errors import JobError


def test_labels() -> None:
    assert label("slurm", 7, None) == "new-7"
    assert label("slurm", 7, "4711") == "4711"
    assert label("mpirun", 7, "/some/folder") == "mpirun-7"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("4711", ("4711", None)),
        ("4711_3", ("4711", 3)),
        ("mpirun-7", ("mpirun-7", None)),
        (" new-1_0 ", ("new-1", 0)),
    ],
)
def test_a_label_is_split_into_job_and_task(text, parts) -> None:
    assert split_label(text) == parts


@pytest.mark.parametrize(
    "text", ["", "-1", "4711_", "4711_x", "_3", "4711;rm", "MPIRUN-7", "४७", "a b", "9" * 30]
)
def test_what_is_no_label_is_refused(text) -> None:
    with fails_with(JobError):
        split_label(text)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["PENDING", "RUNNING", "FAILED"], "RUNNING"),
        (["PENDING", "COMPLETED"], "PENDING"),
        (["COMPLETED", "COMPLETED"], "COMPLETED"),
        (["COMPLETED", "FAILED", "CANCELLED"], "FAILED"),
        (["CANCELLED", "COMPLETED"], "CANCELLED"),
    ],
)
def test_a_job_is_what_its_tasks_are(states, expected) -> None:
    assert overall([TaskState(task, state) for task, state in enumerate(states)]) == expected


def test_every_state_has_a_place_among_the_others() -> None:
    for state in (*ACTIVE, *ENDED):
        assert overall([TaskState(0, state), TaskState(1, "COMPLETED")]) in (*ACTIVE, *ENDED)


@pytest.mark.parametrize("ended", [state for state in ENDED if state != "LOST"])
@pytest.mark.parametrize("late", ["PENDING", "RUNNING", "FAILED", "COMPLETED", "LOST"])
def test_a_task_that_has_ended_stays_so_whatever_a_late_answer_says(ended, late) -> None:
    before = TaskState(0, ended, restarts=1, started=10.0, ended=20.0)
    assert believed(before, TaskState(0, late, restarts=1, started=10.0)).state == ended
    assert believed(before, TaskState(0, late)).state == ended


@pytest.mark.parametrize(
    "again", [TaskState(0, "PENDING", restarts=2), TaskState(0, "RUNNING", started=21.0)]
)
def test_a_task_that_was_started_again_goes_on(again) -> None:
    before = TaskState(0, "NODE_FAIL", restarts=1, started=10.0, ended=20.0)
    assert believed(before, again).state == again.state
    assert believed(before, again).restarts == max(1, again.restarts)


def test_any_answer_corrects_a_job_thought_lost() -> None:
    assert believed(TaskState(0, "LOST"), TaskState(0, "RUNNING")).state == "RUNNING"
    assert believed(TaskState(0, "LOST"), TaskState(0, "COMPLETED", 0)).exit_code == 0


def test_a_later_answer_adds_to_an_end_and_takes_nothing_away() -> None:
    known = believed(
        TaskState(0, "FAILED", reason="rank 2"), TaskState(0, "FAILED", 1, reason="x", ended=3.0)
    )
    assert known == TaskState(0, "FAILED", 1, reason="rank 2", ended=3.0)


def test_a_state_without_a_name_is_an_error() -> None:
    with pytest.raises(ValueError, match="LAUNCHING"):
        believed(TaskState(0, "PENDING"), TaskState(0, "LAUNCHING"))


def test_another_reason_for_waiting_is_no_news_and_another_for_failing_is() -> None:
    waiting = TaskState(0, "PENDING", reason="Priority")
    assert not is_news(waiting, TaskState(0, "PENDING", reason="Resources"))
    assert is_news(waiting, TaskState(0, "RUNNING", reason="Priority"))
    assert is_news(TaskState(0, "FAILED"), TaskState(0, "FAILED", reason="rank 2 was lost"))


def test_this_process_is_alive_and_a_number_used_again_is_another_process() -> None:
    assert submitter.is_alive(submitter.myself()) is True
    machine, number, started = submitter.myself().rsplit(" ", 2)
    assert submitter.is_alive(f"{machine} {number} {int(started) - 1}") is False
    assert submitter.is_alive(f"elsewhere/{machine} {number} {started}") is None
