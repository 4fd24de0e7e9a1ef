"""Jobs as values of JSON, for the command line's `--json` and a service alike."""

from __future__ import annotations

import contextlib
import dataclasses
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jobs.job import Job
from jobs.requests import known
from jobs.store.store import Store
from trainer.errors import JobError


def job(job: Job) -> dict[str, Any]:
    """Return all that the store's row and tasks know of a job; times as ISO 8601 in UTC."""
    return {
        "id": job.label,
        "name": job.spec.name,
        "kind": job.spec.kind,
        "launcher": job.launcher,
        "site": job.site,
        "state": job.state,
        "exit_code": job.exit_code,
        "reason": job.reason,
        "submitted": iso(job.submitted),
        "user": job.user,
        "after": list(job.spec.after),
        "resources": dataclasses.asdict(job.spec.resources),
        "folder": job.spec.folder,
        "job_folder": job.folder,
        "tasks": [
            {
                "id": task_label(job, state.task),
                **dataclasses.asdict(state),
                "started": iso(state.started),
                "ended": iso(state.ended),
                "command": list(job.spec.tasks[state.task]),
            }
            for state in job.tasks
        ],
    }


def everything(store: Store, stored: Job) -> dict[str, Any]:
    """Return what `job` does, with logs and failed starts of the tasks, the history and what users did."""
    shown = job(stored)
    for task in shown["tasks"]:
        number = int(task["task"])
        task["failures"] = failures(stored, number)
        log = log_of(stored, number)
        if log is not None:
            task["log"] = str(log)
    shown["changes"] = [
        {
            "task": change.task,
            "time": iso(change.time),
            "state": change.state,
            "exit_code": change.exit_code,
            "reason": change.reason,
            "restarts": change.restarts,
        }
        for change in store.changes(stored.key)
    ]
    shown["actions"] = [
        {"task": action.task, "time": iso(action.time), "action": action.action, "who": action.who}
        for action in store.actions(stored.key)
    ]
    return shown


def failures(job: Job, task: int) -> list[str]:
    """Return lines that the job wrote about failed starts: time, exit code, host or rank, why."""
    path = Path(job.folder) / (f"failures-{task}" if job.spec.is_array else "failures")
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def log_of(job: Job, task: int) -> Path | None:
    """Return the log of a task: both streams, all starts; None: the launcher has not taken the job, or its
    folder is gone.
    """
    if job.external is None:
        return None
    with contextlib.suppress(JobError):
        return known.launcher_of(job).logs(Path(job.folder), job.external, task)
    return None


def task_label(job: Job, task: int) -> str:
    """Return `4711_3` in an array, else the job's own label."""
    return f"{job.label}_{task}" if job.spec.is_array else job.label


def iso(seconds: float | None) -> str | None:
    """Format a time as ISO 8601 in UTC; None stays None."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
