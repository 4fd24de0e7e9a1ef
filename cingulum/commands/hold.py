"""`cingulum hold`: keep jobs waiting in their queue."""

from __future__ import annotations

from typing import Annotated

import typer

from cingulum.commands.options import JobIds


def hold(
    identities: JobIds,
    as_json: Annotated[bool, typer.Option("--json", help="Print their states as JSON.")] = False,
) -> None:
    """Keep jobs that wait from starting, until `cingulum release`. What runs goes on.

    \b
    Example:
      cingulum hold 4711 4712_3
    """
    from cingulum.commands import queue_orders
    from jobs.requests import actions

    queue_orders.give(identities, actions.hold, "held", as_json=as_json)
