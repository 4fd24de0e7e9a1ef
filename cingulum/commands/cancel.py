"""`cingulum cancel`: end jobs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cingulum.commands.options import JobIds


def cancel(
    identities: JobIds,
    as_json: Annotated[bool, typer.Option("--json", help="Print their states as JSON.")] = False,
) -> None:
    """End jobs, and jobs that wait for them. Jobs that have ended stay unchanged.

    The last checkpoint stays: the same `cingulum submit` goes on from there. To save first and then start
    again, use `cingulum requeue`.

    \b
    Example:
      cingulum cancel 4711 4712_3
    """
    from jobs.requests import actions, describing, known
    from jobs.store import submitter
    from trainer.telling import tell

    store = known.opened(tell)
    # All ids are looked up before the first job ends: a typo in the last one changes nothing.
    chosen = [known.current(store, identity, warn=tell) for identity in identities]
    said = actions.cancel(store, chosen, who=f"{submitter.user()} (command line)")
    if as_json:
        typer.echo(json.dumps({"jobs": [describing.job(job) for job in said]}, indent=1))
        return
    for (before, task), job in zip(chosen, said, strict=True):
        name = actions.name(job, task)
        state = job.state if task is None else job.tasks[task].state
        if not actions.is_active(before, task):
            typer.echo(f"{name} had already ended: {state}")
        else:
            typer.echo(
                f"{name} cancelled"
                if state == "CANCELLED"
                else f"{name}: the launcher was asked to end it ({state})"
            )
