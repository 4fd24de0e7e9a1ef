"""The machines on which jobs run, as far as they tell: hosts, what is free, and who waits for what."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.cluster import on_hosts, slurm
from jobs.cluster.picture import Picture
from jobs.job import Job


def look(jobs: Sequence[Job]) -> Picture:
    """Return what Slurm tells where this is a host of a cluster, else the hosts of the site's profile.

    Args:
        jobs: of the user that are not done.

    Raises:
        LauncherError: Slurm does not answer; JobError: the profile or its hostfile cannot be read.
    """
    return slurm.look() if slurm.is_here() else on_hosts.look(jobs)
