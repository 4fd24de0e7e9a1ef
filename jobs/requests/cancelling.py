"""End jobs, and note who asked for it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jobs import ends
from jobs.job import Job
from jobs.launchers.base import ACTIVE, WAITING, TaskState
from jobs.requests import describing, known
from jobs.store import Store
from trainer.errors import CingulumError, LauncherError

# A job, and the task of it that is meant; None: all.
Chosen = tuple[Job, int | None]


def cancel(store: Store, chosen: Sequence[Chosen], *, who: str) -> list[Job]:
    """End what of these waits or runs, and return all of them as they are then.

    Args:
        store: of all jobs.
        chosen: as `known.current` returned them.
        who: asked for it, as the jobs' history tells.

    Raises:
        NotYoursError: one of them is another user's; none was ended.
        JobError: one of them cannot be ended from here; none was.
        LauncherError: a launcher refused; the cure names those that were ended before it.
    """
    for job, _ in chosen:
        known.refuse_others(job)
    acting = [(job, task) for job, task in chosen if is_active(job, task)]
    orders = [(known.launcher_here(job), known.started(job)) for job, _ in acting]
    for done, ((job, task), (launcher, external)) in enumerate(zip(acting, orders, strict=True)):
        store.act(job, task, "cancel", who)
        try:
            launcher.cancel(external, task)
        except CingulumError as error:
            if done:
                names = " ".join(name(job, task) for job, task in acting[:done])
                error.cure = f"{error.cure or ''} Cancelled before it: {names}.".lstrip()
            raise
        _note(store, store.get(job.key), task)
    return [store.get(job.key) for job, _ in chosen]


def name(job: Job, task: int | None) -> str:
    """Return the id of a job, or of its task."""
    return job.label if task is None else describing.task_label(job, task)


def is_active(job: Job, task: int | None) -> bool:
    """Return whether the job, or the task, waits or runs."""
    return any(state.state in ACTIVE for state in job.tasks if task in (None, state.task))


def _note(store: Store, job: Job, task: int | None) -> None:
    """Update the store; Slurm forgets at once the tasks of an array that had not started yet."""
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
    ends.note(store.get(job.key))
