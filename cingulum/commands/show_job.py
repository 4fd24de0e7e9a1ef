"""`cingulum show`: all about one job."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cingulum.commands.options import JobId

if TYPE_CHECKING:
    from jobs.job import Change, Job
    from jobs.store.store import Store

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
    from cingulum.commands import job_display
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
    asked = job.spec.resources
    parts = [
        f"nodes {asked.nodes}, ranks per node {asked.ranks_per_node}, cores per rank {asked.cpus_per_rank}",
        f"GPUs per node {asked.gpus_per_node}" if asked.gpus_per_node else "",
        f"memory per node {asked.memory_mib} MiB" if asked.memory_mib else "",
        f"{asked.minutes} min" if asked.minutes else "",
    ]
    return ", ".join(part for part in parts if part)


def _history(store: Store, job: Job, identity: str) -> list[str]:
    """Return a line per change and per action of a user, in order.

    Tasks of an array that changed alike at the same time share one.
    """
    from itertools import groupby

    from cingulum.commands import job_display
    from jobs.requests import describing

    def alike(change: Change) -> tuple[str, int | None, str, str | None]:
        return change.state, change.exit_code, change.reason, describing.iso(change.time)

    lines = []
    for action in store.actions(identity):
        task = "" if action.task is None else f" task {action.task}"
        who = job_display.plain(action.who)
        lines.append((describing.iso(action.time) or "", f"{task} {action.action} asked for by {who}"))
    for (state, exit_code, reason, time), changes in groupby(store.changes(identity), alike):
        tasks = ",".join(str(change.task) for change in changes)
        code = "" if exit_code is None else f" exit code {exit_code}"
        why = f" {job_display.plain(reason)}" if reason else ""
        lines.append((time or "", f"{f' task {tasks}' if job.spec.is_array else ''} {state}{code}{why}"))
    return ["", *(f"{time}{rest}" for time, rest in sorted(lines, key=lambda line: line[0]))]


def _failure(line: str) -> str:
    """Format such a line; half a line, as a host that died may leave, stays as it is."""
    from cingulum.commands import job_display

    time, code, where, why = (*line.split("\t", 3), "", "", "")[:4]
    told = [time, f"exit code {code}" if code not in ("", "-") else "", where]
    return job_display.plain(", ".join(filter(None, told)) + (f": {why}" if why else ""))


def _tell_end(job: Job, task: int) -> None:
    """Print the last lines of the job's output."""
    from cingulum.commands import job_display
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
