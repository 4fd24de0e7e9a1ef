"""Hosts without a scheduler: those of the site's profile, else this one, and the user's own jobs on them."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jobs.job import Job
from jobs.local import hostfile
from jobs.schedulers import registry, site_profiles
from jobs.schedulers.base import WAITING
from jobs.schedulers.cluster_view import Host, Picture, Queued
from trainer.errors import JobError

NOTE = "Without a scheduler, only your own jobs are known, and no GPUs are counted."


def look(jobs: Sequence[Job]) -> Picture:
    """Return hosts and their slots, and who of the user's jobs has which.

    Args:
        jobs: of the user that are not done; those of a scheduler are left out.

    Raises:
        JobError: the default profile or its hostfile cannot be read.
    """
    slots = _slots()
    here = [job for job in jobs if not registry.is_scheduler(job.launcher)]
    used: Counter[str] = Counter()
    for job in here:
        for task in job.tasks:
            if task.state == "RUNNING":
                used.update(
                    dict.fromkeys(task.hosts or (socket.gethostname(),), job.spec.resources.ranks_per_node)
                )
    # A job that began before the hostfile was changed may be elsewhere.
    names = [*slots, *(host for host in used if host not in slots)]
    hosts = tuple(
        Host(name, "in use" if used[name] else "free", name in slots, slots.get(name, 0), used[name])
        for name in names
    )
    return Picture("mpirun", hosts, tuple(one for job in here for one in _queued(job)), note=NOTE)


def _queued(job: Job) -> list[Queued]:
    asked = job.spec.resources
    return [
        Queued(
            id=f"{job.label}_{task.task}" if job.spec.is_array else job.label,
            user=job.user,
            state=task.state,
            reason=task.reason if task.state in WAITING else "",
            nodes=asked.nodes,
            cpus=asked.nodes * asked.ranks_per_node,
            gpus=asked.nodes * asked.gpus_per_node,
            hosts=",".join(task.hosts),
            submitted=job.submitted,
            started=task.started,
        )
        for task in job.tasks
        if task.ended is None
    ]


def _slots() -> dict[str, int]:
    site = site_profiles.load()
    if site.hostfile is None:
        return {socket.gethostname(): len(os.sched_getaffinity(0))}
    path = Path(site.hostfile).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: the hostfile of site {site.name} cannot be read: {error}.") from error
    return hostfile.parse(text, str(path), default_slots=1)
