"""`cingulum logs` and `cingulum wait`: the output of a job, and its end."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cingulum.cli.options import JobId
from trainer.errors import JobError, StoreError
from trainer.transient import TransientErrors

if TYPE_CHECKING:
    from jobs.job import Job
    from jobs.store.store import Store

LOOK_S, ASK_S = 0.3, 3.0
_CHUNK = 1 << 16


def logs(
    identity: JobId,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the job has ended.")] = False,
    task: Annotated[int | None, typer.Option(metavar="I", min=0, help="Task of an array.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print where the output is, as JSON.")] = False,
) -> None:
    """Print a job's output: both streams, all starts in order.

    Of an array, the output of each task under its name. --follow ends with the job; Ctrl-C leaves the job
    running.

    \b
    Example:
      cingulum logs 4711_3 --follow
    """
    from jobs.requests import known
    from trainer.telling import tell

    store = known.opened(tell)
    if task is not None and "_" in identity:
        raise JobError(f"{identity} is a task, and --task {task} another.", cure="Leave out one of them.")
    label = identity if task is None else f"{identity}_{task}"
    job, chosen = known.current(store, label, warn=tell)
    paths = _paths(job, chosen)
    if as_json:
        typer.echo(json.dumps({name: str(path) for name, path in paths.items()}, indent=1))
        return
    if follow:
        if len(paths) > 1:
            raise JobError(
                f"Job {job.label} has {len(paths)} tasks.",
                cure=f"Name one: cingulum logs {job.label}_0 --follow",
            )
        _follow(store, label, job, chosen, next(iter(paths.values())))
        return
    for name, path in paths.items():
        if len(paths) > 1:
            typer.echo(f"==> {name} <==")
        if path.is_file():
            _copy(path, 0)
        else:
            typer.echo(f"{name} has not started: no output yet", err=True)


def _paths(job: Job, chosen: int | None) -> dict[str, Path]:
    from jobs.requests import describing, known

    external, launcher = known.started(job), known.launcher_of(job)
    return {
        describing.task_label(job, state.task): launcher.logs(Path(job.folder), external, state.task)
        for state in job.tasks
        if chosen in (None, state.task)
    }


def _follow(store: Store, identity: str, job: Job, chosen: int | None, path: Path) -> None:
    """Print what is there and what comes, until the job has ended and all of it is printed."""
    from cingulum.cli import job_display
    from jobs.requests import known
    from trainer.telling import tell

    position, last_ask = 0, -ASK_S
    ended = False
    warned: set[str] = set()
    unread = TransientErrors("the store of jobs could not be read", kinds=(StoreError, OSError))
    waits = not path.exists()
    while True:
        position = _copy(path, position)
        if ended:
            return
        if time.monotonic() - last_ask >= ASK_S:
            with unread.survived():
                job, chosen = known.current(store, identity, warned=warned, warn=tell)
            if waits:
                typer.echo(f"{job_display.progress(job)}; no output yet", err=True)
                waits = False
            ended = not any(_is_active(state.state) for state in job.tasks if chosen in (None, state.task))
            last_ask = time.monotonic()
            if not ended:
                known.launcher_here(job)
            else:
                continue  # print what came meanwhile
        time.sleep(LOOK_S)


def _is_active(state: str) -> bool:
    from jobs.schedulers.base import ACTIVE

    return state in ACTIVE


def _copy(path: Path, position: int) -> int:
    """Print a file from this position on; return where it ended."""
    try:
        with path.open("rb") as file:
            file.seek(position)
            while part := file.read(_CHUNK):
                sys.stdout.buffer.write(part)
            position = file.tell()
    except FileNotFoundError:
        return position
    sys.stdout.buffer.flush()
    return position


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
    from cingulum.cli import job_display
    from jobs.requests import describing, known
    from trainer.telling import tell

    store = known.opened(tell)
    began, pause, last_news = time.monotonic(), FIRST_S, ""
    warned: set[str] = set()
    unread = TransientErrors("the store of jobs could not be read", kinds=(StoreError, OSError))
    job, task = known.current(store, identity, warned=warned, warn=tell)
    while True:
        news = job_display.progress(job)
        if news != last_news and not as_json:
            typer.echo(news, file=sys.stderr)
            last_news = news
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
