"""The cluster as it was told last: a thread asks while somebody looks, requests never wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from cingulum.service.cluster_schema import (
    ClusterTold,
    HostTold,
    Mine,
    QueuedTold,
    ShareTold,
    Totals,
)
from jobs.job import Job
from jobs.requests import describing
from jobs.schedulers.base import ACTIVE
from jobs.schedulers.cluster_view import Host, Picture, Queued
from jobs.store.store import Store
from trainer.errors import CingulumError

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
