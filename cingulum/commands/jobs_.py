"""`cingulum jobs`: list submitted jobs and their states."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from jobs.job import Job
    from jobs.store import Store

RECENT_S = 24 * 3600.0
WATCH_S = 5.0


def jobs(
    all_of_them: Annotated[
        bool, typer.Option("--all", help="List also jobs that ended more than a day ago.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every 5 s until Ctrl-C.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make a lost or damaged store again from the jobs' folders.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List your jobs, the newest first: those that wait or run, and those that ended today.

    States are those of Slurm. LOST: the job's launcher does not know it, and nothing says how it ended.

    \b
    Example:
      cingulum jobs --watch
    """
    from cingulum.commands import job_display
    from jobs.requests import describing, known
    from trainer.errors import InputError
    from trainer.telling import tell

    store = known.rebuilt(tell) if rebuild else known.opened(tell)
    if watch:
        if as_json:
            raise InputError("--watch and --json exclude each other.", cure="Leave out one of them.")
        _watch(store, all_of_them=all_of_them)
        return
    known.refresh(store, warn=tell)
    found = _chosen(store, all_of_them=all_of_them)
    if as_json:
        typer.echo(json.dumps({"jobs": [describing.job(job) for job in found]}, indent=1))
    elif found:
        out = job_display.console()
        out.print(job_display.table(found, out.width))
    else:
        typer.echo("no jobs; `cingulum submit CONFIG` starts one", err=True)


def _chosen(store: Store, *, all_of_them: bool) -> list[Job]:
    from jobs import submitter

    found = store.list(user=submitter.user())
    if all_of_them:
        return found
    since = time.time() - RECENT_S
    return [job for job in found if job.active or _ended(job) >= since]


def _ended(job: Job) -> float:
    return max([job.submitted, *(task.ended for task in job.tasks if task.ended is not None)])


def _watch(store: Store, *, all_of_them: bool) -> None:
    from rich.live import Live

    from cingulum.commands import job_display
    from jobs.requests import known
    from trainer.telling import tell

    out = job_display.console()
    warned: set[str] = set()
    with Live(console=out, auto_refresh=False, transient=False) as live:
        while True:
            known.refresh(store, warned=warned, warn=tell)
            shown = job_display.table(_chosen(store, all_of_them=all_of_them), out.width)
            if out.is_terminal:
                live.update(shown, refresh=True)
            else:  # in a file, one below the other
                out.print(shown)
            time.sleep(WATCH_S)
