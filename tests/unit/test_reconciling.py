"""The store brought up to date with launchers (a stand-in, which answers as it is told)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stand_in_cluster import StandInCluster

from jobs.requests.submission import submit
from jobs.schedulers.base import TaskState
from jobs.sites import HERE
from jobs.spec import JobSpec
from jobs.store import submitter
from jobs.store.sync import refresh

SPEC = JobSpec("a job", "train", (("true",),), "/")
ARRAY = JobSpec("two jobs", "crossval", (("true",), ("true",)), "/")


def test_what_a_launcher_tells_is_written_down_as_history(store, cluster) -> None:
    submit(store, cluster, SPEC, HERE)
    for state in (TaskState(0, "RUNNING", hosts=("n1",)), TaskState(0, "COMPLETED", 0, hosts=("n1",))):
        cluster.answers["1"] = [state]
        (change,) = refresh(store, {"slurm": cluster}).changes
        assert (change.job, change.state) == ("1", state.state)
        assert refresh(store, {"slurm": cluster}).changes == ()
    assert store.get("1").tasks == (TaskState(0, "COMPLETED", 0, hosts=("n1",)),)
    assert [c.state for c in store.changes("1")] == ["SUBMITTING", "PENDING", "RUNNING", "COMPLETED"]


def test_a_launcher_that_does_not_answer_changes_nothing_and_hinders_no_other(
    store, cluster, tmp_path
) -> None:
    engine = StandInCluster(tmp_path / "engine", name="docker")
    submit(store, cluster, SPEC, HERE)
    submit(store, engine, SPEC, HERE)
    cluster.down = True
    engine.answers["1"] = [TaskState(0, "RUNNING")]
    found = refresh(store, {"slurm": cluster, "docker": engine}, grace_s=0)
    assert "does not answer" in str(found.silent["slurm"])
    assert [change.job for change in found.changes] == ["docker-2"]
    assert store.get("1").state == "PENDING"


def test_a_job_that_is_known_no_more_is_lost_after_a_time_with_what_was_last_seen(store, cluster) -> None:
    submit(store, cluster, SPEC, HERE)
    cluster.answers["1"] = [TaskState(0, "RUNNING", hosts=("n1", "n2"))]
    refresh(store, {"slurm": cluster})
    cluster.answers.clear()
    assert refresh(store, {"slurm": cluster}, grace_s=60).changes == ()
    (change,) = refresh(store, {"slurm": cluster}, grace_s=0).changes
    assert change.state == "LOST"
    assert change.reason == "slurm no longer lists 1; it was last seen RUNNING on n1, n2"


def test_a_job_that_is_seen_again_begins_a_new_grace(store, cluster) -> None:
    job = submit(store, cluster, SPEC, HERE)
    refresh(store, {"slurm": cluster})
    first = store.missing([(job, [0])])[1, 0]
    cluster.answers["1"] = [TaskState(0, "PENDING")]
    refresh(store, {"slurm": cluster})
    cluster.answers.clear()
    refresh(store, {"slurm": cluster})
    assert store.missing([(job, [0])])[1, 0] > first


def test_a_job_thought_lost_comes_back(store, cluster) -> None:
    submit(store, cluster, SPEC, HERE)
    refresh(store, {"slurm": cluster}, grace_s=0)
    assert store.get("1").state == "LOST"
    cluster.answers["1"] = [TaskState(0, "RUNNING")]
    refresh(store, {"slurm": cluster})
    assert store.get("1").state == "RUNNING"


def test_tasks_that_are_forgotten_one_by_one_are_judged_one_by_one(store, cluster) -> None:
    submit(store, cluster, ARRAY, HERE)
    cluster.answers["1"] = [TaskState(0, "COMPLETED", 0), TaskState(1, "RUNNING")]
    refresh(store, {"slurm": cluster})
    cluster.answers["1"] = [TaskState(1, "RUNNING")]
    assert refresh(store, {"slurm": cluster}, grace_s=0).changes == ()
    cluster.answers.clear()
    assert [(c.task, c.state) for c in refresh(store, {"slurm": cluster}, grace_s=0).changes] == [(1, "LOST")]


def test_how_a_forgotten_task_ended_is_read_from_its_folder(store, cluster) -> None:
    job = submit(store, cluster, SPEC, HERE)
    task = {"task": 0, "state": "FAILED", "exit_code": 2, "reason": "bad", "hosts": ["n1"], "pid": None}
    (Path(job.folder) / "state.json").write_text(json.dumps({"tasks": [task]}))
    refresh(store, {"slurm": cluster}, grace_s=0)
    assert store.get("1").tasks == (TaskState(0, "FAILED", 2, "bad", ("n1",)),)


def test_an_end_that_the_folder_tells_is_taken_at_once_and_that_of_an_earlier_start_is_not(
    store, cluster
) -> None:
    job = submit(store, cluster, SPEC, HERE)
    cluster.answers["1"] = [TaskState(0, "RUNNING", restarts=1)]
    refresh(store, {"slurm": cluster})
    cluster.answers.clear()
    note = Path(job.folder) / "state.json"
    task = {"task": 0, "state": "FAILED", "exit_code": 3, "hosts": ["n1"]}
    note.write_text(json.dumps({"tasks": [{**task, "restarts": 0}]}))
    assert refresh(store, {"slurm": cluster}, grace_s=60).changes == ()
    note.write_text(json.dumps({"tasks": [{**task, "restarts": 1}]}))
    refresh(store, {"slurm": cluster}, grace_s=60)
    assert store.get("1").tasks == (TaskState(0, "FAILED", 3, hosts=("n1",), restarts=1),)


def test_each_task_of_an_array_may_have_a_file_of_its_own(store, cluster) -> None:
    job = submit(store, cluster, ARRAY, HERE)
    for number, state in ((0, "COMPLETED"), (1, "FAILED")):
        task = {"task": number, "state": state, "exit_code": number, "hosts": ["n1"]}
        (Path(job.folder) / f"state-{number}.json").write_text(json.dumps({"tasks": [task]}))
    refresh(store, {"slurm": cluster}, grace_s=0)
    assert [(task.state, task.exit_code) for task in store.get("1").tasks[:2]] == [
        ("COMPLETED", 0),
        ("FAILED", 1),
    ]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"tasks": 3}', '{"tasks": [{"task": 0, "state": "RUNNING"}]}']
)
def test_a_folder_that_tells_no_end_leaves_a_forgotten_task_lost(store, cluster, text) -> None:
    job = submit(store, cluster, SPEC, HERE)
    (Path(job.folder) / "state.json").write_text(text)
    refresh(store, {"slurm": cluster}, grace_s=0)
    assert store.get("1").state == "LOST"


def test_a_job_that_ended_a_short_time_ago_and_is_started_again_is_noticed(store, cluster) -> None:
    submit(store, cluster, SPEC, HERE)
    cluster.answers["1"] = [TaskState(0, "NODE_FAIL")]
    refresh(store, {"slurm": cluster})
    cluster.answers["1"] = [TaskState(0, "PENDING", restarts=1)]
    refresh(store, {"slurm": cluster})
    assert (store.get("1").state, store.get("1").tasks[0].restarts) == ("PENDING", 1)


def test_a_state_without_meaning_is_the_launchers_fault(store, cluster) -> None:
    submit(store, cluster, SPEC, HERE)
    cluster.answers["1"] = [TaskState(0, "DREAMING")]
    assert "DREAMING" in str(refresh(store, {"slurm": cluster}).silent["slurm"])
    assert store.get("1").state == "PENDING"


def test_an_id_that_is_given_again_is_that_of_the_newest_job(store, cluster) -> None:
    submit(store, cluster, SPEC, HERE)
    cluster.file.unlink()
    submit(store, cluster, SPEC, HERE)
    cluster.answers["1"] = [TaskState(0, "RUNNING")]
    refresh(store, {"slurm": cluster}, grace_s=0)
    assert [(job.number, job.external, job.state) for job in store.list()] == [
        (2, "1", "RUNNING"),
        (1, "1", "LOST"),
    ]


def test_another_clusters_job_of_the_same_id_is_not_asked_for(store, cluster, tmp_path) -> None:
    submit(store, cluster, SPEC, HERE)
    other = StandInCluster(tmp_path / "other", place="far")
    other.answers["1"] = [TaskState(0, "FAILED", 1)]
    assert refresh(store, {"slurm": other}, grace_s=0).changes == ()
    other.place = ""
    assert [change.state for change in refresh(store, {"slurm": other}).changes] == ["FAILED"]


def test_another_users_job_is_not_asked_for(store, cluster, monkeypatch) -> None:
    submit(store, cluster, SPEC, HERE)
    monkeypatch.setattr(submitter, "user", lambda: "somebody else")
    assert refresh(store, {"slurm": cluster}, grace_s=0).changes == ()
    assert store.get("1").state == "PENDING"


def test_another_users_job_of_which_a_launcher_is_silent_is_not_lost(store, cluster, monkeypatch) -> None:
    job = submit(store, cluster, SPEC, HERE)
    monkeypatch.setattr(submitter, "user", lambda: "somebody else")
    assert refresh(store, {"slurm": cluster}, [job], grace_s=0).changes == ()
    cluster.answers["1"] = [TaskState(0, "RUNNING")]
    assert len(refresh(store, {"slurm": cluster}, [job], grace_s=0).changes) == 1


def test_an_unfinished_submission_is_found_by_a_refresh(store, cluster, tmp_path, monkeypatch) -> None:
    (tmp_path / "cluster.mute").touch()
    monkeypatch.setattr(cluster, "find", lambda token: None)
    with pytest.raises(Exception, match="nothing"):
        submit(store, cluster, SPEC, HERE)
    monkeypatch.undo()
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    cluster.answers["1"] = [TaskState(0, "RUNNING")]
    refresh(store, {"slurm": cluster})
    assert store.get("1").state == "RUNNING"
