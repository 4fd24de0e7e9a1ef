"""Keys by which users submit: what is asked for twice by one key is submitted once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sql

from jobs.store import tables
from trainer.errors import JobError


class KeyUsedError(JobError, code="KEY_USED"):
    """Something else was asked for by this key."""


class TakenError(JobError, code="SUBMITTING_ALREADY"):
    """A token is that of a job that is being submitted."""


def taken(token: str) -> TakenError:
    """Return the error of who submits under the token of another job."""
    return TakenError(f"The job of token {token} is being submitted already.", cure="Ask again in a minute.")


def tokens(connection: sql.Connection, user: str, key: str, digest: str, fresh: Sequence[str]) -> list[str]:
    """Return the tokens of what a user asks for by a key; `fresh` and kept, where they are the first.

    Args:
        connection: a transaction that writes.
        user: who asks.
        key: any text that its caller draws for each submission; its SHA-256 is kept.
        digest: SHA-256 of all that is asked for.
        fresh: tokens to keep; none: nothing is kept, and nothing returned.

    Raises:
        KeyUsedError: something else was asked for by this key.
    """
    name = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
    submission = _found(connection, user, name)
    if submission is None and fresh:
        row = {"user": user, "key": name, "digest": digest, "tokens": " ".join(fresh), "time": time.time()}
        try:
            with connection.begin_nested():
                connection.execute(tables.submissions.insert().values(row))
            return list(fresh)
        except sql.exc.IntegrityError:  # another was first in this moment
            submission = _found(connection, user, name)
    if submission is None:
        return []
    if submission.digest != digest:
        raise KeyUsedError(
            "Something else was submitted by this key before.", cure="Draw a new key for each submission."
        )
    return str(submission.tokens).split()


def _found(connection: sql.Connection, user: str, name: str) -> Any:
    table = tables.submissions
    query = sql.select(table.c.digest, table.c.tokens)
    return connection.execute(query.where(table.c.user == user, table.c.key == name)).first()
