"""Format jobs: as a table of 80 columns, and as a line of progress."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from jobs.job import Job
    from jobs.schedulers.base import TaskState

_COLOURS = {"RUNNING": "green", "COMPLETED": "dim", "CANCELLED": "dim", "PENDING": "cyan", "REQUEUED": "cyan"}

NAME_WIDTH = 16


def console() -> Console:
    """Return standard output: as wide as the terminal, 80 columns where there is none."""
    from rich.console import Console

    out = Console(highlight=False, markup=False, soft_wrap=False)
    return out if out.is_terminal else Console(highlight=False, markup=False, width=80)


def plain(text: str) -> str:
    """Return text on one line, without terminal control characters: names are the users' own."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def table(jobs: Sequence[Job], width: int) -> Table:
    """Format one line per job, in squeue's words, `width` columns wide; reasons are cut to fit."""
    rows = [
        (job.label, _name(job.spec.name, job.user), job.spec.kind, job.state, took(job.tasks)) for job in jobs
    ]
    return _table("TIME", rows, [_where(job) for job in jobs], width)


def table_of_service(jobs: Sequence[Mapping[str, Any]], width: int) -> Table:
    """Format one line per job as a service tells of it."""
    rows = [
        (job["id"], _name(job["name"], job["user"]), job["kind"], job["state"], _far(job)) for job in jobs
    ]
    facts = ("hosts", "reason", "state", "exit_code", "tasks_completed", "tasks")
    words = [_placed(*(job[key] for key in facts)) for job in jobs]
    return _table("DONE", rows, words, width)


def _name(name: str, user: str) -> str:
    """Return the name of a job to show; of another user's with the user's."""
    from jobs.store import submitter

    shown = plain(name)[:NAME_WIDTH]
    return shown if user == submitter.user() else f"{shown} ({plain(user)})"


def _far(job: Mapping[str, Any]) -> str:
    return f"{100 * job['progress']['part']:.0f} %" if job.get("progress") else ""


def _table(fifth: str, rows: Sequence[tuple[str, ...]], wheres: Sequence[str], width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    titles = ("ID", "NAME", "KIND", "STATE", fifth)
    # Rich would take the missing room from every column, ids included.
    left = width - sum(max(map(len, column)) + 2 for column in zip(titles, *rows, strict=True))
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        shown.add_column(title, no_wrap=True, justify="right" if title == fifth else "left")
    shown.add_column("HOSTS (REASON)"[: max(0, left)], no_wrap=True)
    for row, where in zip(rows, wheres, strict=True):
        words = Text(plain(where))
        words.truncate(max(0, left), overflow="ellipsis")
        state = Text(row[3], style=_COLOURS.get(row[3], "red"))
        shown.add_row(*map(Text, row[:3]), state, row[4], words)
    return shown


def took(tasks: Iterable[TaskState]) -> str:
    """Return the time from the first start to the last end, or to now."""
    from jobs import quantities
    from jobs.schedulers.base import ENDED

    tasks = tuple(tasks)
    starts = [task.started for task in tasks if task.started is not None]
    ends = [(task.ended if task.state in ENDED else None) or time.time() for task in tasks if task.started]
    return quantities.told(max(ends) - min(starts)) if starts else ""


def progress(job: Job) -> str:
    """Describe a job's current state in a few words."""
    where = _where(job)
    return plain(f"{job.label} {job.state}{f': {where}' if where else ''}")


def _where(job: Job) -> str:
    """Return the hosts where it runs or ran; else why not. Of an array, also how far it is."""
    hosts = list(dict.fromkeys(host for task in job.tasks for host in task.hosts))
    done = sum(task.state == "COMPLETED" for task in job.tasks)
    return _placed(hosts, job.reason, job.state, job.exit_code, done, len(job.tasks))


def _placed(hosts: Sequence[str], reason: str, state: str, code: int | None, done: int, tasks: int) -> str:
    named = ",".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    why = reason if state not in ("RUNNING", "COMPLETED") and reason else ""
    parts = [named, f"({why})" if why else "", f"exit code {code}" if code else ""]
    if tasks > 1:
        parts.insert(0, f"{done}/{tasks} done")
    return " ".join(part for part in parts if part)
