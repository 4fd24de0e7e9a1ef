"""`cingulum share`: let a Unix group look at jobs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cingulum.commands.options import JobId


def share(
    identity: JobId,
    group: Annotated[
        list[str] | None,
        typer.Argument(help="Unix groups that you are in; none: tell with which it is shared."),
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Let these groups no longer look at it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the groups as JSON.")] = False,
) -> None:
    """Let members of a group look at a job of yours, in a store that you share with them.

    They see it, its log and its run folder as far as the permissions of the files let them, and can change
    nothing. --stop ends that at once.

    \b
    Example:
      cingulum share 4711 neuro
      cingulum share 4711 neuro --stop
    """
    from jobs.requests import known
    from jobs.store import sharing, submitter
    from trainer.errors import InputError
    from trainer.telling import tell

    store, names = known.opened(tell), tuple(group or ())
    job = store.get(identity, sharing.viewer())
    if stop and not names:
        raise InputError("--stop needs a group.", cure=f"cingulum share {job.label} GROUP --stop")
    if names:
        known.refuse_others(job)
        # Who has left a group may still take it off a job.
        names = names if stop else sharing.checked(names)
        found = store.share(job, names, f"{submitter.user()} (command line)", stop=stop)
    else:
        found = store.shared_with(job)
    if as_json:
        typer.echo(json.dumps({"id": job.label, "groups": found}))
    else:
        typer.echo(f"{job.label} is shared with {', '.join(found) if found else 'nobody'}")
