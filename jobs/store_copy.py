"""Keep a copy of a store before it is migrated to a newer format."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import sqlalchemy as sql

from trainer.errors import StoreError


def keep(connection: sql.Connection, number: int) -> str:
    """Copy the store as it is, in format `number`; return where the copy is.

    Of SQLite a file beside it with mode 0600, `jobs.db.format-4`; of other databases tables beside those of
    the store, `jobs_format_4`, which are there once the transaction is committed. A copy of the same format
    that was made before is replaced.

    Args:
        connection: a transaction that writes, and has written nothing yet.
        number: of the format.

    Raises:
        StoreError, OSError: the file cannot be written.
        sqlalchemy.exc.SQLAlchemyError: the tables cannot be made.
    """
    if connection.dialect.name == "sqlite":
        return str(_file(connection, number))
    return ", ".join(_tables(connection, number))


def _file(connection: sql.Connection, number: int) -> Path:
    file = Path(str(connection.engine.url.database))
    kept = file.with_name(f"{file.name}.format-{number}")
    handle, name = tempfile.mkstemp(prefix=f".{kept.name}.", dir=file.parent)  # made with mode 0600
    os.close(handle)
    try:
        # By a connection of its own: through one that is about to write, SQLite waits for ever.
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(name)) as copy:
            source.backup(copy)
        Path(name).replace(kept)
    except sqlite3.Error as error:
        raise StoreError(
            f"{file} must be migrated, and cannot be copied to {kept} before: {error}.",
            cure="Make room there; the store is as it was.",
        ) from error
    finally:
        Path(name).unlink(missing_ok=True)
    return kept


def _tables(connection: sql.Connection, number: int) -> list[str]:
    quote = connection.dialect.identifier_preparer.quote
    ours = [name for name in sql.inspect(connection).get_table_names() if "_format_" not in name]
    copies = []
    for name in sorted(ours):
        copy = f"{name}_format_{number}"
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {quote(copy)}")
        connection.exec_driver_sql(f"CREATE TABLE {quote(copy)} AS TABLE {quote(name)}")
        copies.append(copy)
    return copies
