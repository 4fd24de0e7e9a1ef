"""Commands about jobs when something comes between: other clusters, silence, ids given again, odd output."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from pretended_slurm import submit, told

from cingulum.cli import app
from jobs.schedulers.base import TaskState
from jobs.store.store import Store
from jobs.store.sync import lose
from trainer.errors import LauncherError


@pytest.fixture
def array(slurm, capsys, monkeypatch) -> str:
    """Id of an array of three tasks."""
    monkeypatch.setattr("cingulum.cli.submission_check.crossval", lambda *words, **more: None)
    (job,) = submit(capsys, "--folds", "3")
    return job


def test_two_jobs_do_not_train_in_one_run_folder_at_once(slurm, capsys, monkeypatch):
    (job,) = submit(capsys)
    assert app.run(["submit", "mine.yaml", "train.epochs=9"]) == 2
    assert "Job 4711 (PENDING) uses the run folder" in capsys.readouterr().err
    submit(capsys, "--after", job)
    submit(capsys, "name=other")
    for started in list(slurm.jobs):
        slurm.becomes(started, "COMPLETED", exit_code=0, ended=5.0)
    with monkeypatch.context() as patched:
        patched.setattr(slurm, "start", interrupted)
        assert app.run(["submit", "mine.yaml"]) == 130
    assert app.run(["submit", "mine.yaml"]) == 2
    assert "Job new-4 (SUBMITTING)" in capsys.readouterr().err


def test_a_running_job_that_another_one_waits_for_is_requeued(slurm, capsys):
    (job,) = submit(capsys)
    submit(capsys, "--after", job)  # it has the run folder from now on
    slurm.becomes(job, "RUNNING", hosts=("n1",))
    assert app.run(["requeue", job]) == 0
    assert "4711 saves, and starts again" in capsys.readouterr().out
    assert slurm.told == [("requeue", "4711", None)]
    # One that has ended is not: the folder is the next one's.
    slurm.becomes(job, "CANCELLED", ended=5.0)
    assert app.run(["requeue", job]) == 2
    assert "4712" in capsys.readouterr().err


def test_tasks_that_slurm_forgets_when_they_are_cancelled_together_are_cancelled(
    slurm, array, capsys, monkeypatch
):
    def forget(external: str, task: int) -> None:
        slurm.jobs[external] = [state for state in slurm.jobs[external] if state.task != task]

    monkeypatch.setattr(slurm, "cancel", forget)
    assert app.run(["cancel", f"{array}_1", f"{array}_2"]) == 0
    assert capsys.readouterr().out == f"{array}_1 cancelled\n{array}_2 cancelled\n"
    assert [state.state for state in Store().get(array).tasks] == ["PENDING", "CANCELLED", "CANCELLED"]


def test_a_job_that_has_no_id_yet_is_found_out_before_another_is_cancelled(slurm, capsys, monkeypatch):
    (first,) = submit(capsys)
    monkeypatch.setattr(slurm, "start", interrupted)
    assert app.run(["submit", "mine.yaml", "name=other"]) == 130
    assert app.run(["cancel", first, "new-2"]) == 2
    assert "new-2 is SUBMITTING: slurm has not answered yet" in capsys.readouterr().err
    assert slurm.told == []


def test_where_slurm_refuses_to_cancel_one_of_several_it_is_told_which_were(slurm, capsys, monkeypatch):
    first, second = submit(capsys)[0], submit(capsys, "name=other")[0]
    cancel = slurm.cancel

    def but_one(external: str, task: int | None = None) -> None:
        if external == second:
            raise LauncherError("not yours")
        cancel(external, task)

    monkeypatch.setattr(slurm, "cancel", but_one)
    assert app.run(["cancel", first, second]) == 1
    assert "not yours\n  Cancelled before it: 4711." in capsys.readouterr().err


def test_a_job_is_cancelled_though_slurm_falls_silent_afterwards(slurm, capsys, monkeypatch):
    (job,) = submit(capsys)
    monkeypatch.setattr(slurm, "cancel", lambda external, task: setattr(slurm, "refuses", "states"))
    assert app.run(["cancel", job]) == 0
    assert capsys.readouterr().out == "4711: the launcher was asked to end it (PENDING)\n"


@pytest.mark.parametrize("words", [["wait"], ["logs", "--follow"], ["cancel"], ["requeue"]])
def test_a_job_of_another_cluster_is_neither_touched_nor_waited_for(slurm, capsys, words):
    slurm.place = "far"
    (job,) = submit(capsys)
    slurm.place = "near"
    assert app.run([*words, job]) == 2
    assert "Job 4711 is on far; this is near." in capsys.readouterr().err
    assert slurm.told == []


def test_the_list_says_that_jobs_of_another_cluster_may_be_old(slurm, capsys):
    slurm.place = "far"
    submit(capsys)
    slurm.place = "near"
    assert app.run(["jobs"]) == 0
    assert "jobs of slurm on far can be asked for only there" in capsys.readouterr().err


def test_an_id_that_slurm_gave_again_leaves_the_older_job_its_first_name(slurm, capsys):
    submit(capsys)
    slurm.becomes("4711", "FAILED", exit_code=3, ended=5.0)
    told(capsys, "jobs")
    slurm.started.clear()
    submit(capsys, "name=younger")
    slurm.becomes("4711", "RUNNING")
    assert told(capsys, "show", "4711")["name"] == "younger"  # type: ignore[index]
    older = told(capsys, "show", "new-1")
    assert (older["name"], older["state"]) == ("mine", "FAILED")  # type: ignore[index]
    assert [change["state"] for change in older["changes"]][-1] == "FAILED"  # type: ignore[index]
    assert app.run(["wait", "new-1"]) == 3


def test_a_silence_is_told_once_while_one_waits(slurm, capsys, monkeypatch):
    (job,) = submit(capsys)
    slurm.refuses = "states"
    looks = []

    def later(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            slurm.refuses = None
            slurm.becomes(job, "COMPLETED", exit_code=0, ended=5.0)

    monkeypatch.setattr(time, "sleep", later)
    assert app.run(["wait", job]) == 0
    assert len(looks) == 3 and capsys.readouterr().err.count("did not answer") == 1


def test_one_who_follows_a_job_that_waits_is_told_so(slurm, capsys, monkeypatch):
    (job,) = submit(capsys)
    slurm.becomes(job, "PENDING", reason="Priority")

    def runs(seconds: float) -> None:
        (Path(Store().get(job).folder) / "out-0.log").write_text("first\nlast\n")
        slurm.becomes(job, "COMPLETED", exit_code=0, ended=5.0)
        monkeypatch.setattr(sys.modules["cingulum.cli.job_output"], "ASK_S", 0.0)

    monkeypatch.setattr(time, "sleep", runs)
    assert app.run(["logs", job, "--follow"]) == 0
    said = capsys.readouterr()
    assert said.err == "4711 PENDING: (Priority); no output yet\n" and said.out == "first\nlast\n"


def test_lines_that_come_just_before_the_end_are_followed_too(slurm, capsys, monkeypatch):
    (job,) = submit(capsys)
    log = Path(Store().get(job).folder) / "out-0.log"
    log.write_text("first\n")
    slurm.becomes(job, "RUNNING")
    states, asked = slurm.states, []

    def ends(externals: list[str]) -> object:
        asked.append(externals)
        if len(asked) == 2:  # the first lines are printed by now
            log.write_text("first\nlast\n")
            slurm.becomes(job, "COMPLETED", exit_code=0, ended=5.0)
        return states(externals)

    monkeypatch.setattr(slurm, "states", ends)
    assert app.run(["logs", job, "--follow"]) == 0
    assert capsys.readouterr().out == "first\nlast\n"


def test_a_task_is_named_once(slurm, array, capsys):
    assert app.run(["logs", f"{array}_1", "--task", "2"]) == 2
    assert "4711_1 is a task, and --task 2 another" in capsys.readouterr().err
    assert list(told(capsys, "logs", array, "--task", "2")) == [f"{array}_2"]  # type: ignore[call-overload]


def test_a_list_that_is_watched_is_written_to_a_file_at_every_look(slurm, capsys, monkeypatch):
    (job,) = submit(capsys)
    looks = []

    def twice(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", twice)
    assert app.run(["jobs", "--watch"]) == 130
    assert capsys.readouterr().out.count(f"{job}  mine") == 2


def test_a_job_that_never_started_says_why_instead_of_its_output(slurm, capsys, monkeypatch):
    monkeypatch.setattr(slurm, "start", interrupted)
    assert app.run(["submit", "mine.yaml"]) == 130
    store = Store()
    lose(store, store.get("new-1"), "was not started: the queue is full")
    capsys.readouterr()
    assert app.run(["logs", "new-1"]) == 2
    assert "Job new-1 is LOST: was not started: the queue is full" in capsys.readouterr().err


def test_failed_starts_and_the_end_of_the_output_are_shown_in_words(slurm, capsys):
    (job,) = submit(capsys)
    folder = Path(Store().get(job).folder)
    (folder / "failures").write_text("10:00\t137\trank 2 @ n3\twas killed\n11:00\t-\tn2\tdown\nhalf")
    (folder / "out-0.log").write_bytes(b"x" * 200_000 + b"\n\x1b[2Jloss\t0.5\n")
    assert app.run(["show", job]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "  failed start: 10:00, exit code 137, rank 2 @ n3: was killed" in shown
    assert "  failed start: 11:00, n2: down" in shown and "  failed start: half" in shown
    assert shown[-1] == "?[2Jloss        0.5" and len(shown[-2]) < 1 << 16


def test_a_requeue_that_is_refused_leaves_the_failed_starts_on_record(slurm, capsys, monkeypatch):
    (job,) = submit(capsys)
    slurm.becomes(job, "FAILED", exit_code=1, ended=5.0)
    failures = Path(Store().get(job).folder) / "failures"
    failures.write_text("then\t1\tn2\twhy\n")

    def refuse(external: str, task: int | None = None) -> None:
        raise LauncherError("Invalid job id specified")

    monkeypatch.setattr(slurm, "requeue", refuse)
    assert app.run(["requeue", job]) == 1
    assert failures.exists() and Store().get(job).state == "FAILED"


def test_the_failed_starts_of_tasks_that_completed_stay_on_record(slurm, array, capsys):
    folder = Path(Store().get(array).folder)
    slurm.jobs[array] = [
        TaskState(0, "COMPLETED", 0),
        TaskState(1, "FAILED", 1),
        TaskState(2, "COMPLETED", 0),
    ]
    for task in (0, 1):
        (folder / f"failures-{task}").touch()
    assert app.run(["requeue", array]) == 0
    assert [(folder / f"failures-{task}").exists() for task in (0, 1)] == [True, False]


def interrupted(*words: object) -> str:
    raise KeyboardInterrupt
