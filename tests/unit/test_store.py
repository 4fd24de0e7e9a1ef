"""The store of jobs: what goes in comes out, also after another process or user."""

from __future__ import annotations

import dataclasses
import sqlite3
import stat
import sys
import threading
import time

import pytest
import sqlalchemy as sql
from wording import fails_with

from jobs.home import new_token
from jobs.schedulers.base import TaskState
from jobs.spec import JobSpec, Resources
from jobs.store import address, rows, tables
from jobs.store.keys import TakenError
from jobs.store.store import Store
from trainer.errors import JobError, StoreError

ARRAY = JobSpec(
    name="näme; $(x)\n",
    kind="crossval",
    tasks=(("cingulum", "train", "a b"), ("cingulum", "train", "'")),
    folder="/work",
    resources=Resources(nodes=2, minutes=5),
    environment={"OMP_NUM_THREADS": "1"},
)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "jobs.db")


def added(store: Store, spec: JobSpec = ARRAY, launcher: str = "slurm", **more):
    return store.add(new_token(), spec, launcher=launcher, site="here", folder="/f", **more)


def test_a_job_comes_out_as_it_went_in(store) -> None:
    token = new_token()
    job = store.add(token, ARRAY, launcher="slurm", site="big", folder="/f", place="c1")
    assert (job.token, job.spec, job.launcher, job.site, job.place) == (token, ARRAY, "slurm", "big", "c1")
    assert (job.label, job.state, job.external, job.active) == ("new-1", "SUBMITTING", None, True)
    assert abs(job.submitted - time.time()) < 60
    assert store.get("new-1") == job == store.list()[0]


def test_the_launchers_answer_changes_the_label_and_the_old_one_still_names_the_job(store) -> None:
    job = store.adopt(added(store), "4711")
    assert (job.label, job.state) == ("4711", "PENDING")
    assert store.get("4711_1") == store.get("new-1") == job
    assert store.adopt(added(store, launcher="mpirun"), "/folder").label == "mpirun-2"


def test_an_answer_may_come_twice_but_two_answers_are_an_error(store) -> None:
    job = added(store)
    assert store.adopt(job, "4711") == store.adopt(job, "4711")
    with fails_with(StoreError):
        store.adopt(job, "4712")


def test_an_id_that_slurm_gives_again_means_the_newest_job_and_the_key_the_very_job(store) -> None:
    older = store.adopt(added(store), "1")
    newer = store.adopt(added(store), "1")
    assert store.get("1").number == newer.number
    assert store.get(older.key) == older


def test_an_unknown_id_says_where_it_was_looked_for(store, tmp_path) -> None:
    with pytest.raises(JobError, match=f"'4711' in {tmp_path / 'jobs.db'}"):
        store.get("4711")


def test_changes_are_history_and_each_is_told_once(store) -> None:
    job = store.adopt(added(store), "4711")
    running = TaskState(1, "RUNNING", hosts=("n1", "n2"), started=5.0)
    changes = store.record([(job, [running])])
    assert [(change.job, change.task, change.state) for change in changes] == [("4711", 1, "RUNNING")]
    job = store.get("4711")
    assert (job.state, job.tasks[1], job.tasks[0].state) == ("RUNNING", running, "PENDING")
    assert store.record([(job, [running])]) == []
    told = [(change.task, change.state) for change in store.changes("4711")]
    assert told == [(0, "SUBMITTING"), (1, "SUBMITTING"), (0, "PENDING"), (1, "PENDING"), (1, "RUNNING")]
    assert [change.state for change in store.changes("4711_1")] == ["SUBMITTING", "PENDING", "RUNNING"]


def test_a_reason_of_any_bytes_is_kept_as_far_as_it_is_text(store) -> None:
    job = store.adopt(added(store), "4711")
    store.record([(job, [TaskState(0, "FAILED", 1, reason="r\0ank\udcff \u00e4")])])
    assert store.get("4711").tasks[0].reason == "rank? \u00e4"


def test_a_row_that_cannot_be_read_is_named(store, tmp_path) -> None:
    added(store)
    with sqlite3.connect(tmp_path / "jobs.db") as database:
        database.execute("UPDATE jobs SET spec = '{}'")
    database.close()
    with fails_with(StoreError):
        store.list()


def test_an_answer_older_than_what_the_store_knows_is_left_out(store) -> None:
    asked_first = store.adopt(added(store), "4711")
    asked_later = store.get("4711")
    store.record([(asked_later, [TaskState(0, "RUNNING"), TaskState(1, "COMPLETED", 0)])])
    assert store.record([(asked_first, [TaskState(0, "PREEMPTED")])]) == []
    assert store.get("4711").tasks[0].state == "RUNNING"


def test_the_exit_code_is_that_of_the_first_task_that_failed(store) -> None:
    job = store.adopt(added(store), "4711")
    store.record([(job, [TaskState(0, "COMPLETED", 0)])])
    assert store.get("4711").exit_code is None
    store.record([(store.get("4711"), [TaskState(1, "FAILED", 2, reason="bad input")])])
    job = store.get("4711")
    assert (job.exit_code, job.state, job.reason) == (2, "FAILED", "bad input")


def test_a_requeue_brings_back_what_has_ended_and_is_history(store) -> None:
    job = store.adopt(added(store), "4711")
    store.record([(job, [TaskState(0, "COMPLETED", 0), TaskState(1, "FAILED", 1)])])
    store.requeue(store.get("4711"), 1)
    assert [task.state for task in store.get("4711").tasks] == ["COMPLETED", "REQUEUED"]
    assert store.get("4711").tasks[1].restarts == 1
    assert [change.state for change in store.changes("4711_1")][-2:] == ["FAILED", "REQUEUED"]


def test_jobs_are_listed_the_newest_first_by_all_that_is_asked_for(store) -> None:
    one = store.adopt(added(store), "1")
    added(store, launcher="docker", place="n1")
    three = added(store, dataclasses.replace(ARRAY, name="other"))
    assert [job.number for job in store.list()] == [3, 2, 1]
    assert store.list(states=["PENDING"]) == [one]
    assert store.list(states=[]) == []
    assert store.list(user="nobody at all") == []
    store.record([(one, [TaskState(0, "RUNNING")])])
    assert [job.number for job in store.list(changed_since=three.changed)] == [3, 1]


def test_missing_tasks_are_remembered_until_they_are_seen_again(store) -> None:
    job = store.adopt(added(store), "4711")
    first = store.missing([(job, [1])])
    assert set(first) == {(1, 1)}
    assert store.missing([(job, [0, 1])])[1, 1] == first[1, 1]
    assert store.missing([(job, [])]) == {}
    assert store.missing([(job, [1])])[1, 1] > first[1, 1]


def test_threads_lose_and_double_nothing(store) -> None:
    failed = []

    def work(name: str) -> None:
        try:
            for _ in range(5):
                job = store.adopt(added(store, launcher="mpirun"), name)
                store.record([(job, [TaskState(0, "RUNNING"), TaskState(1, "COMPLETED", 0)])])
        except StoreError as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(f"/{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    jobs = store.list()
    assert sorted(job.number for job in jobs) == list(range(1, 21))
    assert {job.external for job in jobs} == {f"/{number}" for number in range(4)}
    assert {job.state for job in jobs} == {"RUNNING"}


def test_the_file_and_its_log_are_private(tmp_path) -> None:
    (tmp_path / "jobs.db").touch(mode=0o644)
    store = Store(tmp_path / "jobs.db")
    with tables.reading(store._engine):
        added(store)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert set(modes) >= {"jobs.db", "jobs.db-wal", "jobs.db-shm"}
    assert set(modes.values()) == {0o600}


def test_the_write_ahead_log_is_used_only_on_a_file_system_of_this_host(tmp_path, monkeypatch) -> None:
    def journal(name: str) -> str:
        with tables.reading(Store(tmp_path / name)._engine) as connection:
            return str(connection.exec_driver_sql("PRAGMA journal_mode").scalar())

    assert journal("local.db") == "wal"
    monkeypatch.setattr(tables, "_file_system", lambda path: "nfs4")
    assert journal("remote.db") == "delete"
    assert journal("local.db") == "delete"


def test_what_is_written_is_on_the_disk_and_no_task_is_without_its_job(store) -> None:
    with tables.writing(store._engine) as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL: also after a power cut
    with fails_with(StoreError), tables.writing(store._engine) as connection:
        connection.execute(tables.tasks.insert().values(rows.task_row(99, TaskState(0, "PENDING"))))


def test_where_the_store_is_comes_from_the_environment(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CINGULUM_STORE", raising=False)
    assert str(Store()) == str(tmp_path / "home/jobs.db")
    monkeypatch.setenv("CINGULUM_STORE", f"sqlite:///{tmp_path}/other.db")
    assert str(Store()) == str(tmp_path / "other.db")
    monkeypatch.setenv("CINGULUM_STORE", str(tmp_path / "third.db"))
    assert str(Store()) == str(tmp_path / "third.db")


@pytest.mark.parametrize("url", ["nothing://u:hunter2@h/d", "://hunter2", "sqlite://", "sqlite:///:memory:"])
def test_a_url_that_is_none_is_bad_input_and_no_password_is_told(url) -> None:
    with pytest.raises(JobError) as error:
        Store(url)
    assert "hunter2" not in str(error.value)


def test_a_server_that_does_not_answer_is_told_without_the_password() -> None:
    with pytest.raises(StoreError) as error:
        Store("postgresql+psycopg://me:hunter2@127.0.0.1:1/jobs?connect_timeout=2")
    assert "hunter2" not in str(error.value)
    assert "127.0.0.1:1/jobs" in str(error.value)


def test_a_password_after_the_question_mark_is_hidden_as_well() -> None:
    """In our words and in the driver's, of the address and of the store that could be opened."""
    with pytest.raises(StoreError) as error:
        Store("postgresql://me@127.0.0.1:1/jobs?password=hunter%2B2&sslpassword=hunter3&connect_timeout=2")
    said = str(error.value)
    assert "hunter" not in said and "password=***&sslpassword=***" in said and "connect_timeout=2" in said
    url = address.parse("postgresql://me:hunter1@h/d?password=hunter%2B2")
    told = 'connection to "hunter1" with hunter+2 or hunter%2B2 failed'
    assert "hunter" not in address.without_secrets(told, url)


@pytest.mark.parametrize(
    "where",
    [
        *("postgres//me:hunter2@h/d", "postgresql:/me:hunter2@h/d", "postgresql+psycopg//h/d"),
        *("me:hunter2@h/d", "sqlite//jobs.db", "postgresql:h"),
    ],
)
def test_an_address_without_its_separator_is_no_name_of_a_file(where, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with fails_with(JobError) as error:
        Store(where)
    assert "hunter2" not in str(error.value) and error.value.cure and not list(tmp_path.iterdir())


def test_a_path_stays_a_path(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for where in ("jobs.db", "./a:b.db", "postgres/jobs.db", str(tmp_path / "x@y:z.db")):
        assert str(Store(where)) == str((tmp_path / where).absolute())


def test_a_driver_that_is_missing_is_named_with_what_installs_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with fails_with(StoreError) as error:
        Store("postgresql://127.0.0.1:1/jobs")
    assert ".[postgresql]" in str(error.value.cure)
    monkeypatch.setitem(sys.modules, "MySQLdb", None)
    with fails_with(StoreError) as error:
        Store("mysql://127.0.0.1:1/jobs")
    assert error.value.cure is None


def test_a_file_that_is_no_database_is_an_error_that_names_it(tmp_path) -> None:
    (tmp_path / "jobs.db").write_text("not a database, but long enough to be taken for one\n" * 50)
    with fails_with(StoreError):
        Store(tmp_path / "jobs.db")


def test_a_store_that_is_kept_locked_is_an_error_in_time(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tables, "WAIT_S", 0.2)
    store = Store(tmp_path / "jobs.db")
    other = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with fails_with(StoreError):
        added(store)
    other.close()
    assert added(store).number == 1


def test_who_reads_sees_one_state_of_the_store(store) -> None:
    with tables.reading(store._engine) as connection:
        count = sql.select(sql.func.count()).select_from(tables.jobs)
        before = connection.execute(count).scalar()
        added(store)
        assert connection.execute(count).scalar() == before == 0
    assert len(store.list()) == 1


def test_what_fails_midway_leaves_nothing(store) -> None:
    token = new_token()
    store.add(token, ARRAY, launcher="slurm", site="here", folder="/f")
    with fails_with(TakenError):
        store.add(token, ARRAY, launcher="slurm", site="here", folder="/f")
    assert len(store.list()) == 1
    assert len(store.changes("new-1")) == 2
