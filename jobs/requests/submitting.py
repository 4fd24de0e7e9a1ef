"""Submit a run, an array of runs or a chain of jobs, and preview what would be submitted."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from jobs import home
from jobs.job import Job, split_label
from jobs.requests import chains, checks, submission
from jobs.requests.known import Warn
from jobs.requests.submission_options import SubmissionOptions
from jobs.schedulers import registry, site_profiles
from jobs.schedulers.base import Launch, Launcher, Scheduler
from jobs.sites import Site
from jobs.spec import JobSpec
from jobs.store import sharing
from jobs.store.store import Store
from trainer.config import RunConfig
from trainer.errors import CingulumError, JobError


class SubmissionRequest(SubmissionOptions):
    """What is asked for: a YAML file of a run, `key=value` changes of it, and options."""

    config: Path
    overrides: tuple[str, ...] = ()


class Checks(Protocol):
    """What must be looked at where the trainer is known; each raises a CingulumError."""

    def folder(self, config: RunConfig, kind: str, *, has_data: bool) -> None:
        """Check that the run folder can be used."""

    def plan(self, config: RunConfig, ranks: int) -> None:
        """Check the file that says how the network is divided over `ranks` ranks, where one is named."""

    def crossval(
        self, path: Path, overrides: Sequence[str], *, folds: int, seeds: int, has_data: bool
    ) -> None:
        """Check that a cross-validation can be run."""

    def unwritten(self, chain: Sequence[JobSpec]) -> None:
        """Check that no process trains in a run folder of these jobs."""


@dataclass(frozen=True)
class PreparedJobs:
    """Jobs that can be submitted, one after the other.

    Attributes:
        run: the configuration that they will read.
        chain: the jobs.
        site: where they run.
        launcher: what starts them.
        after: ids of jobs that the first one waits for.
        shared: groups that may look at the jobs.
    """

    run: checks.Checked
    chain: Sequence[JobSpec]
    site: Site
    launcher: str
    after: tuple[str, ...]
    shared: tuple[str, ...]


def prepare(request: SubmissionRequest, looks: Checks) -> PreparedJobs:
    """Check a request, and make its jobs; nothing is touched.

    Raises:
        ConfigError, JobError, RunError, ShardError: it cannot be done.
    """
    if request.launcher == "mpirun" and request.image is not None:
        raise JobError(
            "--launcher mpirun runs in no image.",
            cure=f"Choose {' or '.join(one for one in registry.names() if one != request.launcher)}.",
        )
    if request.least_nodes is not None and not request.shrink:
        raise JobError("--least-nodes says how far a job may shrink.", cure="Add --shrink.")
    kind = chains.kind_of(request.kind, folds=request.folds)
    profile = site_profiles.load(request.site)
    shared = _shared(request, profile)
    resources = chains.main(request, profile, kind)
    follows = chains.following(request.then)
    has_data = request.source is None and not request.after
    run = checks.load(
        request.config,
        request.overrides,
        kind=kind,
        resources=resources,
        has_data=has_data,
        any_size=registry.is_scheduler(request.launcher),
    )
    config, folds = run.config, request.folds
    looks.folder(config, kind, has_data=has_data)
    if kind in ("train", "crossval"):
        looks.plan(config, resources.nodes * resources.ranks_per_node)
    if kind == "crossval" and (folds := folds or config.data.split.folds):
        looks.crossval(request.config, request.overrides, folds=folds, seeds=request.seeds, has_data=has_data)
    main = JobSpec(
        name=config.name,
        kind=kind,
        tasks=(("cingulum",),),
        folder=str(Path.cwd()),
        resources=resources,
        requeues=request.requeues,
        shrink=request.shrink,
        grace_s=request.grace_s,
        image=request.image,
        # A step of asynchronous training is one worker's: any number of them will do.
        global_batch=None
        if config.train.strategy.is_asynchronous or not config.train.strategy.divides_samples
        else config.train.global_batch // config.train.accumulation,
        outlives=config.train.strategy.is_asynchronous,
        binds=run.binds,
        readonly=run.readonly,
        run=os.path.realpath(config.folder),
    )
    chain = chains.chain(
        chains.Wanted(
            config=str(run.kept),
            run=str(config.folder),
            shards=str(config.data.shards),
            first_seed=config.train.seed,
            program=_program(request),
            name=request.name or config.name,
            job=main,
            kind=kind,
            folds=folds,
            seeds=request.seeds,
            at_once=request.at_once,
            then=follows,
            source=request.source,
            import_options=_words(request.import_options),
            import_tasks=request.import_tasks,
            sides={one: chains.side(request, profile, one) for one in profile.kinds},
        )
    )
    return PreparedJobs(run, chain, profile, request.launcher, tuple(request.after), shared)


def started_by(prepared: PreparedJobs) -> Launcher:
    """Return the launcher of these jobs.

    Raises:
        JobError: a job in `after` is not an id.
    """
    launcher = registry.named(prepared.launcher)
    for label in prepared.after:
        split_label(label)
    return launcher


def preview(prepared: PreparedJobs) -> Preview:
    """Return what `submit` would do; change nothing."""
    launcher = started_by(prepared)
    planned = plans(launcher, prepared.chain, prepared.site, prepared.after)
    return Preview(str(prepared.run.kept), prepared.run.text, planned)


def ask_queue(prepared: PreparedJobs) -> list[str]:
    """Ask the launcher whether it would take these jobs, and return its words; nothing is submitted.

    Raises:
        JobError, LauncherError: it would not, or does not answer.
    """
    launcher = started_by(prepared)
    said = [launcher.preflight(spec, prepared.site) for spec in prepared.chain]
    return [words for words in said if words]


def submit(
    prepared: PreparedJobs,
    store: Store,
    looks: Checks,
    warn: Warn,
    *,
    who: str,
    tokens: Sequence[str] = (),
) -> list[Job]:
    """Submit one after the other, each but the first to wait for the one before it.

    Args:
        prepared: what to submit.
        store: of all jobs.
        looks: see `Checks`.
        warn: see `known.refresh`.
        who: asks for it, as the jobs' history tells.
        tokens: of the jobs; those that the store has already were submitted before, and are left as they are.
            Default: new ones.

    Raises:
        CingulumError: of the job that could not be submitted; its cure names those that were.
    """
    launcher, chain = started_by(prepared), prepared.chain
    made = [job for token in tokens if (job := store.of_token(token)) is not None]
    if not made:
        if prepared.after:
            submission.externals(store, launcher, dataclasses.replace(chain[0], after=prepared.after))
        else:
            checks.alone(store, chain, warn)
            looks.unwritten(chain)
        ask_queue(prepared)
        prepared.run.keep()
    for number in range(len(made), len(chain)):
        waits_for = (made[-1].label,) if made else prepared.after
        spec = dataclasses.replace(chain[number], after=waits_for)
        token = tokens[number] if tokens else None
        try:
            made.append(
                submission.submit(
                    store, launcher, spec, prepared.site, token=token, who=who, shared=prepared.shared
                )
            )
        except CingulumError as error:
            if made:
                labels = " ".join(job.label for job in made)
                cure = f"{error.cure} " if error.cure else ""
                error.cure = f"{cure}Submitted before it: {labels} (cingulum cancel {labels} ends them)."
            raise
    return made


def _shared(request: SubmissionRequest, site: Site) -> tuple[str, ...]:
    """Return the groups that may look at the jobs; of the site's those that the user is in."""
    if request.share is not None:
        return sharing.checked(request.share)
    return tuple(name for name in site.share if name in sharing.groups()) if site.share else ()


def _program(request: SubmissionRequest) -> tuple[str, ...]:
    """Words that start `cingulum` where the job runs: in an image its own, else ours, which all hosts see."""
    if request.image is not None or request.launcher in ("docker", "apptainer"):
        return ("cingulum",)
    beside = Path(sys.executable).parent / "cingulum"
    return (str(beside),) if beside.is_file() else (sys.executable, "-m", "cingulum")


def _words(text: str | None) -> tuple[str, ...]:
    """A text of options as words, quoted as for a shell.

    Raises:
        JobError: a quote is not closed.
    """
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise JobError(f"--import-options {text!r}: {error}.", cure="Quote them as in a shell.") from None


# In place of the token, which is drawn anew for each submission.
NO_TOKEN = "0" * 16


@dataclass(frozen=True)
class Planned:
    """One job that would be submitted, with the jobs that it would wait for."""

    spec: JobSpec
    folder: str
    launch: Launch
    command: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class Preview:
    """All that would be done: the configuration that would be kept (its text as JSON), and the jobs."""

    kept: str
    text: str
    jobs: Sequence[Planned]

    def as_json(self) -> dict[str, Any]:
        """Return the preview with the text of every file."""
        return {
            "config": {"path": self.kept, "text": self.text},
            "jobs": [
                {
                    "name": job.spec.name,
                    "kind": job.spec.kind,
                    "after": list(job.after),
                    "tasks": [list(task) for task in job.spec.tasks],
                    "folder": job.spec.folder,
                    "job_folder": job.folder,
                    "resources": dataclasses.asdict(job.spec.resources),
                    "files": dict(job.launch.files),
                    "command": list(job.command),
                    "environment": dict(job.launch.environment),
                }
                for job in self.jobs
            ],
        }


def plans(launcher: Launcher, chain: Sequence[JobSpec], site: Site, after: Sequence[str]) -> list[Planned]:
    """Return what submitting these jobs in order would do; change nothing."""
    folder = home.planned_path(NO_TOKEN)
    made: list[Planned] = []
    for spec in chain:
        waits_for = (f"<id of {made[-1].spec.name}>",) if made else tuple(after)
        launch = launcher.plan(spec, site, folder, NO_TOKEN)
        command = launch.command
        if registry.is_scheduler(launcher.name):
            command = tuple(cast(Scheduler, launcher).after(command, waits_for))
        made.append(Planned(spec, str(folder), launch, command, waits_for))
    return made
