"""`cingulum jobs`: list submitted jobs and their states."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from cingulum.asking_service import Service
    from jobs.job import Job
    from jobs.store.store import Store

RECENT_S = 24 * 3600.0
WATCH_S = 5.0


def jobs(
    all_of_them: Annotated[
        bool, typer.Option("--all", help="List also jobs that ended more than a day ago.")
    ] = False,
    shared: Annotated[
        bool, typer.Option("--shared", help="List other users' jobs that are shared with a group of yours.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every 5 s until Ctrl-C.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make a lost or damaged store again from the jobs' folders.")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ask this service: unix:/path/to/serve.sock, http://127.0.0.1:8642 or https://...",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="With --server: the token is in this file.  [default: CINGULUM_TOKEN]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List your jobs, the newest first: those that wait or run, and those that ended today.

    With --server the service tells of them, from anywhere; --json prints them as its API does.

    --shared lists what other users of the same store have shared with a group of yours, as they last knew it.

    States are those of Slurm. LOST: the job's launcher does not know it, and nothing says how it ended.

    \b
    Example:
      cingulum jobs --watch
      cingulum jobs --server http://127.0.0.1:8642 --token-file ~/.cingulum-token
    """
    from cingulum.commands import job_display
    from jobs.requests import describing, known
    from trainer.errors import InputError
    from trainer.telling import tell

    if watch and as_json:
        raise InputError("--watch and --json exclude each other.", cure="Leave out one of them.")
    if server is not None:
        if rebuild:
            raise InputError("--rebuild is for your own store.", cure="Leave out --server.")
        whose = "shared" if shared else "mine"
        _of_service(server, token_file, whose, all_of_them=all_of_them, watch=watch, as_json=as_json)
        return
    store = known.rebuilt(tell) if rebuild else known.opened(tell)
    if watch:
        warned: set[str] = set()

        def now(width: int) -> Table:
            known.refresh(store, warned=warned, warn=tell)
            return job_display.table(_chosen(store, all_of_them=all_of_them, shared=shared), width)

        _watch(now)
        return
    known.refresh(store, warn=tell)
    found = _chosen(store, all_of_them=all_of_them, shared=shared)
    if as_json:
        typer.echo(json.dumps({"jobs": [describing.job(job) for job in found]}, indent=1))
    elif found:
        out = job_display.console()
        out.print(job_display.table(found, out.width))
    else:
        typer.echo("no jobs; `cingulum submit CONFIG` starts one", err=True)


def _chosen(store: Store, *, all_of_them: bool, shared: bool) -> list[Job]:
    from jobs.store import sharing, submitter

    found = store.list(shared_with=sharing.viewer()) if shared else store.list(user=submitter.user())
    if all_of_them:
        return found
    since = time.time() - RECENT_S
    return [job for job in found if job.active or _ended(job) >= since]


def _ended(job: Job) -> float:
    return max([job.submitted, *(task.ended for task in job.tasks if task.ended is not None)])


def _of_service(
    address: str, token_file: Path | None, whose: str, *, all_of_them: bool, watch: bool, as_json: bool
) -> None:
    from cingulum import asking_service
    from cingulum.commands import job_display

    service = asking_service.Service(address, asking_service.token(token_file))
    if watch:
        _watch(lambda width: job_display.table_of_service(_listed(service, all_of_them, whose), width))
        return
    found = _listed(service, all_of_them, whose)
    if as_json:
        typer.echo(json.dumps({"jobs": found}, indent=1))
    elif found:
        out = job_display.console()
        out.print(job_display.table_of_service(found, out.width))
    else:
        typer.echo("no jobs", err=True)


def _listed(service: Service, all_of_them: bool, whose: str) -> list[dict[str, Any]]:
    """Return what a service lists, the newest first: all, or what waits, runs or changed today."""
    from jobs.schedulers.base import ACTIVE

    if all_of_them:
        return list(service.jobs(whose=whose, sort="submitted"))
    found = {job["key"]: job for job in service.jobs(whose=whose, state=ACTIVE)}
    since = time.time() - RECENT_S
    for job in service.jobs(whose=whose, sort="changed"):
        if datetime.fromisoformat(job["changed"]).timestamp() < since:
            break
        found.setdefault(job["key"], job)
    # A job's key ends with its number.
    return sorted(found.values(), key=lambda job: int(job["key"].rpartition("-")[2]), reverse=True)


def _watch(now: Callable[[int], Table]) -> None:
    """Show what `now` returns for a width, again and again."""
    from rich.live import Live

    from cingulum.commands import job_display

    out = job_display.console()
    with Live(console=out, auto_refresh=False, transient=False) as live:
        while True:
            shown = now(out.width)
            if out.is_terminal:
                live.update(shown, refresh=True)
            else:  # in a file, one below the other
                out.print(shown)
            time.sleep(WATCH_S)
