"""One page of the jobs in the store, filtered, searched and sorted by the database."""

from __future__ import annotations

import json
from dataclasses import dataclass

import sqlalchemy as sql

from jobs import statements, tables
from jobs.job import Job

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
class Listing:
    """Which jobs, in which order, and which page of them.

    Attributes:
        user: submitted by this one.
        states: of the job as a whole; empty: any.
        text: part of the name, the id, the kind or the list of hosts, in any case; "": any.
        sort: one of SORTS.
        descending: the largest, or the newest, first.
        offset, limit: jobs to leave out before the page, and at most on it.
    """

    user: str
    states: tuple[str, ...] = ()
    text: str = ""
    sort: str = "submitted"
    descending: bool = True
    offset: int = 0
    limit: int = 50


def page(connection: sql.Connection, wanted: Listing) -> tuple[list[Job], int]:
    """Return the jobs of the page, and how many match on all pages."""
    matching = [_COLUMNS.user == wanted.user]
    if wanted.states:
        matching.append(_COLUMNS.state.in_(wanted.states))
    if wanted.text:
        matching.append(_holds(wanted.text))
    column = SORTS[wanted.sort]
    # The number makes the order one of all jobs, so that none is on two pages.
    order = [column.desc() if wanted.descending else column.asc(), _COLUMNS.number.desc()]
    total = connection.execute(sql.select(sql.func.count()).select_from(tables.jobs).where(*matching))
    found = statements.jobs(connection, *matching, order=order, offset=wanted.offset, limit=wanted.limit)
    return found, int(total.scalar_one())


def mentioning(connection: sql.Connection, user: str, text: str, most: int) -> list[Job]:
    """Return the user's newest jobs in whose specification this text is a part of a string."""
    holds = _COLUMNS.spec.contains(json.dumps(text)[1:-1], autoescape=True)
    return statements.jobs(connection, _COLUMNS.user == user, holds, limit=most)


def stamp(connection: sql.Connection, user: str) -> tuple[int, int]:
    """Return what changes with any job of the user: how many there are, and all their revisions."""
    query = sql.select(sql.func.count(), sql.func.coalesce(sql.func.sum(_COLUMNS.revision), 0))
    count, revisions = connection.execute(query.where(_COLUMNS.user == user)).one()
    return int(count), int(revisions)


def _holds(text: str) -> sql.ColumnElement[bool]:
    tasks = tables.tasks.c
    on_host = sql.exists().where(tasks.job == _COLUMNS.number, tasks.hosts.icontains(text, autoescape=True))
    named = (_COLUMNS.name, _COLUMNS.label, _COLUMNS.kind)
    return sql.or_(*(column.icontains(text, autoescape=True) for column in named), on_host)
