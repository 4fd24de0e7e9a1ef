"""Values as rows of the store's tables, and back."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import sqlalchemy as sql

from jobs.job import Action, Job, StateChange
from jobs.schedulers.base import ACTIVE, ENDED, TaskState
from jobs.spec import JobSpec
from trainer.errors import JobError, StoreError


class UnreadableError(ValueError):
    """A row that holds other bytes than were written: the store's file is damaged."""


def storable(state: TaskState) -> TaskState:
    """Return the same with a reason that every database accepts: the output of a rank may hold any byte."""
    reason = state.reason.replace("\0", "").encode("utf-8", "replace").decode()
    return dataclasses.replace(state, reason=reason)


def spec(row: sql.RowMapping) -> JobSpec:
    """Return the job of a row of `jobs`; raises StoreError where it holds none."""
    try:
        return JobSpec.from_json(row["spec"])
    except JobError as error:
        if isinstance(error.__cause__, json.JSONDecodeError):
            raise UnreadableError(f"row {row['number']} of jobs: {error.message}") from error
        raise StoreError(
            f"The store's row {row['number']} ({row['label']}) holds no job: {error.message}",
            cure="Another version of Cingulum may have written it.",
        ) from error


def task_row(number: int, state: TaskState) -> dict[str, Any]:
    """Return a row of `tasks`, of job `number`."""
    return {
        **dataclasses.asdict(state),
        "job": number,
        "hosts": json.dumps(state.hosts),
        "missing_since": None,
    }


def task(row: sql.RowMapping) -> TaskState:
    """Return the state in a row of `tasks`."""
    names = [field.name for field in dataclasses.fields(TaskState)]
    try:
        state = TaskState(**{**{key: row[key] for key in names}, "hosts": tuple(json.loads(row["hosts"]))})
    except (ValueError, TypeError) as error:
        raise UnreadableError(f"task {row['task']} of row {row['job']} of jobs: {error}") from error
    if state.state not in (*ACTIVE, *ENDED):
        raise UnreadableError(f"task {state.task} of row {row['job']} of jobs is {state.state!r}")
    return state


def change_row(number: int, state: TaskState, now: float) -> dict[str, Any]:
    """Return a row of `changes`, of job `number`."""
    return {
        "job": number,
        "task": state.task,
        "time": now,
        "state": state.state,
        "exit_code": state.exit_code,
        "reason": state.reason,
        "restarts": state.restarts,
    }


def change(job: Job, row: Any) -> StateChange:
    """Return the change in a row of `changes`, which concerns `job`."""
    names = [field.name for field in dataclasses.fields(StateChange)]
    return StateChange(**{**{key: row[key] for key in names}, "job": job.label})


def action(row: Any) -> Action:
    """Return the action in a row of `actions`."""
    return Action(**{field.name: row[field.name] for field in dataclasses.fields(Action)})
