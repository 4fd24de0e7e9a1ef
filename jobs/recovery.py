"""Resolve jobs whose submission was not finished: found again by their token, or LOST.

Nothing is ever submitted here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from jobs import submitter
from jobs.job import Job
from jobs.launchers.base import Launcher, TaskState
from jobs.store import Store
from trainer.errors import LauncherError

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
