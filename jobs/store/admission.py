"""Admit one job at a time to a run folder, whatever starts it; checked as the job is noted.

The table `run_folders` names the job that has a folder, from its submission to its end. Its primary key
keeps a second one out in that very transaction, also when both are submitted in the same moment.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sql

from jobs.schedulers.base import ACTIVE, WAITING
from jobs.spec import JobSpec
from jobs.store import rows, tables
from trainer.errors import JobError

TRAINING = ("train", "crossval")
# States of a task whose ranks may write.
BEGUN = tuple(state for state in ACTIVE if state not in WAITING)


def admit(connection: sql.Connection, number: int, spec: JobSpec, *, waits_for: Collection[int]) -> None:
    """Note that this job has its run folder; do nothing where it trains in none.

    Args:
        connection: a transaction that writes.
        number: of the job, whose row is there.
        spec: of the job.
        waits_for: numbers of the jobs that it starts after: one of them may have the folder until then.

    Raises:
        JobError: another job has it.
    """
    if spec.run is None or spec.kind not in TRAINING:
        return
    table = tables.run_folders
    same_folder = table.c.folder == spec.run
    while True:
        try:
            with connection.begin_nested():
                connection.execute(table.insert().values(folder=spec.run, job=number))
            return
        except sql.exc.IntegrityError:
            holder = connection.execute(sql.select(table.c.job).where(same_folder).with_for_update()).scalar()
        if holder is None:  # given back in this moment
            continue
        if holder not in waits_for:
            _refuse(connection, holder, spec.run)
        connection.execute(table.update().where(same_folder).values(job=number))
        return


def check(connection: sql.Connection, spec: JobSpec, *, besides: int | None = None) -> None:
    """Check that no job but `besides` has the run folder of this one.

    Raises:
        JobError: one has.
    """
    if spec.run is None or spec.kind not in TRAINING:
        return
    table = tables.run_folders
    holder = connection.execute(sql.select(table.c.job).where(table.c.folder == spec.run)).scalar()
    if holder is not None and holder != besides:
        _refuse(connection, holder, spec.run)


def _refuse(connection: sql.Connection, holder: int, folder: str) -> None:
    """Raise JobError where the job that has the folder waits or runs."""
    query = sql.select(tables.jobs.c.label, tables.jobs.c.state).where(tables.jobs.c.number == holder)
    job = connection.execute(query).one()
    if job.state in ACTIVE:
        raise JobError(
            _writers(connection, holder, job.label, folder)
            or f"Job {job.label} ({job.state}) uses the run folder {folder} already.",
            cure=f"Wait for it (--after {job.label}), cancel it, or give this run another name: name=...",
        )


def _writers(connection: sql.Connection, holder: int, label: str, folder: str) -> str:
    """Return which starts of a job write its run folder, as last known; "" where none has begun."""
    query = sql.select(tables.tasks).where(tables.tasks.c.job == holder).order_by(tables.tasks.c.task)
    states = [rows.task(row) for row in connection.execute(query).mappings()]
    writers = [
        f"job {label}{f'_{state.task}' if len(states) > 1 else ''}, start {state.restarts + 1}, "
        f"{','.join(state.hosts) or 'host not known yet'}"
        for state in states
        if state.state in BEGUN
    ]
    more = f"; and {len(writers) - 3} more" if len(writers) > 3 else ""
    return f"Another process writes this run: {'; '.join(writers[:3])}{more} ({folder})." if writers else ""


def follow(connection: sql.Connection, number: int, spec: JobSpec, state: str) -> None:
    """Take or release the run folder of a job whose overall state has become `state`.

    A launcher may start a job again that had ended. That is a fact, which is noted even where another job has
    the folder meanwhile.
    """
    table = tables.run_folders
    if state not in ACTIVE:
        connection.execute(table.delete().where(table.c.job == number))
    elif spec.run is None or spec.kind not in TRAINING:
        return
    elif connection.execute(sql.select(table.c.job).where(table.c.folder == spec.run)).first() is None:
        connection.execute(table.insert().values(folder=spec.run, job=number))
