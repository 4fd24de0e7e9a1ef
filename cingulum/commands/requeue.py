"""`cingulum requeue`: save a job and start it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cingulum.commands.options import JobId


def requeue(
    identity: JobId,
    as_json: Annotated[bool, typer.Option("--json", help="Print its state as JSON.")] = False,
) -> None:
    """Start a job again: a running one saves its state first, a failed one resumes from its checkpoint.

    Slurm lets a job wait some two minutes before it starts it again.

    \b
    Example:
      cingulum requeue 4711
    """
    from jobs import submitter, terms
    from jobs.launchers.base import ENDED
    from jobs.requests import describing, known
    from trainer.errors import JobError
    from trainer.telling import tell

    store = known.opened(tell)
    job, task = known.current(store, identity, warn=tell)
    states = [state for state in job.tasks if task in (None, state.task)]
    if all(state.state == "COMPLETED" for state in states):
        raise JobError(
            f"Job {identity} has completed: there is nothing left to do.",
            cure="Submit it again to do it anew.",
        )
    if not job.active:  # else it has the folder, or a job that waits for it is to have it next
        store.free(job.spec, besides=job)
    launcher, external = known.launcher_here(job), known.started(job)
    store.act(job, task, "requeue", f"{submitter.user()} (command line)")
    launcher.requeue(external, task)
    for state in states:
        if state.state in ENDED and state.state != "COMPLETED":
            store.requeue(store.get(job.key), state.task)
            # It may fail as often as a new job. Slurm starts it in two minutes at the earliest.
            terms.failures(Path(job.folder), state.task, is_array=job.spec.is_array).unlink(missing_ok=True)
    known.refresh(store, [store.get(job.key)], warn=tell)
    job = store.get(job.key)
    if as_json:
        typer.echo(json.dumps(describing.job(job), indent=1))
        return
    saves = any(state.state not in ENDED for state in states)
    typer.echo(f"{identity} {'saves, and starts again' if saves else 'starts again'} ({job.state})")
