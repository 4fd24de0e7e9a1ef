"""`cingulum defer`: lower the priority of jobs that wait."""

from __future__ import annotations

from typing import Annotated

import typer

from cingulum.commands.options import JobIds

# That of `jobs.requests.actions`, which a --help does not load.
_MOST = 2**31 - 4


def defer(
    identities: JobIds,
    by: Annotated[
        int, typer.Option(min=0, max=_MOST, help="Less priority than jobs have at first; 0: as at first.")
    ] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print their states as JSON.")] = False,
) -> None:
    """Let others go first: lower the priority of jobs that wait. Only administrators can raise it.

    Jobs that are held must be released first, which gives them their first priority back.

    \b
    Example:
      cingulum defer 4711
      cingulum defer 4711 --by 0
    """
    from functools import partial

    from cingulum.commands import queue_orders
    from jobs.requests import actions

    done = f"has {by} less priority" if by else "has its first priority"
    queue_orders.give(identities, partial(actions.nice, by=by), done, as_json=as_json)
