"""`cingulum cancel`: end jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from cingulum.commands.options import JobIds

if TYPE_CHECKING:
    from jobs.job import Job
    from jobs.store import Store


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
    from cingulum.commands import job_display
    from jobs.requests import known
    from trainer.errors import CingulumError
    from trainer.telling import tell

    store = known.opened(tell)
    # All ids are looked up before the first job ends: a typo in the last one changes nothing.
    chosen = [known.current(store, identity, warn=tell) for identity in identities]
    acting = [(job, task) for job, task in chosen if _active(job, task)]
    orders = [(known.launcher_here(job), known.started(job)) for job, _ in acting]
    for done, ((job, task), (launcher, external)) in enumerate(zip(acting, orders, strict=True)):
        try:
            launcher.cancel(external, task)
        except CingulumError as error:
            if done:
                names = " ".join(_name(job, task) for job, task in acting[:done])
                error.cure = f"{error.cure or ''} Cancelled before it: {names}.".lstrip()
            raise
        _note(store, store.get(job.key), task)
    said = [store.get(job.key) for job, _ in chosen]
    if as_json:
        typer.echo(json.dumps({"jobs": [job_display.as_json(job) for job in said]}, indent=1))
        return
    for (before, task), job in zip(chosen, said, strict=True):
        name = _name(job, task)
        state = job.state if task is None else job.tasks[task].state
        if not _active(before, task):
            typer.echo(f"{name} had already ended: {state}")
        else:
            typer.echo(
                f"{name} cancelled"
                if state == "CANCELLED"
                else f"{name}: the launcher was asked to end it ({state})"
            )


def _name(job: Job, task: int | None) -> str:
    from cingulum.commands import job_display

    return job.label if task is None else job_display.task_label(job, task)


def _active(job: Job, task: int | None) -> bool:
    from jobs.launchers.base import ACTIVE

    return any(state.state in ACTIVE for state in job.tasks if task in (None, state.task))


def _note(store: Store, job: Job, task: int | None) -> None:
    """Update the store; Slurm forgets at once the tasks of an array that had not started yet."""
    import time

    from jobs.launchers.base import WAITING, TaskState
    from jobs.requests import known
    from trainer.errors import LauncherError

    external = known.started(job)
    try:
        told = known.launcher_of(job).states([external]).get(external, [])
    except LauncherError:
        return  # the order to end was given all the same
    spoken = {state.task for state in told}
    gone = [
        TaskState(
            state.task, "CANCELLED", reason="before it started", restarts=state.restarts, ended=time.time()
        )
        for state in job.tasks
        if task in (None, state.task) and state.state in WAITING and state.task not in spoken
    ]
    store.record([(job, [*told, *gone])])
