"""The machines on which jobs run, as far as they tell: hosts, what is free, and who waits for what."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.job import Job
from jobs.local import hosts
from jobs.schedulers import registry
from jobs.schedulers.cluster_view import Picture


def look(jobs: Sequence[Job]) -> Picture:
    """Return what a scheduler tells where this is a host of its cluster, else the hosts of the profile.

    Args:
        jobs: of the user that are not done.

    Raises:
        LauncherError: the scheduler does not answer; JobError: the profile or its hostfile cannot be read.
    """
    seen = (scheduler.look() for scheduler in registry.every_scheduler())
    return next((one for one in seen if one is not None), None) or hosts.look(jobs)
