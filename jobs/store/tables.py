"""Tables of the store, and how a database is opened: its format, files and locks.

`migrations/versions/` has a file per format. A database of this format costs one query: alembic is imported
only where tables must be made. A release that adds a format keeps a copy of the store before it migrates it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy import pool

from jobs.store import address, rows
from jobs.store.rows import UnreadableError
from trainer.errors import DamagedStoreError, StoreError

# Seconds to wait for other processes that write. SQLite serialises writers; each needs milliseconds.
WAIT_S = 30.0
# File systems of this host alone, where SQLite's write-ahead log works: it shares memory between processes.
_LOCAL = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "jfs", "bcachefs", "reiserfs")
)

# What SQLite says of a file that is damaged (https://sqlite.org/rescode.html: CORRUPT, NOTADB, and ERROR
# where names of tables are), and Python's driver of bytes in it that are no text.
_DAMAGED = re.compile(
    "malformed|not a database|unsupported file format|no such (table|column)|Could not decode to UTF-8"
)
_REBUILD = "`cingulum jobs --rebuild` keeps it aside and makes a new one from the jobs' folders."

metadata = sql.MetaData()

jobs = sql.Table(
    "jobs",
    metadata,
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("token", sql.String(16), nullable=False, unique=True),
    sql.Column("launcher", sql.String(32), nullable=False),
    sql.Column("place", sql.String(255), nullable=False),
    sql.Column("site", sql.String(255), nullable=False),
    sql.Column("external", sql.String(1024)),
    sql.Column("label", sql.String(64), nullable=False, index=True),
    sql.Column("name", sql.Text, nullable=False),
    sql.Column("kind", sql.String(32), nullable=False),
    sql.Column("spec", sql.Text, nullable=False),
    sql.Column("folder", sql.Text, nullable=False),
    sql.Column("user", sql.String(255), nullable=False),
    sql.Column("submitter", sql.String(512), nullable=False),
    sql.Column("submitted", sql.Double, nullable=False),
    sql.Column("changed", sql.Double, nullable=False, index=True),
    sql.Column("state", sql.String(16), nullable=False, index=True),
    sql.Column("revision", sql.Integer, nullable=False),
    sqlite_autoincrement=True,
)

tasks = sql.Table(
    "tasks",
    metadata,
    sql.Column("job", sql.ForeignKey("jobs.number"), primary_key=True),
    sql.Column("task", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("state", sql.String(16), nullable=False),
    sql.Column("exit_code", sql.Integer),
    sql.Column("reason", sql.Text, nullable=False),
    sql.Column("hosts", sql.Text, nullable=False),
    sql.Column("restarts", sql.Integer, nullable=False),
    sql.Column("started", sql.Double),
    sql.Column("ended", sql.Double),
    sql.Column("missing_since", sql.Double),
)

changes = sql.Table(
    "changes",
    metadata,
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("job", sql.ForeignKey("jobs.number"), nullable=False, index=True),
    sql.Column("task", sql.Integer, nullable=False),
    sql.Column("time", sql.Double, nullable=False),
    sql.Column("state", sql.String(16), nullable=False),
    sql.Column("exit_code", sql.Integer),
    sql.Column("reason", sql.Text, nullable=False),
    sql.Column("restarts", sql.Integer, nullable=False),
    sqlite_autoincrement=True,
)

# What users did with jobs.
actions = sql.Table(
    "actions",
    metadata,
    sql.Column("number", sql.Integer, primary_key=True),
    sql.Column("job", sql.ForeignKey("jobs.number"), nullable=False, index=True),
    sql.Column("task", sql.Integer),
    sql.Column("time", sql.Double, nullable=False),
    sql.Column("action", sql.String(300), nullable=False),
    sql.Column("who", sql.Text, nullable=False),
    sqlite_autoincrement=True,
)

# The run folders that jobs train in, as long as these wait or run.
run_folders = sql.Table(
    "run_folders",
    metadata,
    sql.Column("folder", sql.Text, primary_key=True),
    sql.Column("job", sql.ForeignKey("jobs.number"), nullable=False, index=True),
)

# Unix groups whose members may look at a job.
shares = sql.Table(
    "shares",
    metadata,
    sql.Column("job", sql.ForeignKey("jobs.number"), primary_key=True),
    sql.Column("group", sql.String(255), primary_key=True, index=True),
    sql.Column("since", sql.Double, nullable=False),
)

# What was asked to be submitted by a key: `key` and `digest` (of all that was asked) are SHA-256, `tokens`
# those of its jobs, separated by spaces.
submissions = sql.Table(
    "submissions",
    metadata,
    sql.Column("user", sql.String(255), primary_key=True),
    sql.Column("key", sql.String(64), primary_key=True),
    sql.Column("digest", sql.String(64), nullable=False),
    sql.Column("tokens", sql.Text, nullable=False),
    sql.Column("time", sql.Double, nullable=False),
)


def open_database(where: str | Path) -> sql.Engine:
    """Open the database at a path (SQLite) or URL; make its tables where there are none.

    Raises:
        JobError: not a URL that can be used.
        StoreError: it cannot be reached, or a newer Cingulum made it.
    """
    url = address.parse(where)
    is_file = url.get_backend_name() == "sqlite"
    with _told(url):
        # Connections are not kept: a process may fork, and one command needs but a few.
        engine = sql.create_engine(
            url,
            poolclass=pool.NullPool,
            hide_parameters=True,
            connect_args={"timeout": WAIT_S} if is_file else {},
        )
        if is_file:
            _make_private(Path(str(url.database)))
            sql.event.listen(engine, "connect", _prepare)
            sql.event.listen(engine, "begin", _begin)
        bring_up(engine)
    return engine


def check_whole(engine: sql.Engine) -> None:
    """Read all of an SQLite file: a query may succeed though another part is damaged.

    Raises:
        DamagedStoreError: it is damaged.
    """
    if engine.dialect.name == "sqlite":
        with reading(engine) as connection:
            said = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
        if said != "ok":
            raise _damaged(engine.url, str(said))


def set_aside(where: str | Path) -> Path | None:
    """Rename the file of a damaged SQLite store, and its log; return its new name. None: it is not a file."""
    url = address.parse(where)
    if url.get_backend_name() != "sqlite":
        return None
    file = Path(str(url.database))
    aside = file.with_name(f"{file.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    for end in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            file.with_name(file.name + end).rename(aside.with_name(aside.name + end))
    return aside


@contextmanager
def reading(engine: sql.Engine) -> Iterator[sql.Connection]:
    """Open a transaction that reads one state of the store; raises StoreError."""
    with _told(engine.url), engine.connect() as connection:
        if engine.dialect.name == "postgresql":  # by itself each of its questions sees a state of its own
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


@contextmanager
def writing(engine: sql.Engine) -> Iterator[sql.Connection]:
    """Open a transaction that is written whole or not at all, one after the other; raises StoreError."""
    with _told(engine.url), engine.connect() as connection:
        connection = connection.execution_options(writes=True)
        with connection.begin():
            yield connection


@contextmanager
def _told(url: sql.URL) -> Iterator[None]:
    """Raise errors of the database as ours, without the password."""
    try:
        yield
    except ImportError as error:
        raise StoreError(
            f"There is no driver for {url.drivername} here: {error.name or error} is missing.",
            cure="pip install -e '.[postgresql]'" if url.get_backend_name() == "postgresql" else None,
        ) from error
    except sql.exc.SQLAlchemyError as error:
        message = str(getattr(error, "orig", None) or error).strip()
        message = address.without_secrets(message, url)
        if isinstance(getattr(error, "orig", None), sqlite3.DatabaseError) and _DAMAGED.search(message):
            raise _damaged(url, message) from error
        cure = "Check that the database runs, and that CINGULUM_STORE is right."
        if url.get_backend_name() == "sqlite":
            cure = "Check whether the disk is full, and whether you may write to the file and its folder."
            if "locked" in message:
                cure = f"Another process kept it for more than {WAIT_S:.0f} s. Try again; do not delete it."
        raise StoreError(f"The store of jobs at {address.shown(url)}: {message}.", cure=cure) from error
    except (UnicodeDecodeError, rows.UnreadableError) as error:  # the first is the driver's
        raise _damaged(url, str(error)) from error
    except OSError as error:
        raise StoreError(f"The store of jobs at {address.shown(url)}: {error}.") from error


def _damaged(url: sql.URL, said: str) -> StoreError:
    if url.get_backend_name() != "sqlite":
        return StoreError(f"The store of jobs at {address.shown(url)} holds an invalid job: {said}.")
    # What is quoted of such a file may be anything.
    plain = "".join(sign if sign.isprintable() else "?" for sign in said)[:200]
    return DamagedStoreError(f"The store of jobs at {address.shown(url)} is damaged: {plain}.", cure=_REBUILD)


def _make_private(file: Path) -> None:
    """Make an empty file with mode 0600; SQLite gives its log and journal the mode of the database.

    The database itself is never opened here: closing it would drop the locks that SQLite holds for another
    thread of this process (POSIX locks belong to the process).
    """
    file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    if not file.exists():
        handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)  # made with mode 0600
        os.close(handle)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(name, file)
        finally:
            Path(name).unlink()
    found = file.stat()
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != 0o600:
        file.chmod(0o600)


def _prepare(connection: sqlite3.Connection, record: object) -> None:
    connection.isolation_level = None  # transactions are begun by us, below
    file = connection.execute("PRAGMA database_list").fetchone()[2]
    mode = "WAL" if _file_system(Path(file)) in _LOCAL else "DELETE"
    if connection.execute("PRAGMA journal_mode").fetchone()[0].upper() != mode:
        connection.execute(f"PRAGMA journal_mode={mode}")
    connection.execute("PRAGMA synchronous=FULL")  # a job that was submitted is not forgotten in a power cut
    connection.execute("PRAGMA foreign_keys=ON")


def _begin(connection: sql.Connection) -> None:
    # A transaction that reads first and writes later could fail at its first write: writers queue at once.
    connection.exec_driver_sql(
        "BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN"
    )


def _file_system(path: Path) -> str:
    """Return the type of the file system of a path (man 5 proc: mountinfo); "": unknown."""
    device = path.stat().st_dev
    device_number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        mount, _, kind = line.partition(" - ")
        if mount.split()[2] == device_number:
            return kind.split()[0]
    return ""


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
