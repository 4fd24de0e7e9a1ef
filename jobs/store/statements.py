"""Reads and writes of the store within one transaction."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sql

from jobs.job import Job, StateChange, believed, is_news, label, overall, split_label
from jobs.schedulers.base import TaskState
from jobs.spec import JobSpec
from jobs.store import admission, rows, tables
from trainer.errors import JobError


def insert(connection: sql.Connection, values: Mapping[str, Any], spec: JobSpec, now: float) -> int:
    """Write the rows of a job that is being submitted; return its number."""
    row = {
        **values,
        "label": "",
        "name": spec.name,
        "kind": spec.kind,
        "spec": spec.to_json(),
        "changed": now,
        "state": "SUBMITTING",
        "revision": 0,
    }
    states = [TaskState(task, "SUBMITTING") for task in range(len(spec.tasks))]
    made = connection.execute(tables.jobs.insert().values(row)).inserted_primary_key
    assert made is not None  # noqa: S101  (one row was inserted)
    number = int(made[0])
    mine = tables.jobs.c.number == number
    shown = label(values["launcher"], number, values["external"])
    connection.execute(tables.jobs.update().where(mine).values(label=shown))
    connection.execute(tables.tasks.insert(), [rows.task_row(number, state) for state in states])
    connection.execute(tables.changes.insert(), [rows.change_row(number, state, now) for state in states])
    return number


def act(connection: sql.Connection, number: int, task: int | None, action: str, who: str) -> None:
    """Write that a user asks for something to be done with a job, or one task of it."""
    row = {"job": number, "task": task, "time": time.time(), "action": action, "who": who}
    connection.execute(tables.actions.insert(), row)


def named(text: str) -> sql.ColumnElement[bool]:
    """Return the rows that an id names; raises JobError where it names none."""
    named, _ = split_label(text)
    if named.startswith("new-"):
        return tables.jobs.c.number == int(named.removeprefix("new-"))
    return tables.jobs.c.label == named


def several(
    connection: sql.Connection, texts: Sequence[str], criterion: sql.ColumnElement[bool]
) -> dict[str, Job]:
    """Return for each id the newest job that meets the criterion; ids that name none are left out."""
    names = {}
    for text in texts:
        with contextlib.suppress(JobError):
            names[text] = split_label(text)[0]
    numbers = [int(one.removeprefix("new-")) for one in names.values() if one.startswith("new-")]
    columns = tables.jobs.c
    named = sql.or_(columns.label.in_(list(names.values())), columns.number.in_(numbers))
    found = jobs(connection, named, criterion)
    by_name = {name: job for job in reversed(found) for name in (job.label, job.key)}
    return {text: by_name[name] for text, name in names.items() if name in by_name}


def jobs(
    connection: sql.Connection,
    *criteria: sql.ColumnElement[bool],
    order: Sequence[sql.ColumnElement[Any]] = (tables.jobs.c.number.desc(),),
    offset: int = 0,
    limit: int | None = None,
    lock: bool = False,
) -> list[Job]:
    """Return the jobs that match all criteria, the newest first unless another order is given; `lock`: until
    the transaction ends.
    """
    query = sql.select(tables.jobs).where(*criteria).order_by(*order).offset(offset).limit(limit)
    if lock:  # nothing to SQLite, whose writers come one after the other anyway
        query = query.with_for_update()
    found = connection.execute(query).mappings().all()
    states: dict[int, list[TaskState]] = {row["number"]: [] for row in found}
    numbers = sorted(states)
    for start in range(0, len(numbers), 500):  # databases bound the length of a list
        some = tables.tasks.c.job.in_(numbers[start : start + 500])
        query = sql.select(tables.tasks).where(some).order_by(tables.tasks.c.job, tables.tasks.c.task)
        for row in connection.execute(query).mappings():
            states[row["job"]].append(rows.task(row))
    names = [field.name for field in dataclasses.fields(Job)]
    return [
        Job(
            **{key: row[key] for key in names if key not in ("spec", "tasks")},
            spec=rows.spec(row),
            tasks=tuple(states[row["number"]]),
        )
        for row in found
    ]


def write(connection: sql.Connection, job: Job, states: Sequence[TaskState], now: float) -> list[StateChange]:
    """Write these states into the store where they are accepted; `job` is as the store has it."""
    current = {state.task: state for state in job.tasks}
    before = dict(current)
    for state in states:
        if state.task in current:
            current[state.task] = believed(current[state.task], rows.storable(state))
    changed = [task for task in current if current[task] != before[task]]
    news = [
        rows.change_row(job.number, current[task], now)
        for task in changed
        if is_news(before[task], current[task])
    ]
    for task in changed:
        row = rows.task_row(job.number, current[task])
        which = (tables.tasks.c.job == job.number) & (tables.tasks.c.task == task)
        connection.execute(tables.tasks.update().where(which).values(row))
    if news:
        connection.execute(tables.changes.insert(), news)
    if changed:
        values = {"state": overall(list(current.values())), "revision": job.revision + 1, "changed": now}
        connection.execute(tables.jobs.update().where(tables.jobs.c.number == job.number).values(values))
        admission.follow(connection, job.number, job.spec, str(values["state"]))
    return [rows.change(job, row) for row in news]
