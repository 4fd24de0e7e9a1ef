"""The address of the store: a path or a database URL, shown without its secrets."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, quote_plus

import sqlalchemy as sql

from trainer.errors import JobError

_EXAMPLE = "postgresql+psycopg://user@host/database"
# Begins as an address does, without `://`: `postgres//me@host/jobs`, `postgresql:/host`, `me:pw@host`.
_MISTYPED = re.compile(r"[A-Za-z][\w+.-]*(//|:)")
_SECRET = re.compile(r"pass|pwd|secret|token|key", re.IGNORECASE)
_HIDDEN = "***"


def parse(where: str | Path) -> sql.URL:
    """Parse a URL or the path of an SQLite file into the address of a database.

    Raises:
        JobError: it is neither. None of it is shown, since it may hold a password.
    """
    if isinstance(where, Path) or "://" not in where:
        if isinstance(where, str) and _MISTYPED.match(where):
            raise JobError(
                "CINGULUM_STORE looks like the address of a database, and has no '://' after its first word.",
                cure=f"Write it such as {_EXAMPLE}; a file of that name as ./NAME.",
            )
        return sql.URL.create("sqlite", database=str(Path(where).expanduser().absolute()))
    try:
        url = sql.make_url(where)
        backend = url.get_dialect().name
    except (sql.exc.ArgumentError, sql.exc.NoSuchModuleError, ValueError) as error:
        raise JobError(
            "CINGULUM_STORE is not the URL of a database.", cure=f"Give a path, or a URL such as {_EXAMPLE}."
        ) from error
    if url.drivername == "postgresql":  # else SQLAlchemy looks for an older driver
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        return url
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise JobError("A store of jobs in memory would be lost.", cure="Give a path: sqlite:///jobs.db")
    return url.set(database=str(Path(url.database).expanduser().absolute()))


def shown(url: sql.URL) -> str:
    """Return a URL for messages, without its password and the secrets in its query."""
    hidden = {key: _HIDDEN if _SECRET.search(key) else value for key, value in url.query.items()}
    # Written by hand, since SQLAlchemy would escape the stars.
    query = "&".join(
        f"{quote_plus(key)}={value if value == _HIDDEN else quote_plus(value)}"
        for key, values in sorted(hidden.items())
        for value in ((values,) if isinstance(values, str) else values)
    )
    return url.set(query={}).render_as_string() + (f"?{query}" if query else "")


def without_secrets(text: str, url: sql.URL) -> str:
    """Return a driver's message without the password and other secrets of the URL, escaped or not."""
    secrets = [str(url.password)] if url.password else []
    for key, values in url.query.items():
        if _SECRET.search(key):
            secrets += [values] if isinstance(values, str) else list(values)
    for secret in secrets:
        for written in filter(None, (secret, quote(secret, safe=""), quote_plus(secret))):
            text = text.replace(written, _HIDDEN)
    return text
