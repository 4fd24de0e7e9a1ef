"""kill -9 of PostgreSQL in the middle of a command about a job; programs stand in for Slurm's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import killed_commands
import postgresql
import pytest
import sqlalchemy as sql
from killed_commands import ACTIONS, World
from stand_in_slurm import StandInSlurm

from trainer.errors import StoreError

# Of an action, at how many of its questions to the database to kill it.
SOME = {"cancel": 2, "requeue what failed": 3, "share": 1}


@pytest.fixture(scope="module")
def database() -> Iterator[postgresql.Database]:
    with postgresql.started() as made:
        yield made


@pytest.fixture
def world(database, tmp_path, monkeypatch) -> World:
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CINGULUM_STORE", postgresql.url(database.folder))
    slurm = StandInSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{slurm.bin}:{os.environ['PATH']}")
    made = World(slurm)
    made.jobs = len(made.store.list())
    return made


@contextmanager
def before_each(what) -> Iterator[None]:
    """Call this before each question to a database, and before each transaction is written."""
    for name in ("before_cursor_execute", "commit"):
        sql.event.listen(sql.Engine, name, what)
    try:
        yield
    finally:
        for name in ("before_cursor_execute", "commit"):
            sql.event.remove(sql.Engine, name, what)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "kills"),
    [*SOME.items(), *(pytest.param(name, 0, id=f"{name}, each") for name in ACTIONS)],
)
def test_a_database_killed_within_a_command_has_it_once_when_asked_again(world, database, name, kills):
    action, met = ACTIONS[name], 0

    def count(*_: object) -> None:
        nonlocal met
        met += 1

    job = world.new_job(action)
    with before_each(count):
        killed_commands.run(action, job)
    questions = met
    assert questions > 10
    for point in range(1, questions + 1, max(1, questions // kills) if kills else 1):
        job, met = world.new_job(action), 0

        def kill(*_: object, at: int = point) -> None:
            nonlocal met
            met += 1
            if met == at:
                database.kill()

        with before_each(kill):
            code, said = killed_commands.run(action, job)
        database.start()
        assert code == StoreError.exit_code and "The store of jobs at" in said, (point, said)
        assert killed_commands.again(world, action, job) == [], point
