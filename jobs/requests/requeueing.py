"""Save jobs and start them again, and note who asked for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from jobs import ends, terms
from jobs.job import Job
from jobs.launchers.base import ENDED, TaskState
from jobs.requests import known
from jobs.store import Store
from trainer import atomic
from trainer.errors import CingulumError, JobError


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
    with _forgotten([terms.failures(Path(job.folder), one, is_array=job.spec.is_array) for one in ended]):
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
