"""One page of the jobs in the store, filtered, searched and sorted by the database."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass

import sqlalchemy as sql

from jobs.job import Job, StateChange, label
from jobs.schedulers.base import ENDED
from jobs.store import sharing, statements, tables
from jobs.store.sharing import Viewer

_COLUMNS = tables.jobs.c
# What a list may be sorted by, besides the number, which is the order of submission.
SORTS = {
    "submitted": _COLUMNS.number,
    "changed": _COLUMNS.changed,
    "name": sql.func.lower(_COLUMNS.name),
    "state": _COLUMNS.state,
    "kind": _COLUMNS.kind,
}


@dataclass(frozen=True)
class JobQuery:
    """Which jobs, in which order, and which page of them.

    Attributes:
        user: submitted by this one; see `whose`.
        states: of the job as a whole; empty: any.
        text: part of the name, the id, the kind or the list of hosts, in any case; "": any.
        sort: one of SORTS.
        descending: the largest, or the newest, first.
        offset, limit: jobs to leave out before the page, and at most on it.
        groups: of the user.
        whose: "mine", "shared": other users' jobs that are shared with one of the groups; or "all": both.
    """

    user: str
    states: tuple[str, ...] = ()
    text: str = ""
    sort: str = "submitted"
    descending: bool = True
    offset: int = 0
    limit: int = 50
    groups: tuple[str, ...] = ()
    whose: str = "all"


# A launcher that refused changes nothing either: such jobs are not asked for for ever.
_REMEMBERED_S = 14 * 86400.0


def page(connection: sql.Connection, query: JobQuery) -> tuple[list[Job], int]:
    """Return the jobs of the page, and how many match on all pages."""
    matching = [_whose(query)]
    if query.states:
        matching.append(_COLUMNS.state.in_(query.states))
    if query.text:
        matching.append(_holds(query.text))
    column = SORTS[query.sort]
    # The number makes the order one of all jobs, so that none is on two pages.
    order = [column.desc() if query.descending else column.asc(), _COLUMNS.number.desc()]
    total = connection.execute(sql.select(sql.func.count()).select_from(tables.jobs).where(*matching))
    found = statements.jobs(connection, *matching, order=order, offset=query.offset, limit=query.limit)
    return found, int(total.scalar_one())


def mentioning(connection: sql.Connection, viewer: Viewer, text: str, most: int) -> list[Job]:
    """Return the newest jobs that the viewer may look at in whose specification a string has this text."""
    holds = _COLUMNS.spec.contains(json.dumps(text)[1:-1], autoescape=True)
    return statements.jobs(connection, sharing.visible(viewer), holds, limit=most)


def stamp(connection: sql.Connection, viewer: Viewer) -> tuple[int, int]:
    """Return what changes with any job that the viewer may look at: how many, and all their revisions."""
    query = sql.select(sql.func.count(), sql.func.coalesce(sql.func.sum(_COLUMNS.revision), 0))
    count, revisions = connection.execute(query.where(sharing.visible(viewer))).one()
    return int(count), int(revisions)


def counts(connection: sql.Connection, user: str) -> dict[str, int]:
    """Return how many jobs of the user are in each state."""
    query = sql.select(_COLUMNS.state, sql.func.count()).where(_COLUMNS.user == user)
    return {state: int(count) for state, count in connection.execute(query.group_by(_COLUMNS.state))}


def changes_after(
    connection: sql.Connection, number: int, user: str, limit: int
) -> list[tuple[int, str, StateChange]]:
    """Return the user's changes with greater numbers, the oldest first: number, the job's `key`, change."""
    table = tables.changes
    query = sql.select(table, _COLUMNS.label, _COLUMNS.launcher).join(
        tables.jobs, _COLUMNS.number == table.c.job
    )
    query = query.where(_COLUMNS.user == user, table.c.number > number).order_by(table.c.number).limit(limit)
    names = [field.name for field in dataclasses.fields(StateChange)]
    return [
        (
            int(row["number"]),
            label(row["launcher"], row["job"], None),
            StateChange(**{**{key: row[key] for key in names}, "job": row["label"]}),
        )
        for row in connection.execute(query).mappings()
    ]


def requeued(connection: sql.Connection, user: str) -> list[Job]:
    """Return the user's jobs that have ended and that somebody has since asked to start again.

    The request is stored before the launcher is told. Where the process is killed after that, the job may
    run, and a job that ended long ago is not asked for otherwise.
    """
    actions, of = tables.actions.c, tables.jobs.c
    numbers = (
        sql.select(actions.job)
        .join(tables.jobs, of.number == actions.job)
        .where(
            actions.action == "requeue", actions.time > of.changed, actions.time > time.time() - _REMEMBERED_S
        )
    )
    return statements.jobs(connection, of.user == user, of.state.in_(ENDED), of.number.in_(numbers))


def newest_change(connection: sql.Connection) -> int:
    """Return the greatest number of a change; 0: there is none."""
    return int(connection.execute(sql.select(sql.func.max(tables.changes.c.number))).scalar() or 0)


def _whose(wanted: JobQuery) -> sql.ColumnElement[bool]:
    if wanted.whose == "shared":
        return sharing.of_others(Viewer(wanted.user, wanted.groups))
    return sharing.visible(Viewer(wanted.user, wanted.groups if wanted.whose == "all" else ()))


def _holds(text: str) -> sql.ColumnElement[bool]:
    tasks = tables.tasks.c
    on_host = sql.exists().where(tasks.job == _COLUMNS.number, tasks.hosts.icontains(text, autoescape=True))
    named = (_COLUMNS.name, _COLUMNS.label, _COLUMNS.kind)
    return sql.or_(*(column.icontains(text, autoescape=True) for column in named), on_host)
