"""Add jobs to the store that it has lost, as their folders tell of them."""

from __future__ import annotations

import time
from collections.abc import Iterable

import sqlalchemy as sql

from jobs import admission, statements, tables
from jobs.noting import Noted

# Columns of a job that its folder tells.
_NOTED = ("token", "launcher", "place", "site", "external", "folder", "user", "submitter", "submitted")


def take_in(connection: sql.Connection, noted: Iterable[Noted]) -> list[int]:
    """Add what is not there, in a transaction that writes; see `jobs.store.Store.restore`."""
    table = tables.jobs
    taken_in = []
    known = set(connection.execute(sql.select(table.c.token)).scalars())
    numbers = set(connection.execute(sql.select(table.c.number)).scalars())
    for job in noted:
        if job.token in known:
            continue
        values = {key: getattr(job, key) for key in _NOTED}
        if job.number is not None and job.number not in numbers:
            values["number"] = job.number
        number = statements.insert(connection, values, job.spec, time.time())
        admission.follow(connection, number, job.spec, "SUBMITTING")
        taken_in.append(number)
        numbers.add(number)
    if connection.dialect.name == "postgresql":  # it counts on from its own count
        newest = sql.select(sql.func.max(table.c.number)).scalar_subquery()
        counter = sql.func.pg_get_serial_sequence("jobs", "number")
        connection.execute(sql.select(sql.func.setval(counter, newest)))
    return taken_in
