"""What schedulers tell the processes that they start, in their environment: the one place with its names.

Slurm sets them itself, for scripts of users, too. What starts processes in its place sets CINGULUM_TASK and
CINGULUM_RESTARTS (jobs/local/attended_task.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# What starts ranks by itself, without mpirun, and how MPI has to be told of it.
STARTER = "srun"
STARTER_OF_MPI = f"{STARTER} --mpi=pmix"
_RANK, _RANKS, _JOB = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID"
_TASK, _RESTARTS = "CINGULUM_TASK", "CINGULUM_RESTARTS"
# How often a job was started again.
RESTART_COUNTS = ("SLURM_RESTART_COUNT", _RESTARTS)
# Ranks on a host, where mpirun does not say it.
LOCAL_SIZE = "SLURM_NTASKS_PER_NODE"
# Folder of a job on its host's own disk.
SCRATCH = "SLURM_TMPDIR"
# Beginnings of the names of what a scheduler says, and of what its commands are told.
PREFIXES = ("SLURM_", "SBATCH_")


class StartOfJob(NamedTuple):
    """A start of a job: which, as no other job is called, and how often it was started before."""

    job: str
    restarts: str


def rank(environment: Mapping[str, str]) -> str | None:
    """Return the number of the process, where a scheduler started it among others."""
    return environment.get(_RANK)


def ranks(environment: Mapping[str, str]) -> int:
    """Return how many processes a scheduler itself started together with this one; 1: it did not.

    A batch script has the number of its job's tasks, too, and is one process.
    """
    return int(environment.get(_RANKS, "1")) if _RANK in environment else 1


def cores(environment: Mapping[str, str]) -> int | None:
    """Return the cores that were asked for each rank; None: nobody says."""
    granted = environment.get("SLURM_CPUS_PER_TASK")
    return int(granted) if granted else None


def is_in_job(environment: Mapping[str, str]) -> bool:
    """Return whether a scheduler runs this."""
    return _JOB in environment


def start(environment: Mapping[str, str]) -> StartOfJob:
    """Return the start of a job that this process belongs to; without a job both are as of none."""
    if environment.get(_TASK):
        return StartOfJob(f"task:{environment[_TASK]}", environment.get(_RESTARTS, "0"))
    if environment.get(_JOB):
        job = f"slurm:{environment.get('SLURM_CLUSTER_NAME', '')}:{environment[_JOB]}"
        return StartOfJob(job, environment.get(RESTART_COUNTS[0], "0"))
    return StartOfJob("", "0")
