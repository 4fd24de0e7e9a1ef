"""`cingulum wait`: wait until a job has ended."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from cingulum.commands.options import JobId
from trainer.errors import StoreError
from trainer.transient import TransientErrors

if TYPE_CHECKING:
    from jobs.job import Job

# As the `timeout` command ends.
TIMED_OUT = 124
# States in which a job was ended from outside.
KILLED = ("CANCELLED", "TIMEOUT", "DEADLINE")
FIRST_S, LONGEST_S = 0.5, 10.0


def wait(
    identity: JobId,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Give up after so long; exit code 124.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print its last state as JSON.")] = False,
) -> int:
    """Wait until a job has ended, and end with its exit code.

    The exit code is 1 for a job that was cancelled, timed out or left none; of an array, it is that of the
    first task that failed. Ctrl-C ends the waiting and leaves the job alone.

    \b
    Example:
      cingulum wait 4711 && cingulum report runs/my-run
    """
    from cingulum.commands import job_display
    from jobs.requests import describing, known
    from trainer.telling import tell

    store = known.opened(tell)
    began, pause, said = time.monotonic(), FIRST_S, ""
    warned: set[str] = set()
    unread = TransientErrors("the store of jobs could not be read", kinds=(StoreError, OSError))
    job, task = known.current(store, identity, warned=warned, warn=tell)
    while True:
        news = job_display.progress(job)
        if news != said and not as_json:
            typer.echo(news, file=sys.stderr)
            said = news
        code = _ended(job, task)
        if code is None:
            known.launcher_here(job)
        left = None if timeout is None else timeout - (time.monotonic() - began)
        if code is not None or (left is not None and left <= 0):
            break
        time.sleep(pause if left is None else min(pause, left))
        pause = min(LONGEST_S, pause * 1.3)
        with unread.survived():  # the exit code is the job's, not that of a database that restarts
            job, task = known.current(store, identity, warned=warned, warn=tell)
    if as_json:
        typer.echo(json.dumps(describing.job(job), indent=1))
    if code is None:
        typer.echo(f"{identity} had not ended after {timeout:g} s; it goes on", err=True)
        return TIMED_OUT
    return code


def _ended(job: Job, task: int | None) -> int | None:
    """Return the exit code, once it has ended."""
    from jobs.schedulers.base import ACTIVE

    states = [state for state in job.tasks if task in (None, state.task)]
    if any(state.state in ACTIVE for state in states):
        return None
    if all(state.state == "COMPLETED" for state in states):
        return 0
    # A command that was ended from outside has no exit code of its own: 143 for mpirun.
    own = [state.exit_code for state in states if state.state not in KILLED]
    return next((code for code in own if code), 1)
