"""`cingulum requeue`: save a job and start it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def requeue(
    identity: Annotated[str, typer.Argument(metavar="ID", help="Such as 4711, mpirun-7, or a task: 4711_3.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print its state as JSON.")] = False,
) -> None:
    """Start a job again: a running one saves its state first, a failed one resumes from its checkpoint.

    Slurm lets a job wait some two minutes before it starts it again.

    \b
    Example:
      cingulum requeue 4711
    """
    from cingulum.commands import job_access, job_display
    from jobs import terms
    from jobs.launchers.base import ENDED
    from trainer.errors import JobError

    store = job_access.opened()
    job, task = job_access.current(store, identity)
    states = [state for state in job.tasks if task in (None, state.task)]
    if all(state.state == "COMPLETED" for state in states):
        raise JobError(
            f"Job {identity} has completed: there is nothing left to do.",
            cure="Submit it again to do it anew.",
        )
    if not job.active:  # else it has the folder, or a job that waits for it is to have it next
        store.free(job.spec, besides=job)
    job_access.launcher_here(job).requeue(job_access.started(job), task)
    for state in states:
        if state.state in ENDED and state.state != "COMPLETED":
            store.requeue(store.get(job.key), state.task)
            # It may fail as often as a new job. Slurm starts it in two minutes at the earliest.
            terms.failures(Path(job.folder), state.task, is_array=job.spec.is_array).unlink(missing_ok=True)
    job_access.refresh(store, [store.get(job.key)])
    job = store.get(job.key)
    if as_json:
        typer.echo(json.dumps(job_display.as_json(job), indent=1))
        return
    saves = any(state.state not in ENDED for state in states)
    typer.echo(f"{identity} {'saves, and starts again' if saves else 'starts again'} ({job.state})")
