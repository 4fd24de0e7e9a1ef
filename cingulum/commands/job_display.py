"""Format jobs: as a table of 80 columns, and as a line of progress."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from jobs.job import Job
    from jobs.launchers.base import TaskState

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
    from rich.table import Table
    from rich.text import Text

    titles = ("ID", "NAME", "KIND", "STATE", "TIME")
    rows = [
        (job.label, plain(job.spec.name)[:NAME_WIDTH], job.spec.kind, job.state, took(job.tasks))
        for job in jobs
    ]
    # Rich would take the missing room from every column, ids included.
    left = width - sum(max(map(len, column)) + 2 for column in zip(titles, *rows, strict=True))
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        shown.add_column(title, no_wrap=True, justify="right" if title == "TIME" else "left")
    shown.add_column("HOSTS (REASON)"[: max(0, left)], no_wrap=True)
    for row, job in zip(rows, jobs, strict=True):
        words = Text(plain(_where(job)))
        words.truncate(max(0, left), overflow="ellipsis")
        state = Text(job.state, style=_COLOURS.get(job.state, "red"))
        shown.add_row(*map(Text, row[:3]), state, row[4], words)
    return shown


def took(tasks: Iterable[TaskState]) -> str:
    """Return the time from the first start to the last end, or to now."""
    from jobs import quantities
    from jobs.launchers.base import ENDED

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
    named = ",".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    why = job.reason if job.state not in ("RUNNING", "COMPLETED") and job.reason else ""
    code = job.exit_code
    parts = [named, f"({why})" if why else "", f"exit code {code}" if code else ""]
    if job.spec.is_array:
        done = sum(task.state == "COMPLETED" for task in job.tasks)
        parts.insert(0, f"{done}/{len(job.tasks)} done")
    return " ".join(part for part in parts if part)
