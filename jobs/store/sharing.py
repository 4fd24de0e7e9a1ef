"""Who may look at which jobs: users at their own, and members of a Unix group at those shared with it.

Nothing here lets anyone act on a job of another user: `jobs.requests.known.refuse_others`.
"""

from __future__ import annotations

import grp
import os
import pwd
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sql

from jobs.store import submitter, tables
from trainer.errors import JobError

# Bytes that names of groups may have at most, in the store.
MOST = 255


@dataclass(frozen=True)
class Viewer:
    """A user who looks at jobs.

    Attributes:
        user: name of the user.
        groups: names of the user's groups, sorted; empty: only own jobs are seen.
    """

    user: str
    groups: tuple[str, ...] = ()


def viewer() -> Viewer:
    """Return the calling user, with the groups that this host knows at this moment."""
    return Viewer(submitter.user(), groups())


def groups() -> tuple[str, ...]:
    """Return the names of the calling user's groups, asked anew: a login keeps those that it began with."""
    try:
        entry = pwd.getpwuid(os.geteuid())
        numbers = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except KeyError:  # a user without a name, as in some containers
        numbers = [os.getegid(), *os.getgroups()]
    return tuple(sorted({name for number in numbers if (name := _name(number)) is not None}))


def checked(names: Iterable[str]) -> tuple[str, ...]:
    """Return these groups, each once.

    Raises:
        JobError: the calling user is not in one of them.
    """
    own_groups = groups()
    for name in names:
        if name not in own_groups:
            raise JobError(
                f"{name[:MOST]!r} is not a group of {submitter.user()} on this host.",
                cure=f"Your groups: {', '.join(own_groups) or 'none'}.",
            )
    return tuple(dict.fromkeys(names))


def visible(viewer: Viewer) -> sql.ColumnElement[bool]:
    """Return the condition on a row of `jobs` that this user may look at it."""
    own = tables.jobs.c.user == viewer.user
    return sql.or_(own, _shared_with(viewer.groups)) if viewer.groups else own


def of_others(viewer: Viewer) -> sql.ColumnElement[bool]:
    """Return the condition on a row of `jobs` that it is another user's, and shared with this one."""
    return sql.and_(tables.jobs.c.user != viewer.user, _shared_with(viewer.groups))


def share(connection: sql.Connection, number: int, groups: Sequence[str]) -> list[str]:
    """Write that a job is shared with these groups; return those with which it was not."""
    new = [name for name in groups if name not in of_job(connection, number)]
    if new:
        now = time.time()
        rows = [{"job": number, "group": name, "since": now} for name in new]
        connection.execute(tables.shares.insert(), rows)
    return new


def stop(connection: sql.Connection, number: int, groups: Sequence[str]) -> list[str]:
    """Write that a job is no longer shared with these groups; return those with which it was."""
    old = [name for name in groups if name in of_job(connection, number)]
    table = tables.shares
    connection.execute(table.delete().where(table.c.job == number, table.c.group.in_(old)))
    return old


def of_job(connection: sql.Connection, number: int) -> list[str]:
    """Return the groups with which a job is shared."""
    table = tables.shares
    query = sql.select(table.c.group).where(table.c.job == number).order_by(table.c.group)
    return list(connection.execute(query).scalars())


def _shared_with(groups: Sequence[str]) -> sql.ColumnElement[bool]:
    table = tables.shares
    return tables.jobs.c.number.in_(sql.select(table.c.job).where(table.c.group.in_(groups)))


def _name(number: int) -> str | None:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return None
