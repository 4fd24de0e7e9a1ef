"""Make the store's tables, and migrate them from an older format, with alembic.

`jobs/migrations/versions/` has a file per format. A database of this format costs one question: alembic is
imported where there is something to do.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sql

from jobs import store_address, store_copy
from jobs.rows import UnreadableError
from trainer.errors import StoreError

# The newest file of jobs/migrations/versions/.
REVISION = "0005"
_FIRST = "0001"
# Tables in which a database names its format: alembic's, and the one before it, which older versions read.
_ALEMBIC = "alembic_version"
_BEFORE = "schema_version"
# Any constant: PostgreSQL's lock for making the tables.
_LOCK = 0x63696E67


def bring_up(engine: sql.Engine) -> None:
    """Make the tables, or migrate them to this version with a copy kept; do nothing where they are current.

    Raises:
        StoreError: a newer Cingulum made them.
    """
    with engine.connect() as connection:
        found = _revision(connection)
    if found == REVISION:
        return
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(sql.select(sql.func.pg_advisory_xact_lock(_LOCK)))
        found = _revision(connection)  # another process may have been first
        if found is not None and found > REVISION:
            raise StoreError(
                f"The store of jobs at {store_address.shown(engine.url)} has format {int(found)}; "
                f"this Cingulum knows format {int(REVISION)}.",
                cure="Use the newer Cingulum that wrote it, or name another store in CINGULUM_STORE.",
            )
        if found is not None and found != REVISION:
            store_copy.keep(connection, int(found))
        if found != REVISION:
            _upgrade(connection, found)


def _revision(connection: sql.Connection) -> str | None:
    """Return the format of the tables, as four digits; None: there are none."""
    inspector = sql.inspect(connection)
    found: list[int] = []
    for table, column in ((_ALEMBIC, "version_num"), (_BEFORE, "version")):
        if inspector.has_table(table):
            rows = connection.exec_driver_sql(f"SELECT {column} FROM {table}")  # noqa: S608  (names of ours)
            try:
                found += [int(row[0]) for row in rows]
            except (ValueError, TypeError) as error:
                raise UnreadableError(f"{table}: {error}") from error
    return f"{max(found):04d}" if found else None


def _upgrade(connection: sql.Connection, found: str | None) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    if found == _FIRST and not sql.inspect(connection).has_table(_ALEMBIC):
        command.stamp(config, _FIRST)  # its tables were made before alembic kept account
    command.upgrade(config, "head")
