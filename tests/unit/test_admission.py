"""One job at a time trains in a run folder: decided by the store, also for those that come at once."""

from __future__ import annotations

import dataclasses
import threading

import pytest
from stand_in_cluster import StandInCluster
from wording import fails_with

from jobs.home import new_token
from jobs.job import Job
from jobs.requests.submission import submit
from jobs.schedulers.base import TaskState
from jobs.sites import HERE
from jobs.spec import JobSpec
from jobs.store.store import Store
from trainer.errors import JobError

RUN = JobSpec("mine", "train", (("cingulum", "train", "run.yaml"),), "/study", run="/study/runs/mine")


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "jobs.db")


def added(store: Store, spec: JobSpec = RUN, launcher: str = "slurm", place: str = "") -> Job:
    return store.add(new_token(), spec, launcher=launcher, site="here", folder="/f", place=place)


def ended(store: Store, job: Job, state: str = "FAILED") -> None:
    store.record([(store.get(job.key), [TaskState(0, state, exit_code=1, ended=9.0)])])


def test_a_second_job_for_a_run_folder_is_refused_by_name_whatever_starts_it(store) -> None:
    store.adopt(added(store), "4711")
    for launcher, place in (("slurm", ""), ("mpirun", "another host")):
        with fails_with(JobError) as e:
            added(store, launcher=launcher, place=place)
        assert "--after 4711" in str(e.value.cure)
    assert len(store.list()) == 1


def test_who_writes_the_run_already_is_named_with_its_start_and_hosts(store) -> None:
    job = store.adopt(added(store), "47")
    store.record([(job, [TaskState(0, "RUNNING", hosts=("n4", "n5"), restarts=1)])])
    with pytest.raises(JobError) as error:
        added(store)
    writer = "Another process writes this run: job 47, start 2, n4,n5 (/study/runs/mine)."
    assert error.value.message == writer and "--after 47" in str(error.value.cure)


def test_of_an_array_the_tasks_that_write_are_named(store) -> None:
    array = dataclasses.replace(RUN, kind="crossval", tasks=RUN.tasks * 6)
    job = store.adopt(added(store, array), "48")
    states = [TaskState(task, "RUNNING", hosts=(f"n{task}",)) for task in range(1, 6)]
    store.record([(job, [TaskState(0, "COMPLETED", 0), *states])])
    with pytest.raises(JobError) as error:
        added(store, array)
    said = "job 48_1, start 1, n1; job 48_2, start 1, n2; job 48_3, start 1, n3; and 2 more (/study"
    assert said in error.value.message


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "LOST"])
def test_the_run_folder_is_free_when_its_job_has_ended(store, state) -> None:
    ended(store, added(store), state)
    assert added(store).number == 2


def test_jobs_that_do_not_train_there_need_not_wait(store) -> None:
    added(store)
    for spec in (
        dataclasses.replace(RUN, kind="evaluate"),
        dataclasses.replace(RUN, run="/study/runs/other"),
        dataclasses.replace(RUN, run=None),
    ):
        added(store, spec)
    assert len(store.list()) == 4


def test_one_that_starts_after_it_is_let_in_and_then_has_the_folder(store) -> None:
    first = store.adopt(added(store), "1")
    second = store.adopt(added(store, dataclasses.replace(RUN, after=("1",))), "2")
    with fails_with(JobError):
        added(store, dataclasses.replace(RUN, after=("1",)))
    ended(store, first)  # its end takes nothing from the second
    with fails_with(JobError):
        added(store)
    ended(store, second)
    added(store)


def test_a_job_that_had_ended_and_starts_again_has_its_folder_again(store) -> None:
    job = added(store)
    ended(store, job)
    store.requeue(store.get(job.key))
    with fails_with(JobError):
        added(store)


def test_a_job_is_not_started_again_while_another_has_its_folder(store) -> None:
    old = added(store)
    ended(store, old)
    new = added(store)
    with pytest.raises(JobError, match=new.label):
        store.free(old.spec, besides=old)
    store.free(new.spec, besides=new)
    # A scheduler may do it all the same: that is noted, and the folder stays with who has it.
    store.requeue(store.get(old.key))
    ended(store, new)
    assert store.get(old.key).state == "REQUEUED"


def test_of_twenty_submissions_at_once_one_is_accepted(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    cluster = StandInCluster(tmp_path / "cluster")
    outcomes: list[Job | Exception] = []
    together = threading.Barrier(20)

    def one() -> None:
        store = Store(tmp_path / "jobs.db")
        together.wait()
        try:
            outcomes.append(submit(store, cluster, RUN, HERE))
        except Exception as error:
            outcomes.append(error)

    threads = [threading.Thread(target=one) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Job)]
    assert len(accepted) == 1
    assert cluster.tokens() == [accepted[0].token]
    assert {type(outcome) for outcome in outcomes} == {Job, JobError}
