"""Answers of the API, as its OpenAPI description has them. Times are ISO 8601 in UTC."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class ProgressView(BaseModel):
    """How far a run is: epochs done, steps, the part of all steps (0 to 1), seconds that are left."""

    epoch: int
    epochs: int
    step: int | None = None
    steps: int | None = None
    part: float
    seconds_left: float | None = None


class Best(BaseModel):
    """The best epoch so far, by the metric that the run goes by, and all its values."""

    metric: str
    value: float
    epoch: int
    values: dict[str, float]


class Measured(BaseModel):
    """A figure of an evaluation, and its 95 % interval where there is one."""

    value: float
    interval: tuple[float, float] | None


class JobRowView(BaseModel):
    """A job in a list. `key` names it for ever; `id` is what Slurm calls it. `mine`: the user's own."""

    key: str
    id: str
    name: str
    user: str
    mine: bool
    kind: str
    launcher: str
    state: str
    reason: str
    exit_code: int | None
    hosts: list[str]
    submitted: str
    changed: str
    tasks: int
    tasks_completed: int
    strategy: str | None = None
    progress: ProgressView | None = None
    best: Best | None = None


class JobListView(BaseModel):
    """One page of the list: how many jobs match on all pages, and what may be out of date."""

    jobs: list[JobRowView]
    total: int
    offset: int
    limit: int
    warnings: list[str]


class TaskView(BaseModel):
    """A task of a job; the job itself, where it is not an array. `log`: it has one."""

    id: str
    task: int
    state: str
    exit_code: int | None
    reason: str
    hosts: list[str]
    restarts: int
    started: str | None
    ended: str | None
    command: list[str]
    failures: list[str]


class ChangeView(BaseModel):
    """A change of the state of a task."""

    task: int
    time: str
    state: str
    exit_code: int | None
    reason: str
    restarts: int


class ActionView(BaseModel):
    """What a user did with the job; `task` null: with all of it."""

    task: int | None
    time: str
    action: str
    who: str


class Detail(JobRowView):
    """All of a job. `environment` has names alone: values may be secrets."""

    site: str
    after: list[str]
    resources: dict[str, Any]
    environment: list[str]
    folder: str
    job_folder: str
    run: str | None
    shared_with: list[str]
    task_list: list[TaskView]
    changes: list[ChangeView]
    actions: list[ActionView]
    warnings: list[str]


class Checkpoint(BaseModel):
    """A checkpoint: step, seconds since 1970, bytes."""

    step: int
    time: float
    bytes: int


class RunView(BaseModel):
    """What a run folder holds: config.yaml as text, checkpoints, a report, and figures on test subjects."""

    folder: str
    config: str | None
    progress: ProgressView | None
    best: Best | None
    checkpoints: list[Checkpoint]
    has_report: bool
    figures: dict[str, Measured]


class RunRow(BaseModel):
    """A run in a list. `started`: for the last time; `changed`: the newest of its files."""

    id: str
    name: str
    state: Literal["RUNNING", "COMPLETED", "STOPPED"]
    started: str
    changed: str
    strategy: str | None
    progress: ProgressView | None
    best: Best | None


class RunPage(BaseModel):
    """One page of the runs: how many match on all pages, and what could not be looked at."""

    runs: list[RunRow]
    total: int
    offset: int
    limit: int
    warnings: list[str]


class RunDetail(RunRow, RunView):
    """All of a run."""


class Curves(BaseModel):
    """Columns of equal length: of metrics.jsonl, and of the newest steps of rank 0 (seconds)."""

    epochs: dict[str, list[float | None]]
    steps: dict[str, list[float | None]]


class LogPart(BaseModel):
    """A part of a log, both streams of all ranks: bytes `offset` to `next` of `size`, as text."""

    text: str
    offset: int
    next: int
    size: int


class Proposal(BaseModel):
    """A change to try, as arguments of `cingulum train`, what is set now, and why."""

    change: str
    now: str
    why: str


class RankTime(BaseModel):
    """Mean seconds per step of a rank: its own time, and the parts of a step."""

    rank: int
    host: str
    own: float
    parts: dict[str, float]


class HostLoad(BaseModel):
    """A host during training; bytes per step are those that its interfaces counted."""

    host: str
    ranks: int
    cpu_percent: float
    cores: int
    memory_bytes: int
    sent_per_step: float
    received_per_step: float
    gpus: list[str]


class TimeSpentView(BaseModel):
    """Where the time of the newest steps goes: what `cingulum diagnose` tells, and of ranks and hosts.

    `gains`: share of a step that removing each bottleneck saves at most. `ranks`: those that need most time
    for themselves first.
    """

    step_s: float
    bound: str
    summary: str
    evidence: list[str]
    gains: dict[str, float]
    proposals: list[Proposal]
    slowest_rank: int | None
    slowest_ratio: float | None
    ranks: list[RankTime]
    ranks_left_out: int
    hosts: list[HostLoad]


class SessionView(BaseModel):
    """Who asks, and whether they may write."""

    who: str
    may: Literal["read", "write", "admin"]


class SignIn(BaseModel):
    """A token, to get a session for."""

    token: str


class Failure(BaseModel):
    """An error: a code for programs, words for people, what to do, and what it is about."""

    code: str
    message: str
    cure: str | None = None
    path: str | None = None
    key: str | None = None
    rank: int | None = None


class Failed(BaseModel):
    """The body of every answer that is an error."""

    error: Failure
