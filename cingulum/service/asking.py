"""What programs and the form ask to be submitted, and what is answered, as OpenAPI describes it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from cingulum.service.schema import Failure, JobRowView
from jobs.requests.actions import MOST_NICE
from jobs.requests.submitting import SubmissionRequest
from jobs.submission_options import MOST_NAMES, SubmissionOptions, Text


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
