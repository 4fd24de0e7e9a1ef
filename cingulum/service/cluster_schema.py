"""Answers of the API about the cluster."""

from __future__ import annotations

from pydantic import BaseModel


class Totals(BaseModel):
    """What there is, and what of it jobs may start on now."""

    hosts: int
    hosts_usable: int
    cpus: int
    cpus_free: int
    gpus: int
    gpus_free: int


class ShareTold(BaseModel):
    """A share in an account: entitled to and used (0 to 1), and the fair-share factor."""

    account: str
    entitled: float | None
    used: float | None
    factor: float | None


class Mine(BaseModel):
    """The user's own part: jobs (or tasks) that run and wait, what they have now, and shares."""

    running: int
    waiting: int
    cpus: int
    gpus: int
    shares: list[ShareTold]


class HostTold(BaseModel):
    """A host; `usable`: jobs may start there; `reason`: why not."""

    name: str
    state: str
    usable: bool
    cpus: int
    cpus_free: int
    gpus: int
    gpus_free: int
    memory_mib: int | None
    memory_free_mib: int | None
    partitions: list[str]
    reason: str


class QueuedTold(BaseModel):
    """A job that runs or waits. `name` and `page` of those that the store knows; `waits`: has not begun."""

    id: str
    user: str
    mine: bool
    name: str | None
    page: str | None
    waits: bool
    state: str
    reason: str
    partition: str
    nodes: int
    cpus: int
    gpus: int
    hosts: str
    submitted: str | None
    started: str | None
    expected: str | None
    limit: str


class ClusterTold(BaseModel):
    """Hosts and queue as the scheduler told them at `as_of`; `stale`: it has not answered since.

    `as_of` null: it has not answered yet. `hosts` and `queue` are filtered and cut to `limit`, `hosts_total`
    and `queue_total` say how many match; totals are of all.
    """

    scheduler: str | None
    as_of: str | None
    stale: bool
    warnings: list[str]
    totals: Totals
    mine: Mine
    hosts: list[HostTold]
    hosts_total: int
    queue: list[QueuedTold]
    queue_total: int
