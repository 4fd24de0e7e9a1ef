"""Bring the store up to date with Slurm, the container engine or the process table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs import ends, submitter
from jobs.job import Change, Job
from jobs.launchers.base import ACTIVE, ENDED, Launcher, TaskState
from jobs.recovery import is_at, recover
from jobs.store import Store
from trainer.errors import LauncherError

# Seconds for which a task must be unknown to its launcher, at every refresh, before it is said to be lost.
# The end of one that is noted in the job's folder is believed at once.
GRACE_S = 120.0
# Seconds for which a job that has ended is asked for all the same: Slurm may start it again.
AGAIN_S = 600.0


@dataclass(frozen=True)
class Refreshed:
    """Result of a refresh.

    Attributes:
        changes: what is new, as in the history.
        silent: launchers that did not answer, and why; their jobs are as they were.
    """

    changes: tuple[Change, ...]
    silent: Mapping[str, LauncherError]


def of_interest(store: Store) -> list[Job]:
    """Return the calling user's jobs that wait, run, ended a short time ago or may run again."""
    mine, since = submitter.user(), time.time() - AGAIN_S
    ended = [*store.list(states=ENDED, user=mine, changed_since=since), *store.asked_again(mine)]
    return [*store.list(states=ACTIVE, user=mine), *{job.number: job for job in ended}.values()]


def refresh(
    store: Store,
    launchers: Mapping[str, Launcher],
    jobs: Sequence[Job] | None = None,
    *,
    grace_s: float = GRACE_S,
) -> Refreshed:
    """Ask launchers for jobs and record what has changed.

    Args:
        store: of all jobs.
        launchers: to ask, by name; jobs of others are left alone.
        jobs: to ask for; None: those `of_interest`, after unfinished submissions have been looked for.
        grace_s: see GRACE_S.

    Raises:
        StoreError: the store cannot be used.
    """
    silent: dict[str, LauncherError] = {}
    if jobs is None:
        silent.update(recover(store, launchers))
        jobs = of_interest(store)
    changes: list[Change] = []
    for name, launcher in launchers.items():
        asked: dict[str, Job] = {}
        replaced: list[Job] = []
        for job in sorted(jobs, key=lambda job: job.number):
            if job.external is not None and is_at(job, launcher):
                # A Slurm that lost its state counts from 1 again: an id is that of the newest job.
                if job.external in asked:
                    replaced.append(asked[job.external])
                asked[job.external] = job
        if not asked:
            continue
        try:
            answer = launcher.states(list(asked))
            _check(name, answer)
        except LauncherError as error:
            silent[name] = error
            continue
        answers = [(job, answer.get(external, [])) for external, job in asked.items()]
        changes += _take(store, [*answers, *((job, []) for job in replaced)], grace_s)
    return Refreshed(tuple(changes), silent)


def _take(store: Store, answers: Sequence[tuple[Job, Sequence[TaskState]]], grace_s: float) -> list[Change]:
    """Record a launcher's answer, and decide on tasks missing from it."""
    # Of others' jobs a launcher may tell us less than it knows.
    me = submitter.user()
    gone = [(job, _unspoken(job, states) if job.user == me else []) for job, states in answers]
    since = store.missing(gone)
    found: list[tuple[Job, Sequence[TaskState]]] = []
    for (job, states), (_, unspoken) in zip(answers, gone, strict=True):
        known = {state.task: state for state in job.tasks}
        gone_for_good = []
        for task in unspoken:
            noted = ends.noted(job, task)
            waited_s = time.time() - since.get((job.number, task), time.time())
            if _is_of_this_start(noted, known[task]) or waited_s >= grace_s:
                gone_for_good.append(noted or _lost(job, known[task]))
        if gone_for_good or any(known.get(state.task) != state for state in states):
            found.append((job, [*states, *gone_for_good]))
    changes = store.record(found)
    for job, _ in found:
        ends.note(store.get(job.key))
    return changes


def _unspoken(job: Job, states: Sequence[TaskState]) -> list[int]:
    spoken = {state.task for state in states}
    return [task.task for task in job.tasks if task.state in ACTIVE and task.task not in spoken]


def _is_of_this_start(noted: TaskState | None, known: TaskState) -> bool:
    """Return whether an end belongs to the task as last seen: then no other answer is awaited.

    After `cingulum requeue` the folder still has the end of the start before.
    """
    return noted is not None and noted.restarts >= known.restarts


def _lost(job: Job, task: TaskState) -> TaskState:
    """Return the end of a task that its launcher has forgotten, and that left no record of how it ended."""
    seen = f"it was last seen {task.state}" + (f" on {', '.join(task.hosts)}" if task.hosts else "")
    return TaskState(
        task.task,
        "LOST",
        reason=f"{job.launcher} no longer lists {job.label}; {seen}",
        hosts=task.hosts,
        restarts=task.restarts,
        started=task.started,
        ended=time.time(),
    )


def _check(name: str, answer: Mapping[str, Sequence[TaskState]]) -> None:
    for external, states in answer.items():
        for state in states:
            if state.state not in ACTIVE and state.state not in ENDED:
                raise LauncherError(
                    f"{name} reports a state of job {external} that is unknown: {state.state!r}."
                )
