"""Answers of the API about one run: what belongs to it, where its time goes, how it is placed, its log."""

from __future__ import annotations

from pydantic import BaseModel

from trainer.report.placement import PlacementSection


class Link(BaseModel):
    """A job that belongs to another job or to a run; `page` is its address."""

    id: str
    name: str
    kind: str
    state: str
    page: str


class Related(BaseModel):
    """What belongs to a job or a run.

    `run`: address of the page of its run folder, where the list of runs has it; `jobs` that are about this
    run folder; `before`: those that must complete first; `then`: those that wait for this one.
    """

    run: str | None
    jobs: list[Link]
    before: list[Link]
    then: list[Link]


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


class PlacementView(BaseModel):
    """Who holds what of a network that is divided over ranks, as the report shows it; headers of tables."""

    placement: PlacementSection
    rank_header: list[str]
    rule_header: list[str]
    reason_header: list[str]


class LogMatch(BaseModel):
    """A line with the text: the byte at which it begins, or near the text where the line is long."""

    offset: int
    text: str


class LogMatches(BaseModel):
    """Lines from where the search began to byte `next` of `size`; `done`: there is no more."""

    matches: list[LogMatch]
    next: int
    size: int
    done: bool
