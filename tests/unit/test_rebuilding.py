"""A store that was removed or damaged is made again from the folders of the jobs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from stand_in_cluster import StandInCluster
from typer.testing import CliRunner
from wording import fails_with

from cingulum.cli.app import app
from jobs.requests.submission import submit
from jobs.schedulers import registry
from jobs.schedulers.base import TaskState
from jobs.sites import HERE
from jobs.spec import JobSpec, Resources
from jobs.store import notes, repair
from jobs.store.store import Store
from trainer.errors import DamagedStoreError, JobError

TRAIN = JobSpec(
    "mine; $(x)\n", "train", (("cingulum", "é '"),), "/study", Resources(nodes=2), run="/study/runs/mine"
)
ARRAY = JobSpec("folds", "crossval", (("true",), ("false",)), "/study", run="/study/runs/folds")


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> StandInCluster:
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CINGULUM_STORE", raising=False)
    cluster = StandInCluster(tmp_path / "cluster", place="c1")
    monkeypatch.setattr(registry, "named", lambda name: cluster)
    return cluster


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "home" / "jobs.db"


def remove(file: Path) -> None:
    for path in file.parent.glob("jobs.db*"):
        path.unlink()


def submitted(cluster: StandInCluster) -> list:
    """A job that has ended, an array of which one task runs, and a job that waits."""
    store = Store()
    submit(store, cluster, TRAIN, HERE)
    store.record([(store.get("1"), [TaskState(0, "COMPLETED", exit_code=0, hosts=("n1",), ended=9.0)])])
    text = {"tasks": [{"task": 0, "state": "COMPLETED", "exit_code": 0, "hosts": ["n1"], "ended": 9.0}]}
    Path(store.get("1").folder, "state.json").write_text(json.dumps(text))
    submit(store, cluster, ARRAY, HERE)
    submit(store, cluster, TRAIN, HERE)
    cluster.answers = {
        "2": [TaskState(0, "RUNNING", hosts=("n2",), started=5.0), TaskState(1, "PENDING")],
        "3": [TaskState(0, "PENDING")],
    }
    refresh_of = store.list()
    store.record([(job, cluster.answers.get(job.external, [])) for job in refresh_of])
    return store.list()


def comparable(jobs: list) -> list:
    return [dataclasses.replace(job, revision=0, changed=0.0) for job in jobs]


@pytest.mark.parametrize("how", ["removed", "damaged", "cut"])
def test_a_store_is_made_again_with_all_that_it_held(cluster, file, how) -> None:
    before = submitted(cluster)
    content = file.read_bytes()
    remove(file)
    if how == "damaged":
        file.write_bytes(b"not a database, but long enough to be taken for one\n" * 100)
    elif how == "cut":
        file.write_bytes(content[: len(content) // 2 // 4096 * 4096])
    found = repair.rebuild()
    assert comparable(found.store.list()) == comparable(before)
    assert (found.unreadable, found.silent) == ((), ())
    assert (found.aside is None) == (how == "removed")
    if found.aside is not None:
        assert found.aside.stat().st_size > 0


def cancelled_and_forgotten(cluster: StandInCluster, monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    """`cingulum cancel` what waits, which Slurm forgets at once, as it does with tasks of an array."""
    kept = [state for state in cluster.answers.get(job, []) if state.state not in ("PENDING", "REQUEUED")]
    monkeypatch.setattr(cluster, "cancel", lambda name, task=None: cluster.answers.update({name: kept}))
    ran = CliRunner().invoke(app, ["cancel", job])
    assert ran.exit_code == 0, ran.stderr


@pytest.mark.parametrize("end", ["FAILED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "COMPLETED"])
def test_what_the_store_knew_of_ends_is_known_when_it_is_made_again(cluster, file, monkeypatch, end) -> None:
    """Of an array in which one task ended and the other was cancelled, and of a job cancelled when held."""
    submitted(cluster)
    cluster.answers["2"] = [TaskState(0, end, hosts=("n2",), ended=8.0), TaskState(1, "PENDING")]
    cluster.answers["3"] = [TaskState(0, "PENDING", reason="JobHeldUser")]
    for job in ("2", "3"):
        cancelled_and_forgotten(cluster, monkeypatch, job)
    before = Store().list()
    assert [[task.state for task in job.tasks] for job in before] == [
        ["CANCELLED"],
        [end, "CANCELLED"],
        ["COMPLETED"],
    ]
    cluster.answers.clear()  # no accounting
    remove(file)
    assert comparable(repair.rebuild().store.list()) == comparable(before)
    remove(file)  # and as often as it is removed
    assert comparable(repair.rebuild().store.list()) == comparable(before)


def test_an_end_of_a_start_before_is_not_that_of_a_job_that_was_started_again(cluster, file) -> None:
    submitted(cluster)
    folder = Path(Store().get("3").folder)
    for state in (TaskState(0, "NODE_FAIL", ended=8.0), TaskState(0, "RUNNING", restarts=1, started=9.0)):
        cluster.answers["3"] = [state]
        assert CliRunner().invoke(app, ["jobs"]).exit_code == 0
        assert ("NODE_FAIL" in (folder / "ends.json").read_text()) == (state.state == "NODE_FAIL")
    cluster.answers.clear()
    remove(file)
    assert repair.rebuild().store.get("3").state == "LOST"


def test_what_the_script_left_of_a_later_start_goes_before_what_the_store_knew(cluster, file) -> None:
    submitted(cluster)
    cluster.answers["3"] = [TaskState(0, "CANCELLED", ended=8.0)]
    assert CliRunner().invoke(app, ["jobs"]).exit_code == 0
    cluster.answers.clear()
    left = {"task": 0, "exit_code": 0, "hosts": ["n1"], "ended": 9.0, "state": "COMPLETED"}
    for restarts, state in ((0, "CANCELLED"), (1, "COMPLETED")):
        text = json.dumps({"tasks": [{**left, "restarts": restarts}]})
        Path(Store().get("3").folder, "state.json").write_text(text)
        remove(file)
        assert repair.rebuild().store.get("3").state == state


def test_the_run_folders_of_jobs_that_wait_or_run_are_theirs_again(cluster, file) -> None:
    submitted(cluster)
    remove(file)
    store = repair.rebuild().store
    for spec, holder in ((TRAIN, "3"), (ARRAY, "2")):
        with pytest.raises(JobError, match=rf"(?i)job {holder}(_0,| )"):
            submit(store, cluster, spec, HERE)


def test_a_store_that_is_whole_only_gets_what_it_lacks(cluster) -> None:
    before = submitted(cluster)
    found = repair.rebuild()
    assert (found.taken_in, found.aside) == ((), None)
    assert found.store.list() == before


def test_the_next_job_gets_a_number_of_its_own(cluster, file) -> None:
    submitted(cluster)
    remove(file)
    store = repair.rebuild().store
    free = dataclasses.replace(TRAIN, run="/study/runs/other")
    assert submit(store, cluster, free, HERE).number == 4


def test_folders_of_versions_that_left_no_note_and_damaged_ones_are_told_apart(cluster, file) -> None:
    before = submitted(cluster)
    remove(file)
    oldest, _, newest = sorted((file.parent / "jobs").iterdir(), key=lambda f: f.stat().st_mtime_ns)
    (oldest / notes.NOTE).unlink()
    (newest / notes.NOTE).write_text('{"number": "three"}')
    (file.parent / "jobs" / "not-a-token").mkdir()
    found = repair.rebuild()
    by_token = {job.token: job for job in found.store.list()}
    assert set(by_token) == {job.token for job in before} - {newest.name}
    assert by_token[oldest.name].external == "1"  # its launcher knew it by the token
    (said,) = found.unreadable
    assert str(newest) in said


def test_a_store_that_was_removed_is_made_again_by_the_next_command(cluster, file) -> None:
    submitted(cluster)
    remove(file)
    ran = CliRunner().invoke(app, ["jobs", "--json"])
    assert ran.exit_code == 0
    assert "knew no job" in ran.stderr
    assert "3 jobs taken into" in ran.stderr
    assert sorted(job["id"] for job in json.loads(ran.stdout)["jobs"]) == ["1", "2", "3"]
    assert CliRunner().invoke(app, ["jobs", "--json"]).stderr == ""


def test_a_damaged_store_is_said_to_be_damaged_with_the_command_that_helps(cluster, file) -> None:
    submitted(cluster)
    remove(file)
    file.write_bytes(b"not a database, but long enough to be taken for one\n" * 100)
    with fails_with(DamagedStoreError) as error:
        Store()
    assert "cingulum jobs --rebuild" in str(error.value.cure)
    ran = CliRunner().invoke(app, ["jobs", "--all", "--rebuild", "--json"])
    assert ran.exit_code == 0
    assert "the damaged store is kept as" in ran.stderr
    assert len(json.loads(ran.stdout)["jobs"]) == 3


def test_who_never_submitted_is_told_nothing(cluster) -> None:
    ran = CliRunner().invoke(app, ["jobs"])
    assert (ran.exit_code, ran.stderr) == (0, "no jobs; `cingulum submit CONFIG` starts one\n")
