"""The store in a real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import postgresql
import pytest
import sqlalchemy as sql
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from postgresql import PASSWORD, url
from stand_in_cluster import StandInCluster

from jobs.home import new_token
from jobs.requests.submission import submit
from jobs.schedulers.base import TaskState
from jobs.sites import HERE
from jobs.spec import JobSpec
from jobs.store import submitter, sync, tables
from jobs.store.listing import JobQuery
from jobs.store.sharing import Viewer
from jobs.store.store import Store
from jobs.store.sync import refresh
from trainer.errors import CingulumError, StoreError

ARRAY = JobSpec("two jobs", "crossval", (("true",), ("a b", "'")), "/")


@pytest.fixture(scope="module")
def database() -> Iterator[postgresql.Database]:
    with postgresql.started() as made:
        yield made


@pytest.fixture
def server(database) -> Path:
    """The folder of its socket."""
    return database.folder


@pytest.fixture
def store(server, tmp_path, monkeypatch) -> Store:
    """A store whose tables nobody has made yet."""
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CINGULUM_STORE", url(server))
    empty(server)
    return Store()


def empty(server: Path) -> sql.Engine:
    """The database without any table."""
    engine = sql.create_engine(url(server), poolclass=sql.pool.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    return engine


def at_once(work, count: int) -> list:
    """What as many threads return that begin in the same moment."""
    begin, found = threading.Barrier(count), []

    def one(number: int) -> None:
        begin.wait(30)
        found.append(work(number))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_of_those_who_ask_at_once_by_one_key_one_is_first_and_all_get_its_tokens(store) -> None:
    for turn in range(5):
        told = at_once(lambda k, key=f"key-{turn}": Store().submission(key, "d", [f"{k}"]), 8)
        assert len(told) == 8 and len({tuple(tokens) for tokens in told}) == 1


def test_a_database_that_is_killed_after_the_launcher_took_a_job_has_it_once(
    database, store, tmp_path, monkeypatch
) -> None:
    cluster = StandInCluster(tmp_path / "cluster")
    start = cluster.start

    def starts_and_the_database_dies(*given):
        external = start(*given)
        database.kill()
        return external

    monkeypatch.setattr(cluster, "start", starts_and_the_database_dies)
    (token,) = store.submission("a-key", "d", [new_token()])
    try:
        with pytest.raises(StoreError, match="not"):
            submit(store, cluster, ARRAY, HERE, token=token, who="me")
    finally:
        database.start()
    assert store.submission("a-key", "d") == [token]
    sync.recover(store, {"slurm": cluster})
    job = store.of_token(token)
    assert (job.label, job.state, cluster.tokens()) == ("1", "PENDING", [token])
    assert [(one.action, one.who) for one in store.actions("1")] == [("submit", "me")]


def test_a_job_is_submitted_followed_and_found_in_its_history(store, tmp_path) -> None:
    cluster = StandInCluster(tmp_path / "cluster")
    job = submit(store, cluster, ARRAY, HERE)
    assert Store().get("new-1") == job
    cluster.answers["1"] = [TaskState(0, "RUNNING", hosts=("n1",), started=1.5), TaskState(1, "COMPLETED", 0)]
    assert len(refresh(store, {"slurm": cluster}).changes) == 2
    assert store.get("1").tasks == tuple(cluster.answers["1"])
    cluster.answers.clear()
    assert [change.state for change in refresh(store, {"slurm": cluster}, grace_s=0).changes] == ["LOST"]
    assert [change.state for change in store.changes("1_0")] == ["SUBMITTING", "PENDING", "RUNNING", "LOST"]
    assert store.list(states=["LOST"]) == [store.get("1")]


def test_an_unfinished_submission_is_recovered(store, tmp_path) -> None:
    cluster = StandInCluster(tmp_path / "cluster")
    for _ in range(2):
        job = store.add(new_token(), ARRAY, launcher="slurm", site="here", folder=tmp_path)
    cluster.file.write_text(f"{job.token}\n")
    sync.recover(store, {"slurm": cluster}, stale_s=0)
    assert [(job.label, job.state) for job in store.list()] == [("1", "PENDING"), ("new-1", "LOST")]


def test_submitters_at_once_make_the_tables_once_and_lose_and_double_nothing(server, store, tmp_path) -> None:
    empty(server)
    cluster = StandInCluster(tmp_path / "cluster")
    failed = []
    begin = threading.Barrier(6)

    def work() -> None:
        try:
            begin.wait(30)
            for _ in range(5):
                submit(Store(), cluster, ARRAY, HERE)
        except StoreError as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failed == []
    tokens = cluster.tokens()
    assert len(tokens) == 30
    found = {job.token: job.external for job in Store().list()}
    assert found == {token: str(number) for number, token in enumerate(tokens, 1)}


def test_of_twenty_submissions_at_once_for_one_run_folder_one_is_accepted(store, tmp_path) -> None:
    cluster = StandInCluster(tmp_path / "cluster")
    spec = JobSpec("mine", "train", (("true",),), "/", run="/study/runs/mine")
    outcomes: list[object] = []
    begin = threading.Barrier(20)

    def work() -> None:
        mine = Store()
        begin.wait(60)
        try:
            outcomes.append(submit(mine, cluster, spec, HERE))
        except CingulumError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Job"] + ["JobError"] * 19
    assert len(cluster.tokens()) == len(store.list()) == 1


def test_a_new_database_gets_the_tables_that_the_code_knows(server) -> None:
    engine = empty(server)
    Store(url(server))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []


def test_of_two_answers_to_one_question_the_second_is_left_out(store, tmp_path) -> None:
    """Both transactions are open at once; the row is locked, so that the second sees what the first wrote."""
    job = submit(store, StandInCluster(tmp_path / "cluster"), ARRAY, HERE)
    answers = [[TaskState(0, state)] for state in ("RUNNING", "CANCELLED", "FAILED", "NODE_FAIL", "TIMEOUT")]
    found: list[object] = []
    begin = threading.Barrier(len(answers))

    def work(states: list[TaskState]) -> None:
        begin.wait(30)
        found.extend(store.record([(job, states)]))

    threads = [threading.Thread(target=work, args=(states,)) for states in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 1
    assert store.get("1").revision == job.revision + 1


def test_who_reads_sees_one_state_of_the_store(server, store) -> None:
    with tables.reading(store._engine) as connection:
        count = sql.select(sql.func.count()).select_from(tables.jobs)
        before = connection.execute(count).scalar()
        store.add(new_token(), ARRAY, launcher="slurm", site="here", folder=server)
        assert connection.execute(count).scalar() == before == 0
    assert len(store.list()) == 1


def test_the_password_is_nowhere(server, store) -> None:
    assert PASSWORD not in str(store)
    with pytest.raises(StoreError) as error:
        Store(url(server, "hunter3"))
    assert "hunter3" not in str(error.value)
    assert "password authentication failed" in str(error.value)
    job = store.add(new_token(), ARRAY, launcher="slurm", site="here", folder=server)
    assert PASSWORD not in repr(job)


def test_pages_of_the_list_and_what_users_did_are_as_in_a_file(store, tmp_path) -> None:
    cluster = StandInCluster(tmp_path / "cluster")
    before = store.stamp(Viewer(submitter.user()))
    first, second = (submit(store, cluster, ARRAY, HERE) for _ in range(2))
    store.record([(second, [TaskState(1, "RUNNING", hosts=("N7",))])])
    mine = JobQuery(user=submitter.user(), limit=1)
    assert [store.page(mine), store.page(replace(mine, offset=1))] == [
        ([store.get(second.key)], 2),
        ([store.get(first.key)], 2),
    ]
    assert store.page(replace(mine, text="n7", sort="name", limit=9)) == ([store.get(second.key)], 1)
    assert store.page(replace(mine, text="%"))[1] == 0
    assert store.stamp(Viewer(submitter.user())) != before
    store.act(second, 1, "cancel", "me")
    assert [(one.task, one.who) for one in store.actions(second.label)] == [(1, "me")]
