"""What users do with jobs: submit, check, requeue, hold, release, lower the priority; and its routes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from cingulum.service import form, outlooks
from cingulum.service.api import ERRORS, Identity
from cingulum.service.jobs_now import JobsNow
from cingulum.service.schema import Detail, Failure, JobRowView
from jobs.requests import actions, again, known, once, submitting
from jobs.requests.actions import MOST_NICE
from jobs.requests.submission_options import MOST_NAMES, SubmissionOptions, Text
from jobs.requests.submitting import Checks, PreparedJobs, SubmissionRequest
from jobs.schedulers.base import SUPERVISOR
from jobs.spec import JobSpec
from jobs.store import sharing
from trainer.config import RunConfig
from trainer.errors import CingulumError


class Submission(SubmissionOptions):
    """What is asked for: the text of a configuration, changes of it, and the options of `cingulum submit`."""

    config: Annotated[str, Field(max_length=60_000, description="YAML of a run.")]
    overrides: Annotated[tuple[Text, ...], Field(max_length=MOST_NAMES)] = ()

    def request(self, config: Path) -> SubmissionRequest:
        """Return it as the command line would ask, with the file that holds the configuration."""
        return SubmissionRequest(config=config, **self.model_dump(exclude={"config"}))

    def digest(self) -> str:
        """Return the SHA-256 of all that is asked for."""
        return hashlib.sha256(self.model_dump_json().encode("utf-8", "replace")).hexdigest()


class PlannedJob(BaseModel):
    """A job that would be submitted. `environment` has names alone."""

    name: str
    kind: str
    after: list[str]
    tasks: list[list[str]]
    folder: str
    job_folder: str
    resources: dict[str, Any]
    files: dict[str, str]
    command: list[str]
    environment: list[str]


class PredictedTime(BaseModel):
    """How long each task of the training takes: `seconds` of the `epochs` to come, null where that is not
    known, by what (`source`), the time limit, and the `starts` that it takes; `said` and `warning` are for
    people.
    """

    seconds: float | None
    epochs: int
    source: str
    limit_s: int | None
    starts: int | None
    tasks: int
    said: str
    warning: str | None


class SubmissionCheck(BaseModel):
    """What would be done, or the error: `config` is all of the configuration, defaults included, `values` has
    it by dotted keys, `predicted` how long it takes, and `queue` what the launcher says, where it was asked.
    """

    error: Failure | None = None
    config: str | None = None
    values: dict[str, str] = {}
    folder: str
    jobs: list[PlannedJob] = []
    predicted: PredictedTime | None = None
    queue: list[str] = []


class Submitted(BaseModel):
    """The jobs of a submission, in order."""

    jobs: list[JobRowView]


class PlanOutlook(BaseModel):
    """What dividing the network over the ranks costs, as `cingulum plan` prints it: memory, bytes, steps."""

    text: str


class Nice(BaseModel):
    """By how much the priority is lowered; 0: as it was."""

    model_config = ConfigDict(extra="forbid")

    by: Annotated[int, Field(ge=0, le=MOST_NICE)]


class Sharing(BaseModel):
    """Unix groups that may look at a job, or with `stop` no longer may."""

    model_config = ConfigDict(extra="forbid")

    groups: Annotated[list[Text], Field(min_length=1, max_length=MOST_NAMES)]
    stop: bool = False


Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=8,
        max_length=200,
        description="Drawn for each submission; by the same key nothing is submitted twice.",
    ),
]


class Looks(Checks, Protocol):
    """What the command line knows and submitting needs."""

    def command_lines(self, chain: Sequence[JobSpec]) -> None:
        """Check that `cingulum` understands what the jobs will call it with; raises JobError."""

    def predicted(
        self, request: submitting.SubmissionRequest, prepared: PreparedJobs
    ) -> dict[str, Any] | None:
        """Return how long each task takes, as `PredictedTime` has it; None where nothing is trained."""


def routes(now: JobsNow, looks: Looks) -> APIRouter:
    """Return the routes by which jobs are submitted and acted on."""
    router = APIRouter(prefix="/api/v1/jobs", tags=["acting"], responses=ERRORS)

    def prepared(submission: Submission, config: Path) -> PreparedJobs:
        found = submitting.prepare(submission.request(config), looks)
        looks.command_lines(found.chain)
        return found

    @router.post("", status_code=201)
    def submit(request: Request, submission: Submission, key: Key = None) -> Submitted:
        """Submit a run, an array of runs or a chain of jobs, as `cingulum submit` does."""
        with again.as_file(submission.config) as config:
            made = once.submit(
                lambda: prepared(submission, config),
                now.store,
                looks,
                _silent,
                who=request.state.caller.who,
                key=key,
                digest=submission.digest(),
            )
        return Submitted(jobs=[now.row(job) for job in made])

    @router.post("/check")
    def check(
        submission: Submission,
        queue: Annotated[bool, Query(description="Ask the launcher, too: takes seconds.")] = False,
    ) -> SubmissionCheck:
        """Return what submitting would do, or why it cannot be done; nothing is changed."""
        outcome = SubmissionCheck(folder=str(Path.cwd()))
        try:
            with again.as_file(submission.config) as config:
                preparation = prepared(submission, config)
                outcome.config, outcome.values = preparation.run.text, form.values(preparation.run.config)
                outcome.jobs = _planned(submitting.preview(preparation).as_json())
                needed = looks.predicted(submission.request(config), preparation)
                outcome.predicted = None if needed is None else PredictedTime(**needed)
                if queue:
                    outcome.queue = submitting.ask_queue(preparation)
        except CingulumError as error:
            outcome.error = Failure(code=error.code, message=error.message, cure=error.cure, **error.objects)
        return outcome

    @router.post("/plan")
    def plan(submission: Submission) -> PlanOutlook:
        """Return what dividing the network over the ranks would cost, memory included: takes seconds."""
        with again.as_file(submission.config) as config:
            resources = prepared(submission, config).chain[-1 if submission.source else 0].resources
            ranks = resources.nodes * resources.ranks_per_node
            return PlanOutlook(text=outlooks.of(config, submission.overrides, ranks))

    @router.get("/schema")
    def schema() -> dict[str, Any]:
        """Return the JSON schemas of a configuration and of a submission, and the fields of the form."""
        return {
            "config": RunConfig.model_json_schema(),
            "submission": Submission.model_json_schema(),
            "fields": [field.model_dump() for field in form.fields()],
        }

    @router.get("/{identity}/submission")
    def submission(identity: Identity) -> Submission:
        """Return what a training was submitted with, to be submitted again with changes."""
        return Submission(**again.asked(now.find(identity)[0]))

    @router.post("/{identity}/requeue")
    def requeue(request: Request, identity: Identity) -> Detail:
        """Start a job, or one task of it, again: what runs saves first."""
        job, task = _chosen(now, identity)
        return now.detail(actions.requeue(now.store, job, task, who=request.state.caller.who, warn=_silent))

    @router.post("/{identity}/hold")
    def hold(request: Request, identity: Identity) -> Detail:
        """Keep a job, or one task of it, waiting in the queue."""
        job, task = _chosen(now, identity)
        return now.detail(actions.hold(now.store, job, task, who=request.state.caller.who))

    @router.post("/{identity}/release")
    def release(request: Request, identity: Identity) -> Detail:
        """Let a job that was held start."""
        job, task = _chosen(now, identity)
        return now.detail(actions.release(now.store, job, task, who=request.state.caller.who))

    @router.post("/{identity}/nice")
    def nice(request: Request, identity: Identity, order: Nice) -> Detail:
        """Lower the priority of a job that waits, so that others go first; 0: as it was."""
        job, task = _chosen(now, identity)
        return now.detail(actions.nice(now.store, job, task, order.by, who=request.state.caller.who))

    @router.post("/{identity}/share")
    def share(request: Request, identity: Identity, shares: Sharing) -> Detail:
        """Let Unix groups of the user's look at a job, or no longer."""
        job, _ = now.find(identity)
        known.refuse_others(job)
        names = tuple(shares.groups) if shares.stop else sharing.checked(shares.groups)
        now.store.share(job, names, request.state.caller.who, stop=shares.stop)
        return now.detail(now.find(identity)[0])

    return router


def _chosen(now: JobsNow, identity: str) -> tuple[Any, int | None]:
    """Return the user's own job, as its launcher knows it now, and the task that is meant."""
    known.refuse_others(now.find(identity)[0])
    return known.current(now.store, identity, warn=_silent)


def _planned(preview: dict[str, Any]) -> list[PlannedJob]:
    """Return the jobs of a preview without what is the same for all: the files that look after a job."""
    return [
        PlannedJob(
            **{
                **job,
                "files": {
                    name: text for name, text in job["files"].items() if not name.startswith(f"{SUPERVISOR}/")
                },
                "environment": sorted(job["environment"]),
            }
        )
        for job in preview["jobs"]
    ]


def _silent(warning: str) -> None:
    """Warnings of launchers are on the pages already."""
