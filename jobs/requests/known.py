"""Jobs that the store knows, as their launchers know them now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobs.home import home
from jobs.job import Job, split_label
from jobs.schedulers import registry
from jobs.schedulers.base import Launcher
from jobs.store import repair, sharing, submitter, sync
from jobs.store.store import Store
from trainer.errors import JobError


class NotYoursError(JobError, code="NOT_YOURS"):
    """A job of another user, which only that user may change."""


# Shows a line to the user.
Warn = Callable[[str], None]


def opened(warn: Warn) -> Store:
    """Return the user's store; one that was removed is rebuilt from the jobs' folders."""
    store = Store()
    if repair.is_lost(store):
        warn(f"warning: {store} knew no job, though there are folders of jobs")
        return rebuilt(warn)
    return store


def rebuilt(warn: Warn) -> Store:
    """Rebuild the user's store from the jobs' folders, report what was done, and return it."""
    rebuild = repair.rebuild()
    if rebuild.aside is not None:
        warn(f"the damaged store is kept as {rebuild.aside}")
    warn(f"{len(rebuild.taken_in)} jobs taken into {rebuild.store} from {home() / 'jobs'}")
    for title, lines in (("no job can be read in", rebuild.unreadable), ("no answer from", rebuild.silent)):
        for line in lines[:3]:
            warn(f"warning: {title} {line}")
        if len(lines) > 3:
            warn(f"warning: and {len(lines) - 3} more")
    return rebuild.store


def refresh(
    store: Store, jobs: Sequence[Job] | None = None, *, warn: Warn, warned: set[str] | None = None
) -> None:
    """Update the state of these jobs, or of all that matter; warn of launchers that do not answer.

    Args:
        store: of all jobs.
        jobs: to ask for; None: those that wait, run or ended a short time ago.
        warn: gets a line for each launcher that does not answer.
        warned: what the same caller has said before, and does not say again; brought up to date.
    """
    chosen = sync.of_interest(store) if jobs is None else jobs
    launchers = {name: registry.named(name) for name in sorted({job.launcher for job in chosen})}
    found = sync.refresh(store, launchers, jobs)
    warnings = {
        f"{name} did not answer; what follows may be out of date: {e.message}"
        for name, e in found.silent.items()
    }
    for job in chosen:
        if job.active and not sync.is_at(job, launchers[job.launcher]):
            warnings.add(
                f"jobs of {job.launcher} on {job.place} can be asked for only there; these may be out of date"
            )
    for warning in sorted(warnings - (warned or set())):
        warn(f"warning: {warning}")
    if warned is not None:
        warned.clear()
        warned.update(warnings)


def current(store: Store, text: str, *, warn: Warn, warned: set[str] | None = None) -> tuple[Job, int | None]:
    """Return the job of an id, as its launcher knows it now, and the task where the id names one.

    It is the user's own, or shared with a group that the user is in.

    Args:
        store: of all jobs.
        text: an id.
        warn: see `refresh`.
        warned: see `refresh`.

    Raises:
        JobError: there is no such job or task.
    """
    _, task = split_label(text)
    job = store.get(text, sharing.viewer())
    if task is not None and (not job.spec.is_array or task >= len(job.tasks)):
        raise JobError(
            f"Job {job.label} has no task {task}.",
            cure=f"Its tasks are {job.label}_0 to {job.label}_{len(job.tasks) - 1}."
            if job.spec.is_array
            else "It is not an array.",
        )
    # A submission that was cut short is looked for by its token, which only a refresh of everything does.
    refresh(store, None if job.external is None else [job], warn=warn, warned=warned)
    return store.get(job.key), task


def refuse_others(job: Job) -> None:
    """Raise NotYoursError where a job is not the calling user's."""
    if job.user != submitter.user():
        raise NotYoursError(
            f"Job {job.label} is {job.user}'s, and only shared with you.", cure=f"Ask {job.user}."
        )


def started(job: Job) -> str:
    """Return the launcher's own name of a job.

    Raises:
        JobError: it has none yet.
    """
    if job.external is None and job.active:
        raise JobError(
            f"Job {job.label} is {job.state}: {job.launcher} has not answered yet.",
            cure="`cingulum jobs` looks for it; try again in a minute.",
        )
    if job.external is None:
        raise JobError(f"Job {job.label} is {job.state}: {job.reason}.", cure="Submit it again.")
    return job.external


def launcher_of(job: Job) -> Launcher:
    """Return the launcher that started the job."""
    return registry.named(job.launcher)


def launcher_here(job: Job) -> Launcher:
    """Return the launcher of the job, to act on it, or to wait for it.

    Raises:
        JobError: it is on another cluster, where its id is that of another job or of none.
    """
    launcher = launcher_of(job)
    if not sync.is_at(job, launcher):
        variable = getattr(launcher, "place_variable", "")
        or_with = f", or with {variable}={job.place}" if variable else ""
        raise JobError(
            f"Job {job.label} is on {job.place}; this is {sync.place_of(launcher)}.",
            cure=f"Do it on a host of {job.place}{or_with}.",
        )
    return launcher
