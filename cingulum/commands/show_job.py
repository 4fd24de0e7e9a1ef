"""`cingulum show`: all about one job."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cingulum.commands.options import JobId

if TYPE_CHECKING:
    from jobs.job import Change, Job
    from jobs.store import Store

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
    from jobs.requests import known
    from trainer.telling import tell

    store = known.opened(tell)
    job, task = known.current(store, identity, warn=tell)
    if as_json:
        typer.echo(json.dumps(_everything(store, job), indent=1))
        return
    tasks = [state for state in job.tasks if task in (None, state.task)]
    lines = [
        f"{job_display.plain(job.spec.name)} ({job.spec.kind}), {job.launcher} on {job.site}, "
        f"submitted {job_display.iso(job.submitted)}",
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
            f"{job_display.task_label(job, state.task)}  {state.state}{hosts}{time}{code}{again}{why}"
        )
        if task is not None or len(job.tasks) == 1:
            lines.append(f"  {job_display.plain(shlex.join(job.spec.tasks[state.task]))}")
        lines += [f"  failed start: {_failure(line)}" for line in _failures(job, state.task)]
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
    """Print a line per change; tasks of an array that changed alike at the same time share one."""
    from itertools import groupby

    from cingulum.commands import job_display

    def alike(change: Change) -> tuple[str, int | None, str, str | None]:
        return change.state, change.exit_code, change.reason, job_display.iso(change.time)

    lines = [""]
    for (state, exit_code, reason, time), changes in groupby(store.changes(identity), alike):
        tasks = ",".join(str(change.task) for change in changes)
        code = "" if exit_code is None else f" exit code {exit_code}"
        why = f" {job_display.plain(reason)}" if reason else ""
        lines.append(f"{time}{f' task {tasks}' if job.spec.is_array else ''} {state}{code}{why}")
    return lines


def _failures(job: Job, task: int) -> list[str]:
    """Return lines that the job wrote about failed starts: time, exit code, host or rank, why."""
    path = Path(job.folder) / (f"failures-{task}" if job.spec.is_array else "failures")
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


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


def _everything(store: Store, job: Job) -> dict[str, Any]:
    from cingulum.commands import job_display
    from jobs.requests import known

    shown = job_display.as_json(job)
    external = job.external
    for task in shown["tasks"]:
        number = int(task["task"])
        task["failures"] = _failures(job, number)
        if external is not None:
            log = known.launcher_of(job).logs(Path(job.folder), external, number)
            task["log"] = str(log)
    shown["changes"] = [
        {
            "task": change.task,
            "time": job_display.iso(change.time),
            "state": change.state,
            "exit_code": change.exit_code,
            "reason": change.reason,
            "restarts": change.restarts,
        }
        for change in store.changes(job.key)
    ]
    return shown
