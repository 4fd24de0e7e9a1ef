"""Queue and hosts, asked of the scheduler while somebody looks, and their routes under /api/v1/cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from cingulum.service.events import stream
from cingulum.service.schema import Failed
from jobs.job import Job
from jobs.requests import describing
from jobs.schedulers.base import ACTIVE
from jobs.schedulers.cluster_view import Host, Picture, Queued
from jobs.store.store import Store
from trainer.errors import CingulumError


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


# Seconds between two questions while somebody looks, and for which a look counts.
ASKED_S, _LOOKS_S = 10.0, 30.0
# An answer that is older than so many questions is stale, whatever the reason.
_STALE = 3
_EMPTY = Picture("", (), ())


class ClusterNow:
    """The machines of the user's jobs.

    Args:
        store: of the user's jobs.
        user: whose share is told.
        look: asks, given the user's jobs that are not done; may take its time.
        asked_s: see ASKED_S.
    """

    def __init__(
        self,
        store: Store,
        user: str,
        look: Callable[[list[Job]], Picture],
        *,
        asked_s: float = ASKED_S,
    ) -> None:
        self._store, self._user, self._look, self._asked_s = store, user, look, asked_s
        self._last: tuple[Picture, float] | None = None
        self._error: str | None = None
        self._looked = -_LOOKS_S
        self._wake = threading.Event()
        self._ending = False

    def start(self) -> None:
        """Begin to ask whenever somebody looks."""
        self._ending = False
        threading.Thread(target=self._keep, name="cluster", daemon=True).start()

    def end(self) -> None:
        """Ask no more; a question that is under way ends with the process."""
        self._ending = True
        self._wake.set()

    def stamp(self) -> str:
        """Return what changes when there is more to tell."""
        self._note()
        return repr((self._last and self._last[1], self._error, self._is_stale()))

    def told(self, *, text: str, only_mine: bool, limit: int) -> ClusterTold:
        """Return the last answer.

        Args:
            text: part of what a host or a job is known by, in any case; "": any.
            only_mine: leave out jobs of others.
            limit: hosts, and jobs, at most.
        """
        self._note()
        picture, at = self._last or (_EMPTY, None)
        own = {job.external or job.label: job for job in self._store.list(states=ACTIVE, user=self._user)}
        jobs = [self._queued(one, own) for one in picture.queue]
        mine = [job for job in jobs if job.mine]
        jobs = [
            job
            for job in (mine if only_mine else jobs)
            if _holds(text, job.id, job.user, job.name, job.state, job.reason, job.partition, job.hosts)
        ]
        hosts = [
            host
            for host in picture.hosts
            if _holds(text, host.name, host.state, host.reason, *host.partitions)
        ]
        return ClusterTold(
            scheduler=picture.scheduler or None,
            as_of=describing.iso(at),
            stale=self._is_stale(),
            warnings=[one for one in (self._error, picture.note) if one],
            totals=_totals(picture.hosts),
            mine=Mine(
                running=sum(not job.waits for job in mine),
                waiting=sum(job.waits for job in mine),
                cpus=sum(job.cpus for job in mine if not job.waits),
                gpus=sum(job.gpus for job in mine if not job.waits),
                shares=[ShareTold(**vars(share)) for share in picture.shares],
            ),
            hosts=[_host(host) for host in hosts[:limit]],
            hosts_total=len(hosts),
            queue=jobs[:limit],
            queue_total=len(jobs),
        )

    def _queued(self, entry: Queued, own: Mapping[str, Job]) -> QueuedTold:
        is_own = entry.user == self._user
        # Slurm writes 4711_3 and 4711_[4-9] of an array; others are known by our own label.
        job = own.get(entry.id) or own.get(entry.id.partition("_")[0]) if is_own else None
        if job is None and is_own:
            job = next((found for found in own.values() if found.label == entry.id.partition("_")[0]), None)
        return QueuedTold(
            id=entry.id,
            user=entry.user,
            mine=is_own,
            name=None if job is None else job.spec.name,
            page=None if job is None else f"/jobs/{job.key}",
            waits=entry.started is None,
            state=entry.state,
            reason=entry.reason,
            partition=entry.partition,
            nodes=entry.nodes,
            cpus=entry.cpus,
            gpus=entry.gpus,
            hosts=entry.hosts,
            submitted=describing.iso(entry.submitted),
            started=describing.iso(entry.started),
            expected=describing.iso(entry.expected),
            limit=entry.limit,
        )

    def _is_stale(self) -> bool:
        if self._last is None:
            return False
        return self._error is not None or time.time() - self._last[1] > _STALE * self._asked_s

    def _note(self) -> None:
        """Note that somebody looks; who comes back after a while is answered anew at once."""
        before, self._looked = self._looked, time.monotonic()
        if self._looked - before > self._asked_s:
            self._wake.set()

    def _keep(self) -> None:
        while not self._ending:
            watched = time.monotonic() - self._looked < _LOOKS_S
            self._wake.wait(self._asked_s if watched else None)
            self._wake.clear()
            if self._ending:
                return
            try:
                picture = self._look(self._store.list(states=ACTIVE, user=self._user))
                self._last, self._error = (picture, time.time()), None
            except CingulumError as error:
                self._error = f"The scheduler did not answer: {error.message}"
            except Exception as error:  # whatever one round meets, there is another
                self._error = f"The cluster could not be asked ({type(error).__name__}: {error})."


def _totals(hosts: tuple[Host, ...]) -> Totals:
    return Totals(
        hosts=len(hosts),
        hosts_usable=sum(host.usable for host in hosts),
        cpus=sum(host.cpus for host in hosts),
        cpus_free=sum(host.cpus_free for host in hosts),
        gpus=sum(host.gpus for host in hosts),
        gpus_free=sum(host.gpus_free for host in hosts),
    )


def _host(host: Host) -> HostTold:
    left = None
    if host.memory_mib is not None and host.memory_used_mib is not None:
        left = max(0, host.memory_mib - host.memory_used_mib) if host.usable else 0
    return HostTold(
        name=host.name,
        state=host.state,
        usable=host.usable,
        cpus=host.cpus,
        cpus_free=host.cpus_free,
        gpus=host.gpus,
        gpus_free=host.gpus_free,
        memory_mib=host.memory_mib,
        memory_free_mib=left,
        partitions=list(host.partitions),
        reason=host.reason,
    )


def _holds(text: str, *within: str | None) -> bool:
    return not text or any(text.lower() in one.lower() for one in within if one)


_ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": Failed, "description": "An error"}}


def cluster_routes(cluster: ClusterNow) -> APIRouter:
    """Return the routes about the cluster."""
    router = APIRouter(prefix="/api/v1/cluster", tags=["cluster"], responses=_ERRORS)

    @router.get("")
    def told(
        text: Annotated[str, Query(max_length=200, description="In what a host or job is known by.")] = "",
        only_mine: Annotated[bool, Query(alias="mine", description="Leave out jobs of others.")] = False,
        limit: Annotated[int, Query(ge=1, le=500)] = 200,
    ) -> ClusterTold:
        """Return queue and hosts as the scheduler told them last."""
        return cluster.told(text=text, only_mine=only_mine, limit=limit)

    @router.get("/events", response_class=Response)
    async def events(request: Request) -> Response:
        """Tell, as server-sent events, that the scheduler has answered, or has not."""
        return stream(request, cluster.stamp)

    return router
