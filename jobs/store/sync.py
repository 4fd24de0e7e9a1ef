"""Bring the store up to date with Slurm, the container engine or the process table.

Jobs whose submission was not finished are found again by their token, or recorded as LOST. Nothing is ever
submitted here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.job import Job, StateChange
from jobs.schedulers.base import ACTIVE, ENDED, Launcher, TaskState
from jobs.store import ends, submitter
from jobs.store.store import Store
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

    changes: tuple[StateChange, ...]
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
    changes: list[StateChange] = []
    for name, launcher in launchers.items():
        jobs_by_id: dict[str, Job] = {}
        replaced: list[Job] = []
        for job in sorted(jobs, key=lambda job: job.number):
            if job.external is not None and is_at(job, launcher):
                # A Slurm that lost its state counts from 1 again: an id is that of the newest job.
                if job.external in jobs_by_id:
                    replaced.append(jobs_by_id[job.external])
                jobs_by_id[job.external] = job
        if not jobs_by_id:
            continue
        try:
            answer = launcher.states(list(jobs_by_id))
            _check(name, answer)
        except LauncherError as error:
            silent[name] = error
            continue
        answers = [(job, answer.get(external, [])) for external, job in jobs_by_id.items()]
        changes += _take(store, [*answers, *((job, []) for job in replaced)], grace_s)
    return Refreshed(tuple(changes), silent)


def _take(
    store: Store, answers: Sequence[tuple[Job, Sequence[TaskState]]], grace_s: float
) -> list[StateChange]:
    """Record a launcher's answer, and decide on tasks missing from it."""
    # Of others' jobs a launcher may tell us less than it knows.
    me = submitter.user()
    gone = [(job, _unspoken(job, states) if job.user == me else []) for job, states in answers]
    since = store.missing(gone)
    news: list[tuple[Job, Sequence[TaskState]]] = []
    for (job, states), (_, unspoken) in zip(answers, gone, strict=True):
        stored = {state.task: state for state in job.tasks}
        gone_for_good = []
        for task in unspoken:
            noted = ends.noted(job, task)
            waited_s = time.time() - since.get((job.number, task), time.time())
            if _is_of_this_start(noted, stored[task]) or waited_s >= grace_s:
                gone_for_good.append(noted or _lost(job, stored[task]))
        if gone_for_good or any(stored.get(state.task) != state for state in states):
            news.append((job, [*states, *gone_for_good]))
    changes = store.record(news)
    for job, _ in news:
        ends.note(store.get(job.key))
    return changes


def _unspoken(job: Job, states: Sequence[TaskState]) -> list[int]:
    spoken = {state.task for state in states}
    return [task.task for task in job.tasks if task.state in ACTIVE and task.task not in spoken]


def _is_of_this_start(noted: TaskState | None, stored: TaskState) -> bool:
    """Return whether an end belongs to the task as last seen: then no other answer is awaited.

    After `cingulum requeue` the folder still has the end of the start before.
    """
    return noted is not None and noted.restarts >= stored.restarts


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


# Seconds after which a job that its launcher does not know was not submitted. A submitter may be killed
# while the program that it called (sbatch) goes on: that one's own time-out must have passed.
SETTLE_S = 120.0
# The same where the submitter may still be at work: it runs, or is on a host that one cannot ask.
STALE_S = 900.0
# Seconds for which a job that was said to be lost is looked for all the same.
LOOK_AGAIN_S = 600.0


def recover(
    store: Store,
    launchers: Mapping[str, Launcher],
    *,
    settle_s: float = SETTLE_S,
    stale_s: float = STALE_S,
) -> dict[str, LauncherError]:
    """Ask launchers for jobs of the calling user whose submission was not finished; adopt or lose them.

    Args:
        store: of all jobs.
        launchers: to ask, by name; jobs of others are left alone.
        settle_s: see SETTLE_S.
        stale_s: see STALE_S.

    Returns:
        the launchers that did not answer; their jobs stay as they are.

    Raises:
        StoreError: the store cannot be used, or a job was found twice.
    """
    silent: dict[str, LauncherError] = {}
    now = time.time()
    unfinished = store.list(states=["SUBMITTING"], user=submitter.user())
    unfinished += store.list(states=["LOST"], user=submitter.user(), changed_since=now - LOOK_AGAIN_S)
    for job in unfinished:
        launcher = launchers.get(job.launcher)
        if job.external is not None or launcher is None or not is_at(job, launcher):
            continue
        if job.launcher in silent:  # each question may take half a minute
            continue
        try:
            external = launcher.find(job.token)
        except LauncherError as error:
            silent[job.launcher] = error
            continue
        if external is not None:
            store.adopt(job, external)
        elif job.state == "SUBMITTING":
            at_work = submitter.is_alive(job.submitter) is not False
            if now - job.submitted >= (stale_s if at_work else settle_s):
                lose(store, job, f"its submission was not finished, and {job.launcher} {_has_it_not(job)}")
    return silent


def lose(store: Store, job: Job, reason: str) -> None:
    """Record that a job that was never adopted is LOST, and why."""
    store.record([(job, [TaskState(task.task, "LOST", reason=reason) for task in job.tasks])])


def _has_it_not(job: Job) -> str:
    if any(Path(job.folder).glob("out*.log")):
        # Slurm without accounting forgets what has ended within minutes.
        return f"no longer lists it, though it did start: its output is in {job.folder}"
    return "has no such job"


def place_of(launcher: Launcher) -> str:
    """Return the `place` within which a launcher's names of jobs are unique: a Slurm cluster, a host.

    Several clusters may share one store, and each counts its jobs from 1.
    """
    return str(getattr(launcher, "place", ""))


def is_at(job: Job, launcher: Launcher) -> bool:
    """Return whether this launcher may know the job; True where one of the two places is not known."""
    here = place_of(launcher)
    return job.launcher == launcher.name and (not job.place or not here or job.place == here)
