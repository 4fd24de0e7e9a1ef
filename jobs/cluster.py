"""The machines on which jobs run, as far as they tell: hosts, what is free, and who waits for what."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.job import Job
from jobs.local import hosts
from jobs.schedulers.cluster_view import Picture
from jobs.schedulers.slurm import queue


def look(jobs: Sequence[Job]) -> Picture:
    """Return what Slurm tells where this is a host of a cluster, else the hosts of the site's profile.

    Args:
        jobs: of the user that are not done.

    Raises:
        LauncherError: Slurm does not answer; JobError: the profile or its hostfile cannot be read.
    """
    return queue.look() if queue.is_here() else hosts.look(jobs)
