"""Jobs that have ended, and that somebody has asked to start again since.

It is written down before the launcher is told. Where the process is killed after that, the job may run, and
what ended long ago is not asked for by itself.
"""

from __future__ import annotations

import time

import sqlalchemy as sql

from jobs import statements, tables
from jobs.job import Job
from jobs.launchers.base import ENDED

# A launcher that refused changes nothing either: such jobs are not asked for for ever.
_REMEMBERED_S = 14 * 86400.0


def jobs(connection: sql.Connection, user: str) -> list[Job]:
    """Return the user's jobs of which nothing was learnt since somebody asked to start them again."""
    asked, of = tables.actions.c, tables.jobs.c
    numbers = (
        sql.select(asked.job)
        .join(tables.jobs, of.number == asked.job)
        .where(asked.action == "requeue", asked.time > of.changed, asked.time > time.time() - _REMEMBERED_S)
    )
    return statements.jobs(connection, of.user == user, of.state.in_(ENDED), of.number.in_(numbers))
