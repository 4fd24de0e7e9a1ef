"""The store's tables: made at the first use, and brought from the formats of earlier versions to this one."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
from pathlib import Path

import pytest
import sqlalchemy as sql
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from wording import fails_with

from jobs import migrating, tables
from jobs.store import Store
from trainer.errors import StoreError

OLD = Path(__file__).parent / "stores_of_old"


@pytest.fixture
def old(tmp_path) -> Path:
    """A store that the last version without alembic wrote: a job runs, two wait, one has ended."""
    with sqlite3.connect(tmp_path / "jobs.db") as database:
        database.executescript((OLD / "format-1.sql").read_text())
    database.close()
    return tmp_path / "jobs.db"


def folders(path: Path) -> dict[str, int]:
    with sqlite3.connect(path) as database:
        found = dict(database.execute("SELECT folder, job FROM run_folders"))
    database.close()
    return found


def differences(path: Path) -> list:
    engine = sql.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        found = compare_metadata(context, tables.metadata)
    engine.dispose()
    return found


def test_a_new_store_has_the_tables_that_the_code_knows(tmp_path) -> None:
    Store(tmp_path / "jobs.db")
    assert differences(tmp_path / "jobs.db") == []


def test_a_store_of_old_gets_the_same_tables_and_keeps_its_jobs(old) -> None:
    store = Store(old)
    assert differences(old) == []
    assert [(job.label, job.state) for job in store.list()] == [
        ("4714", "PENDING"),
        ("4713", "PENDING"),
        ("4712", "COMPLETED"),
        ("4711", "RUNNING"),
    ]
    assert [change.state for change in store.changes("4711")] == ["SUBMITTING", "PENDING", "RUNNING"]


def test_jobs_of_old_that_wait_or_run_have_their_run_folders(old) -> None:
    Store(old)
    assert folders(old) == {"/study/runs/running": 1, "/other/runs/folds-of-mine": 3}


def test_an_older_version_refuses_what_it_does_not_know(old) -> None:
    Store(old)
    with sqlite3.connect(old) as database:  # all that versions before alembic look at
        assert database.execute("SELECT version FROM schema_version").fetchall() == [(5,)]
    database.close()


def test_a_migration_that_fails_leaves_the_store_as_it_was(old, monkeypatch) -> None:
    before = list(sqlite3.connect(old).iterdump())
    with sqlite3.connect(old) as database:
        database.execute("CREATE TABLE run_folders (other INTEGER)")
    database.close()
    with fails_with(StoreError):
        Store(old)
    with sqlite3.connect(old) as database:
        database.execute("DROP TABLE run_folders")
    database.close()
    assert list(sqlite3.connect(old).iterdump()) == before


def test_a_store_of_old_is_kept_as_it_was_for_its_user_alone(old, monkeypatch) -> None:
    before = list(sqlite3.connect(old).iterdump())
    Store(old)
    copy = old.with_name("jobs.db.format-1")
    assert sorted(path.name for path in old.parent.glob("*db*format*")) == [copy.name]
    assert list(sqlite3.connect(copy).iterdump()) == before
    assert copy.stat().st_mode & 0o777 == 0o600


def test_without_room_for_the_copy_nothing_is_migrated(old, monkeypatch) -> None:
    before = list(sqlite3.connect(old).iterdump())

    def full(*given: object, **named: object) -> tuple[int, str]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    with fails_with(StoreError):
        Store(old)
    assert list(sqlite3.connect(old).iterdump()) == before


def test_many_that_open_a_store_of_old_at_once_migrate_it_once(old) -> None:
    failed: list[BaseException] = []

    def opened() -> None:
        try:
            Store(old).list()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=opened) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(folders(old)) == 2


def test_the_newest_file_is_the_format_that_the_code_names() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrating.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [migrating.REVISION]
