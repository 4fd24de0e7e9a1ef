"""Act on submitted jobs, and record who asked: hold, release, lower the priority, requeue, cancel."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from jobs.job import Job
from jobs.local import attended_files
from jobs.requests import describing, known
from jobs.schedulers.base import ACTIVE, ENDED, WAITING, Queue, TaskState
from jobs.store import ends
from jobs.store.store import Store
from trainer import atomic
from trainer.errors import CingulumError, JobError, LauncherError

# Bounds of Slurm's `Nice` (man scontrol) for users.
MOST_NICE = 2**31 - 4


class NoQueueError(JobError, code="NO_QUEUE"):
    """The launcher of a job has no queue, or the job does not wait in it."""


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
    ended = [state.task for state in states if state.state in ENDED and state.state != "COMPLETED"]
    with _forgotten(
        [attended_files.failures(Path(job.folder), one, is_array=job.spec.is_array) for one in ended]
    ):
        launcher.requeue(external, task)
    for one in ended:
        store.requeue(store.get(job.key), one)
    ends.note(store.get(job.key))  # those of the starts before are of no use any more
    known.refresh(store, [store.get(job.key)], warn=warn)
    return store.get(job.key)


def chosen(job: Job, task: int | None) -> list[TaskState]:
    """Return the states of the task, or of all."""
    return [state for state in job.tasks if task in (None, state.task)]


@contextlib.contextmanager
def _forgotten(failures: Sequence[Path]) -> Iterator[None]:
    """Remove the failures of tasks while they are asked to start again, so that they may fail as often as new
    ones, whoever is killed meanwhile; put them back where the launcher refuses.
    """
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in failures if path.exists()}
    for path in texts:
        path.unlink(missing_ok=True)
    try:
        yield
    except CingulumError:
        for path, text in texts.items():
            atomic.write_private(path, text)
        raise


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
        states = known.launcher_of(job).states([external]).get(external, [])
    except LauncherError:
        return  # the order to end was given all the same
    spoken = {state.task for state in states}
    gone = [
        TaskState(
            state.task, "CANCELLED", reason="before it started", restarts=state.restarts, ended=time.time()
        )
        for state in job.tasks
        if task in (None, state.task) and state.state in WAITING and state.task not in spoken
    ]
    store.record([(job, [*states, *gone])])
    ends.note(store.get(job.key))
