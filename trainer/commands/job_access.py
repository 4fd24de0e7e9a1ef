"""What the commands about jobs share: the store, brought up to date, and a job by its id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from jobs.job import Job
    from jobs.launchers.base import Launcher
    from jobs.store import Store


def opened() -> Store:
    """The user's store."""
    from jobs.store import Store

    return Store()


def refresh(store: Store, jobs: Sequence[Job] | None = None) -> None:
    """Ask what became of these jobs, or of all that matter; a launcher that is silent is named, no more."""
    from jobs import reconciling
    from jobs.launchers import registry

    names = {job.launcher for job in (_of_interest(store) if jobs is None else jobs)}
    found = reconciling.refresh(store, {name: registry.named(name) for name in sorted(names)}, jobs)
    for name, error in found.silent.items():
        typer.echo(f"warning: {name} did not tell; what follows may be old: {error.message}", err=True)


def _of_interest(store: Store) -> list[Job]:
    """Jobs whose launchers have to be asked: only those are loaded."""
    import time

    from jobs import submitter
    from jobs.launchers.base import ACTIVE, ENDED
    from jobs.reconciling import AGAIN_S
    from jobs.recovery import LOOK_AGAIN_S

    mine, now = submitter.user(), time.time()
    return [
        *store.list(states=ACTIVE, user=mine),
        *store.list(states=ENDED, user=mine, changed_since=now - AGAIN_S),
        *store.list(states=["LOST"], user=mine, since=now - LOOK_AGAIN_S),
    ]


def current(store: Store, text: str) -> tuple[Job, int | None]:
    """The job that an id names, as its launcher knows it now, and the task where the id names one.

    Raises:
        JobError: there is no such job or task.
    """
    from jobs.job import split_label
    from trainer.errors import JobError

    _, task = split_label(text)
    job = store.get(text)
    if task is not None and (not job.spec.is_array or task >= len(job.tasks)):
        raise JobError(
            f"Job {job.label} has no task {task}.",
            cure=f"Its tasks are {job.label}_0 to {job.label}_{len(job.tasks) - 1}."
            if job.spec.is_array
            else "It is no array.",
        )
    # A submission that was cut short is looked for by its token, which only a refresh of everything does.
    refresh(store, None if job.external is None else [job])
    return store.get(job.label if job.external is not None else f"new-{job.number}"), task


def started(job: Job) -> str:
    """The launcher's own name of a job.

    Raises:
        JobError: it has none yet.
    """
    from trainer.errors import JobError

    if job.external is None:
        raise JobError(
            f"Job {job.label} is {job.state}: {job.launcher} has not answered yet.",
            cure="`cingulum jobs` looks for it; try again in a minute.",
        )
    return job.external


def launcher_of(job: Job) -> Launcher:
    """What started the job."""
    from jobs.launchers import registry

    return registry.named(job.launcher)
