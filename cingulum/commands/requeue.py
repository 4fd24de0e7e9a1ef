"""`cingulum requeue`: save a job and start it again."""

from __future__ import annotations

import json
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
    from jobs.requests import actions, describing, known
    from jobs.schedulers.base import ENDED
    from jobs.store import submitter
    from trainer.telling import tell

    store = known.opened(tell)
    before, task = known.current(store, identity, warn=tell)
    job = actions.requeue(store, before, task, who=f"{submitter.user()} (command line)", warn=tell)
    if as_json:
        typer.echo(json.dumps(describing.job(job), indent=1))
        return
    saves = any(state.state not in ENDED for state in actions.chosen(before, task))
    typer.echo(f"{identity} {'saves, and starts again' if saves else 'starts again'} ({job.state})")
