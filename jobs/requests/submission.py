"""Submit a job so that a kill at any point loses nothing and submits nothing twice.

1. A row SUBMITTING with the token and all of the job is in the store, for good.
2. The job's private folder is made.
3. The launcher starts the job, which carries the token.
4. The launcher's answer is in the store, for good.

Whoever dies between 1 and 4 leaves a row that `jobs.store.sync` completes: it looks for the token. Nothing is
ever started from a row, so nothing is started twice. docs/decisions/0013-jobs.md has the reasons.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from jobs.home import job_folder, job_path, new_token
from jobs.job import Job, split_label
from jobs.schedulers.base import Launcher, NoAnswer
from jobs.sites import Site
from jobs.spec import JobSpec
from jobs.store import sharing
from jobs.store.notes import SPEC, note
from jobs.store.store import Store
from jobs.store.sync import SETTLE_S, is_at, lose, place_of, refresh
from trainer import atomic, errors
from trainer.errors import CingulumError, JobError, LauncherError, StoreError


def submit(
    store: Store,
    launcher: Launcher,
    spec: JobSpec,
    site: Site,
    *,
    token: str | None = None,
    who: str | None = None,
    shared: Sequence[str] = (),
) -> Job:
    """Start a job and return it as stored.

    Args:
        store: where it is noted before it is started.
        launcher: what starts it.
        spec: what to run; the jobs that it waits for (`after`) are in the store.
        site: where.
        token: of the submission; None: a new one.
        who: asked for it, as the job's history tells.
        shared: groups that may look at it.

    Raises:
        JobError: the job cannot be run as it is, or waits for a job that failed; nothing was noted or
            started.
        LauncherError: the launcher refused: a row of state LOST says why. Or it did not answer: where it
            started the job all the same, `jobs.store.sync` finds it.
        TakenError: a job of this token is submitted by another process; nothing was started here.
        StoreError: the store cannot be used. If it failed after the start, `jobs.store.sync` finds the job.
    """
    waits_for = externals(store, launcher, spec)
    launcher.preflight(spec, site)
    token = token or new_token()
    launch = launcher.plan(spec, site, job_path(token), token)
    job = store.add(
        token,
        spec,
        launcher=launcher.name,
        site=site.name,
        folder=job_path(token),
        place=place_of(launcher),
        who=who,
        shared=shared,
    )
    try:
        folder = job_folder(token)
        atomic.write_private(folder / SPEC, spec.to_json() + "\n")
        note(job)
        external = launcher.start(launch, folder, waits_for)
    except (CingulumError, OSError) as error:
        return _after_failure(
            store, launcher, job, errors.of_files(error) if isinstance(error, OSError) else error
        )
    try:
        adopted = store.adopt(job, external)
    except StoreError as error:
        again = f"The job was started, as {external}: do not submit it again. `cingulum jobs` finds it."
        error.cure = f"{error.cure} {again}" if error.cure else again
        raise
    with contextlib.suppress(OSError):  # the job runs; without this its launcher is asked by the token
        note(adopted)
    return adopted


def externals(store: Store, launcher: Launcher, spec: JobSpec) -> list[str]:
    """Return the launcher's names of the jobs that this one waits for; those that have completed need no
    waiting.

    Raises:
        JobError: one is not known, failed, belongs to another launcher or cluster, or is not submitted yet.
    """
    launchers: Mapping[str, Launcher] = {launcher.name: launcher}
    names = []
    for text in spec.after:
        job = store.get(text, sharing.viewer())
        if split_label(text)[1] is not None:
            raise JobError(
                f"{text} is one task of a job; a job waits for whole jobs.", cure=f"Give {job.label}."
            )
        if not is_at(job, launcher):
            raise JobError(
                f"A job of {launcher.name} cannot wait for {job.label}, which belongs to another system.",
                cure=f"Submit both with the same launcher, or `cingulum wait {job.label}` first.",
            )
        if job.state != "COMPLETED":  # it may have been started again since
            refresh(store, launchers, None if job.external is None else [job])
            job = store.get(job.key)
        if job.state == "COMPLETED":
            continue
        if not job.active:
            raise JobError(
                f"Job {job.label} ended {job.state}; a job that waits for it would never start.",
                cure=f"`cingulum show {job.label}` says why; `cingulum requeue {job.label}` starts it again.",
            )
        if job.external is None:
            raise JobError(
                f"Job {job.label} is being submitted, so nothing can wait for it yet.",
                cure="Try again when `cingulum jobs` shows its id.",
            )
        names.append(job.external)
    return names


def _after_failure(store: Store, launcher: Launcher, job: Job, error: CingulumError) -> Job:
    """Return the job, if it was started though its launcher failed; else raise the error again, with the job
    LOST.

    Where nobody can know yet, the row stays SUBMITTING, and recovery asks again.
    """
    unknown = isinstance(error, NoAnswer)
    try:
        external = launcher.find(job.token)
    except LauncherError:
        external, unknown = None, True
    if external is not None:
        return store.adopt(job, external)
    if unknown:
        again = f"It may have the job: `cingulum jobs` finds it, or says LOST after {SETTLE_S:.0f} s."
        error.cure = f"{error.cure} {again}" if error.cure else again
    else:
        lose(store, job, f"was not started: {error.message}")
    raise error
