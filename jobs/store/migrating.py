"""Make the store's tables with alembic, and refuse formats that this version does not read.

`migrations/versions/` has a file per format. A database of this format costs one query: alembic is imported
only where tables must be made. A release that adds a format keeps a copy of the store before it migrates it.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sql

from jobs.store import address
from jobs.store.rows import UnreadableError
from trainer.errors import StoreError

# The newest file of migrations/versions/.
REVISION = "0005"
_TABLE = "alembic_version"
# Any constant: PostgreSQL's lock for making the tables.
_LOCK = 0x63696E67


def bring_up(engine: sql.Engine) -> None:
    """Make the tables; do nothing where they are there.

    Raises:
        StoreError: another version of Cingulum made them, in a format that this one does not read.
    """
    with engine.connect() as connection:
        revision = _revision(connection)
    if revision == REVISION:
        return
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_LOCK)))
        revision = _revision(connection)  # another process may have been first
        if revision is None:
            _upgrade(connection)
        elif revision != REVISION:
            raise _other_format(engine.url, int(revision))


def _revision(connection: sql.Connection) -> str | None:
    """Return the format of the tables, as four digits; None: there are none."""
    if not sql.inspect(connection).has_table(_TABLE):
        return None
    rows = connection.exec_driver_sql(f"SELECT version_num FROM {_TABLE}").all()  # noqa: S608  (a name of ours)
    try:
        return f"{max(int(row[0]) for row in rows):04d}" if rows else None
    except (ValueError, TypeError) as error:
        raise UnreadableError(f"{_TABLE}: {error}") from error


def _other_format(url: sql.URL, revision: int) -> StoreError:
    cure = "Use the newer Cingulum that wrote it, or name another store in CINGULUM_STORE."
    if revision < int(REVISION):
        cure = (
            "A version before 0.1.0 wrote it. Move it aside, or name another store in CINGULUM_STORE; then "
            "`cingulum jobs --rebuild` makes a new one from the jobs' folders."
        )
    return StoreError(
        f"The store of jobs at {address.shown(url)} has format {revision}; "
        f"this Cingulum reads format {int(REVISION)}.",
        cure=cure,
    )


def _upgrade(connection: sql.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
