"""The store's tables: made at the first use, and refused where another version's format is found."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
import sqlalchemy as sql
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from wording import fails_with

from jobs.store import tables
from jobs.store.store import Store
from trainer.errors import StoreError


def change(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()


def dump(path: Path) -> list[str]:
    with sqlite3.connect(path) as database:
        lines = list(database.iterdump())
    database.close()
    return lines


def test_a_new_store_has_the_tables_that_the_code_knows(tmp_path) -> None:
    Store(tmp_path / "jobs.db")
    engine = sql.create_engine(f"sqlite:///{tmp_path / 'jobs.db'}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    engine.dispose()


@pytest.mark.parametrize("revision", ["0003", "0099"])
def test_a_store_of_another_format_is_left_alone(tmp_path, revision) -> None:
    path = tmp_path / "jobs.db"
    Store(path)
    change(path, f"UPDATE alembic_version SET version_num = '{revision}'")  # noqa: S608
    before = dump(path)
    with fails_with(StoreError):
        Store(path)
    assert dump(path) == before


def test_tables_that_cannot_be_made_leave_the_file_as_it_was(tmp_path) -> None:
    path = tmp_path / "jobs.db"
    change(path, "CREATE TABLE run_folders (other INTEGER)")
    before = dump(path)
    with fails_with(StoreError):
        Store(path)
    assert dump(path) == before


def test_many_that_open_a_new_store_at_once_make_its_tables_once(tmp_path) -> None:
    failed: list[BaseException] = []

    def opened() -> None:
        try:
            Store(tmp_path / "jobs.db").list()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=opened) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_the_newest_file_is_the_format_that_the_code_names() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(tables.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [tables.REVISION]
