"""`cingulum release`: let jobs that were held start."""

from __future__ import annotations

from typing import Annotated

import typer

from cingulum.commands.options import JobIds


def release(
    identities: JobIds,
    as_json: Annotated[bool, typer.Option("--json", help="Print their states as JSON.")] = False,
) -> None:
    """Let jobs start that `cingulum hold` keeps waiting.

    \b
    Example:
      cingulum release 4711 4712_3
    """
    from cingulum.commands import queue_orders
    from jobs.requests import actions

    queue_orders.give(identities, actions.release, "released", as_json=as_json)
