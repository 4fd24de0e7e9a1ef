"""Hold jobs in a queue, let them go, and lower their priority, where the launcher has a queue."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jobs.job import Job
from jobs.launchers.base import WAITING
from jobs.requests import known
from jobs.requests.requeueing import chosen
from jobs.store import Store
from trainer.errors import JobError

# Bounds of Slurm's `Nice` (man scontrol) for users.
MOST_NICE = 2**31 - 4


class NoQueueError(JobError, code="NO_QUEUE"):
    """The launcher of a job has no queue, or the job does not wait in it."""


@runtime_checkable
class Queue(Protocol):
    """A launcher whose jobs wait in a queue with priorities."""

    def hold(self, external: str, task: int | None = None) -> None:
        """Keep what waits in the queue."""

    def release(self, external: str, task: int | None = None) -> None:
        """Let what `hold` kept start."""

    def is_held(self, external: str, task: int | None = None) -> bool:
        """Return whether some of what waits is kept."""

    def nice(self, external: str, task: int | None, by: int) -> None:
        """Lower the priority of what waits by so much; 0: as it was."""


def hold(store: Store, job: Job, task: int | None, *, who: str) -> Job:
    """Keep a job, or one task of it, from starting; raises what `_queue_of` does."""
    queue, external = _queue_of(job, task)
    store.act(job, task, "hold", who)
    queue.hold(external, task)
    return _now(store, job)


def release(store: Store, job: Job, task: int | None, *, who: str) -> Job:
    """Let a job that was held start; raises what `_queue_of` does."""
    queue, external = _queue_of(job, task)
    store.act(job, task, "release", who)
    queue.release(external, task)
    return _now(store, job)


def nice(store: Store, job: Job, task: int | None, by: int, *, who: str) -> Job:
    """Let others go first: lower the priority of a job by so much; 0: as it was.

    Raises:
        NoQueueError: it is held: a change of priority makes Slurm 22.05 forget that.
        JobError: as `_queue_of`.
    """
    queue, external = _queue_of(job, task)
    if queue.is_held(external, task):
        raise NoQueueError(
            f"Job {job.label} is held: with another priority it might start.",
            cure=f"First cingulum release {job.label}, which gives it its first priority back.",
        )
    store.act(job, task, f"nice {by}", who)
    queue.nice(external, task, by)
    return _now(store, job)


def can(job: Job) -> bool:
    """Return whether the launcher of the job has a queue."""
    return isinstance(known.launcher_of(job), Queue)


def check(job: Job, task: int | None) -> None:
    """Check that a job, or one task of it, waits in a queue; raises what `_queue_of` does."""
    _queue_of(job, task)


def _queue_of(job: Job, task: int | None) -> tuple[Queue, str]:
    """Return the queue in which a job waits, and the queue's own name of it.

    Raises:
        NotYoursError: the job is another user's.
        NoQueueError: it has none, or the job waits no more.
        JobError: it is on another cluster, or its launcher has not answered yet.
    """
    known.refuse_others(job)
    if not can(job):
        raise NoQueueError(
            f"{job.launcher} has no queue: its jobs start at once.", cure=f"cingulum cancel {job.label}"
        )
    if not any(state.state in WAITING for state in chosen(job, task)):
        raise NoQueueError(
            f"Job {job.label} does not wait: it is {job.state}.", cure="Only what waits has a place in it."
        )
    launcher = known.launcher_here(job)
    assert isinstance(launcher, Queue)  # noqa: S101  (see `can`)
    return launcher, known.started(job)


def _now(store: Store, job: Job) -> Job:
    known.refresh(store, [store.get(job.key)], warn=lambda _: None)
    return store.get(job.key)
