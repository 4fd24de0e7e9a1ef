"""Save jobs and start them again, and note who asked for it."""

from __future__ import annotations

from pathlib import Path

from jobs import terms
from jobs.job import Job
from jobs.launchers.base import ENDED, TaskState
from jobs.requests import known
from jobs.store import Store
from trainer.errors import JobError


def requeue(store: Store, job: Job, task: int | None, *, who: str, warn: known.Warn) -> Job:
    """Start a job, or one task of it, again, and return it as it is then: what runs saves first, what failed
    goes on from its checkpoint.

    Args:
        store: of all jobs.
        job, task: as `known.current` returned them.
        who: asked for it, as the job's history tells.
        warn: see `known.refresh`.

    Raises:
        NotYoursError: it is another user's.
        JobError: it has completed, another job has its run folder, or it cannot be reached from here.
        LauncherError: the launcher refused.
    """
    known.refuse_others(job)
    states = chosen(job, task)
    if all(state.state == "COMPLETED" for state in states):
        raise JobError(
            f"Job {job.label if task is None else f'{job.label}_{task}'} has completed: "
            "there is nothing left to do.",
            cure="Submit it again to do it anew.",
        )
    if not job.active:  # else it has the folder, or a job that waits for it is to have it next
        store.free(job.spec, besides=job)
    launcher, external = known.launcher_here(job), known.started(job)
    store.act(job, task, "requeue", who)
    launcher.requeue(external, task)
    for state in states:
        if state.state in ENDED and state.state != "COMPLETED":
            store.requeue(store.get(job.key), state.task)
            # It may fail as often as a new job. Slurm starts it in two minutes at the earliest.
            terms.failures(Path(job.folder), state.task, is_array=job.spec.is_array).unlink(missing_ok=True)
    known.refresh(store, [store.get(job.key)], warn=warn)
    return store.get(job.key)


def chosen(job: Job, task: int | None) -> list[TaskState]:
    """Return the states of the task, or of all."""
    return [state for state in job.tasks if task in (None, state.task)]
