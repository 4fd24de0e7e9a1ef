"""One task of an attended job, without MPI: a task that ends just when it is told to, and what is counted."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.local import attended_task, processes
from jobs.local.attended_files import TaskEntry, Terms
from jobs.local.attended_task import AttendedTask
from jobs.schedulers.base import PROBED
from jobs.supervisor import progress

TERMS = Terms("0" * 16, "test", (("sleep", "600"),), "/", grace_s=5)


@pytest.fixture
def task(tmp_path: Path):
    made = []

    def make(*command: str, entry: TaskEntry | None = None, **changes) -> AttendedTask:
        agreed = dataclasses.replace(TERMS, token=tmp_path.name, **changes)
        agreed = dataclasses.replace(agreed, commands=(command,)) if command else agreed
        made.append(AttendedTask(tmp_path, agreed, 0, entry, 0o077))
        return made[-1]

    yield make
    for one in made:
        processes.end_marked(one.mark)
        wait(lambda one=one: not one.is_running or has_ended(one), "the end of what a test left")


def wait(done: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.005)


def has_ended(task: AttendedTask) -> bool:
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
    lost = TaskEntry(0, state="RUNNING", failures=3, lost_hosts=("n1",))
    one = task("false", entry=lost, requeues=1)
    assert one.entry.state == "REQUEUED"
    one.requeue()
    assert (one.entry.failures, one.entry.lost_hosts, one.entry.restarts) == (0, (), 1)
    assert one.start([])
    wait(lambda: has_ended(one), "the end")
    assert one.entry.state == "REQUEUED"


def ended(one: AttendedTask) -> TaskEntry:
    wait(lambda: has_ended(one), "the end")
    return one.entry


def test_a_start_that_lost_a_host_has_failed_whatever_mpirun_ends_with(task) -> None:
    """Open MPI 5's ends with 0."""
    said = (
        "PRTE has lost communication with a remote daemon.\n\n  Remote daemon: [prterun-a-1@0,2] on node n2\n"
    )
    one = task("printf", "%s", said, requeues=0)
    assert one.start([])
    assert (ended(one).state, one.entry.exit_code) == ("NODE_FAIL", 1)
    assert one.entry.reason.startswith("n2: the connection to it is lost")


def begun(one: AttendedTask, folder: Path) -> AttendedTask:
    """Started, and past its `touch begun`."""
    assert one.start([])
    wait((folder / "begun").exists, "its begin")
    return one


def script(folder: Path, text: str) -> tuple[str, ...]:
    return ("sh", "-c", text.replace("BEGUN", f'touch "{folder}/begun"'))


DEAF = "trap '' TERM USR2; BEGUN; while :; do sleep 0.02; done"


def test_what_a_start_leaves_running_is_ended(task) -> None:
    one = task("sh", "-c", "sleep 600 & exit 0")
    assert one.start([])
    assert ended(one).state == "COMPLETED"
    wait(lambda: one.mark not in [mark for _, mark in processes.marks()], "the end of what it left")


def test_who_hears_nothing_is_killed(task, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(attended_task, "KILL_AFTER_S", 0.1)
    one = begun(task(*script(tmp_path, DEAF)), tmp_path)
    one.cancel()
    assert (ended(one).state, one.entry.exit_code) == ("CANCELLED", 137)


def test_a_stopped_process_hears_that_it_is_cancelled(task, tmp_path) -> None:
    """One that handles the signal, as mpirun does, must go on for that."""
    one = begun(task(*script(tmp_path, "trap 'exit 3' TERM; BEGUN; while :; do sleep 0.02; done")), tmp_path)
    os.kill(one.entry.pid, signal.SIGSTOP)
    one.cancel()
    assert (ended(one).state, one.entry.exit_code) == ("CANCELLED", 3)


def test_who_does_not_save_within_the_grace_is_ended(task, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(attended_task, "KILL_AFTER_S", 0.1)
    one = begun(task(*script(tmp_path, DEAF), grace_s=0.1), tmp_path)
    one.save("end")
    assert ended(one).state == "PREEMPTED" and "unsaved" in one.entry.reason


def test_the_stronger_word_counts(task, tmp_path) -> None:
    one = begun(
        task(*script(tmp_path, "trap 'exit 75' USR2 TERM; BEGUN; while :; do sleep 0.02; done")), tmp_path
    )
    one.cancel()
    one.requeue()
    assert ended(one).state == "CANCELLED"


def test_who_saved_is_started_again_and_who_got_bad_input_is_not(task) -> None:
    saved, refused = task("sh", "-c", "exit 75", requeues=0), task("sh", "-c", "exit 2")
    assert saved.start([])
    assert (ended(saved).state, saved.entry.failures) == ("REQUEUED", 0)
    # Not side by side: both bear the same mark here, and the end of one kills what bears it.
    assert refused.start([])
    assert (ended(refused).state, refused.entry.restarts) == ("FAILED", 0)


CHECKPOINT = 'mkdir -p "$0/checkpoints/step-0000000$1"'


def test_who_saves_and_comes_no_further_is_warned_about_and_then_not_started_again(task, tmp_path) -> None:
    one = task("sh", "-c", f"{CHECKPOINT}; exit 75", str(tmp_path), "7", runs=(str(tmp_path),), requeues=0)
    for state, words in (
        ("REQUEUED", "saved and stopped"),  # it has come from none to step 7
        ("REQUEUED", "stopped at step 7, without progress in start 1 of 3"),
        ("REQUEUED", "stopped at step 7, without progress in start 2 of 3"),
        ("FAILED", "stopped at step 7, without progress in 3 starts in a row"),
    ):
        assert one.start([])
        assert (ended(one).state, one.entry.exit_code) == (state, 75 if state == "FAILED" else None)
        assert words in one.entry.reason
    assert one.log.read_text().count("without progress") == 3
    one.requeue()
    assert (one.entry.state, one.entry.idle) == ("REQUEUED", 0)


def test_who_is_stopped_by_its_time_limit_is_told_of_a_longer_one(task, tmp_path) -> None:
    saves = script(tmp_path, "trap 'exit 75' USR2; BEGUN; while :; do sleep 0.02; done")
    one = task(*saves, runs=(str(tmp_path),), minutes=0.02, pause_s=0)
    while one.entry.state != "FAILED":
        begun(one, tmp_path)
        ended(one)
        (tmp_path / "begun").unlink()
    assert one.entry.restarts == 2
    assert "without a checkpoint" in one.entry.reason and "use a longer --time" in one.entry.reason


def test_who_comes_a_step_further_now_and_then_or_is_preempted_goes_on(task, tmp_path) -> None:
    steps = "case $CINGULUM_RESTARTS in [2-9]) set 8;; esac; "
    one = task("sh", "-c", f"set 7; {steps}{CHECKPOINT}; exit 75", str(tmp_path), runs=(str(tmp_path),))
    idle = []
    for _ in range(5):
        assert one.start([])
        assert ended(one).state == "REQUEUED"
        idle.append(one.entry.idle)
    assert idle == [0, 1, 0, 1, 2]
    saves = script(tmp_path, "trap 'exit 75' USR2; BEGUN; while :; do sleep 0.02; done")
    two = task(*saves, runs=(str(tmp_path),))
    for _ in range(progress.STARTS + 1):
        begun(two, tmp_path)
        two.save("again")
        assert (ended(two).state, two.entry.idle) == ("REQUEUED", 0)
        (tmp_path / "begun").unlink()


def test_a_start_whose_run_folder_another_one_writes_is_no_failure_and_not_started_again(
    task, tmp_path
) -> None:
    fenced = task("sh", "-c", "exit 76", requeues=3)
    assert fenced.start([])
    assert (ended(fenced).state, fenced.entry.failures, fenced.entry.restarts) == ("FAILED", 0, 0)
    assert "another start" in fenced.entry.reason and not (tmp_path / "failures").exists()


def test_failures_are_counted_put_down_to_their_own_start_and_end_it(task, tmp_path) -> None:
    text = 'if [ "$CINGULUM_RESTARTS" = 0 ]; then echo "[rank 1 @ n3] error: no room"; fi; exit 1'
    one = task("sh", "-c", text, requeues=1)
    assert one.start([])
    assert (ended(one).state, one.entry.reason) == ("REQUEUED", "rank 1 @ n3: no room")
    assert one.start([])
    assert (ended(one).state, one.entry.restarts) == ("FAILED", 1)
    assert one.entry.reason == "ended with exit code 1 (failed 2 times)"
    lines = [line.split("\t")[1:] for line in (tmp_path / "failures").read_text().splitlines()]
    assert lines == [["1", "rank 1 @ n3", "no room"], ["1", "", "ended with exit code 1"]]


def test_a_start_on_a_host_that_falls_silent_is_ended(task, tmp_path) -> None:
    names = [str(tmp_path / name) for name in ("n1", "n2")]
    for name in names:
        Path(name).touch()
    probe = ("test", "-e", PROBED)
    one = task("sleep", "600", hosts=dict.fromkeys(names, 1), probe=probe, check_s=0.01)
    assert one.start(names)
    heard = time.monotonic() + 0.5
    wait(lambda: has_ended(one) or time.monotonic() > heard, "some answers")
    assert one.is_running
    Path(names[1]).unlink()
    assert (ended(one).state, one.entry.lost_hosts, one.entry.failures) == ("REQUEUED", (names[1],), 1)
    assert "does not answer" in one.entry.reason


def test_the_pause_between_starts_that_fail_soon_grows(task) -> None:
    one = task("false", requeues=9, pause_s=0.05)
    for least in (0.1, 0.2, 0.4):
        assert one.start([])
        ended(one)
        began = time.monotonic()
        wait(lambda: one.is_due, "the next start")
        assert time.monotonic() - began > least - 0.02


@pytest.mark.parametrize(("minutes", "grace_s", "after_s"), [(10, 60, 540), (1, 120, 30)])
def test_time_to_save_is_left_before_the_limit(task, minutes, grace_s, after_s) -> None:
    one = task(minutes=minutes, grace_s=grace_s)
    assert one.start([])
    assert one._end_at - one._began == pytest.approx(after_s)


def test_a_command_is_no_part_of_our_session(task) -> None:
    one = task()
    assert one.start([])
    assert os.getsid(one.entry.pid) == one.entry.pid


def test_who_was_told_to_save_and_could_not_did_not_fail(task) -> None:
    """A rank that still loads TensorFlow is ended by the signal."""
    one = task(requeues=0)
    assert one.start([])
    one.save("again")
    assert (ended(one).state, one.entry.failures) == ("REQUEUED", 0)


def test_a_failure_that_its_attendant_did_not_live_to_judge_is_counted_with_its_cause(task) -> None:
    """It was killed while it asked hosts that do not answer."""
    left = TaskEntry(0, state="RUNNING", exit_code=3, reason="rank 1 @ n2: the disk is full", restarts=1)
    one = task("true", entry=left)
    assert (one.entry.state, one.entry.failures) == ("REQUEUED", 1)
    assert one.entry.reason == "rank 1 @ n2: the disk is full"
    spent = TaskEntry(0, state="RUNNING", exit_code=3, reason="the disk is full", failures=9)
    assert task("true", entry=spent).entry.state == "FAILED"


@pytest.mark.parametrize(("number", "state"), [(errno.ESTALE, "REQUEUED"), (errno.ENOENT, "FAILED")])
def test_a_start_that_fails_for_a_moment_is_tried_again(task, monkeypatch, number, state) -> None:
    def refuse(*arguments, **options):
        raise OSError(number, os.strerror(number))

    one = task("true")
    monkeypatch.setattr(attended_task.subprocess, "Popen", refuse)
    assert not one.start([])
    assert one.entry.state == state and os.strerror(number) in one.entry.reason
