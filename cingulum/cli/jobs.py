"""`cingulum jobs` and `cingulum show`: list submitted jobs, and tell all about one."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cingulum.cli.options import JobId

if TYPE_CHECKING:
    from rich.table import Table

    from cingulum.asking_service import Service
    from jobs.job import Job, StateChange
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
    from cingulum.cli import job_display
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
    listing = _chosen(store, all_of_them=all_of_them, shared=shared)
    if as_json:
        typer.echo(json.dumps({"jobs": [describing.job(job) for job in listing]}, indent=1))
    elif listing:
        out = job_display.console()
        out.print(job_display.table(listing, out.width))
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
    from cingulum.cli import job_display

    service = asking_service.Service(address, asking_service.token(token_file))
    if watch:
        _watch(lambda width: job_display.table_of_service(_listed(service, all_of_them, whose), width))
        return
    listing = _listed(service, all_of_them, whose)
    if as_json:
        typer.echo(json.dumps({"jobs": listing}, indent=1))
    elif listing:
        out = job_display.console()
        out.print(job_display.table_of_service(listing, out.width))
    else:
        typer.echo("no jobs", err=True)


def _listed(service: Service, all_of_them: bool, whose: str) -> list[dict[str, Any]]:
    """Return what a service lists, the newest first: all, or what waits, runs or changed today."""
    from jobs.schedulers.base import ACTIVE

    if all_of_them:
        return list(service.jobs(whose=whose, sort="submitted"))
    jobs_by_key = {job["key"]: job for job in service.jobs(whose=whose, state=ACTIVE)}
    since = time.time() - RECENT_S
    for job in service.jobs(whose=whose, sort="changed"):
        if datetime.fromisoformat(job["changed"]).timestamp() < since:
            break
        jobs_by_key.setdefault(job["key"], job)
    # A job's key ends with its number.
    return sorted(jobs_by_key.values(), key=lambda job: int(job["key"].rpartition("-")[2]), reverse=True)


def _watch(now: Callable[[int], Table]) -> None:
    """Show what `now` returns for a width, again and again."""
    from rich.live import Live

    from cingulum.cli import job_display

    out = job_display.console()
    with Live(console=out, auto_refresh=False, transient=False) as live:
        while True:
            shown = now(out.width)
            if out.is_terminal:
                live.update(shown, refresh=True)
            else:  # in a file, one below the other
                out.print(shown)
            time.sleep(WATCH_S)


TAIL_LINES, TAIL_BYTES = 10, 1 << 16


def show(
    identity: JobId,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Show a job: its state and why, where it ran, its command, its history and the end of its output.

    \b
    Example:
      cingulum show 4711
    """
    from cingulum.cli import job_display
    from jobs.requests import describing, known
    from trainer.telling import tell

    store = known.opened(tell)
    job, task = known.current(store, identity, warn=tell)
    if as_json:
        typer.echo(json.dumps(describing.everything(store, job), indent=1))
        return
    tasks = [state for state in job.tasks if task in (None, state.task)]
    lines = [
        f"{job_display.plain(job.spec.name)} ({job.spec.kind}), {job.launcher} on {job.site}, "
        f"submitted {describing.iso(job.submitted)}",
        f"folder    {job_display.plain(job.spec.folder)}",
        f"files     {job.folder}",
        f"asks for  {_resources(job)}",
        *(f"after     {', '.join(job.spec.after)}" for _ in job.spec.after[:1]),
        "",
    ]
    for state in tasks:
        code = "" if state.exit_code is None else f", exit code {state.exit_code}"
        again = f", started again {state.restarts} x" if state.restarts else ""
        hosts = f" on {','.join(state.hosts)}" if state.hosts else ""
        why = f": {job_display.plain(state.reason)}" if state.reason else ""
        took = job_display.took([state])
        time = f" for {took}" if took else ""
        lines.append(
            f"{describing.task_label(job, state.task)}  {state.state}{hosts}{time}{code}{again}{why}"
        )
        if task is not None or len(job.tasks) == 1:
            lines.append(f"  {job_display.plain(shlex.join(job.spec.tasks[state.task]))}")
        lines += [f"  failed start: {_failure(line)}" for line in describing.failures(job, state.task)]
    typer.echo("\n".join([*lines, *_history(store, job, identity)]))
    if len(tasks) == 1:
        _tell_end(job, tasks[0].task)


def _resources(job: Job) -> str:
    resources = job.spec.resources
    parts = [
        f"nodes {resources.nodes}, ranks per node {resources.ranks_per_node}, "
        f"cores per rank {resources.cpus_per_rank}",
        f"GPUs per node {resources.gpus_per_node}" if resources.gpus_per_node else "",
        f"memory per node {resources.memory_mib} MiB" if resources.memory_mib else "",
        f"{resources.minutes} min" if resources.minutes else "",
    ]
    return ", ".join(part for part in parts if part)


def _history(store: Store, job: Job, identity: str) -> list[str]:
    """Return a line per change and per action of a user, in order.

    Tasks of an array that changed alike at the same time share one.
    """
    from itertools import groupby

    from cingulum.cli import job_display
    from jobs.requests import describing

    def alike(change: StateChange) -> tuple[str, int | None, str, str | None]:
        return change.state, change.exit_code, change.reason, describing.iso(change.time)

    lines = []
    for action in store.actions(identity):
        task = "" if action.task is None else f" task {action.task}"
        who = job_display.plain(action.who)
        lines.append((describing.iso(action.time) or "", f"{task} {action.action} asked for by {who}"))
    for (state, exit_code, reason, when), changes in groupby(store.changes(identity), alike):
        tasks = ",".join(str(change.task) for change in changes)
        code = "" if exit_code is None else f" exit code {exit_code}"
        why = f" {job_display.plain(reason)}" if reason else ""
        lines.append((when or "", f"{f' task {tasks}' if job.spec.is_array else ''} {state}{code}{why}"))
    return ["", *(f"{time}{rest}" for time, rest in sorted(lines, key=lambda line: line[0]))]


def _failure(line: str) -> str:
    """Format such a line; half a line, as a host that died may leave, stays as it is."""
    from cingulum.cli import job_display

    time, code, where, why = (*line.split("\t", 3), "", "", "")[:4]
    told = [time, f"exit code {code}" if code not in ("", "-") else "", where]
    return job_display.plain(", ".join(filter(None, told)) + (f": {why}" if why else ""))


def _tell_end(job: Job, task: int) -> None:
    """Print the last lines of the job's output."""
    from cingulum.cli import job_display
    from jobs.requests import known

    if job.external is None:
        return
    path = known.launcher_of(job).logs(Path(job.folder), job.external, task)
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return
    last = [job_display.plain(line.expandtabs()) for line in text.splitlines()[-TAIL_LINES:]]
    typer.echo("\n".join(["", f"--- {path}", *last]))
