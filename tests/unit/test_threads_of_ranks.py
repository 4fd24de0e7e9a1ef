"""How many cores a rank computes with."""

from __future__ import annotations

import os

import pytest

from trainer import launch


@pytest.fixture
def host(monkeypatch):
    """A host of 64 cores of which this process may use some."""

    def cores(mine: int, granted: str | None = None) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(mine)))
        monkeypatch.setattr(os, "cpu_count", lambda: 64)
        monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
        if granted is not None:
            monkeypatch.setenv("SLURM_CPUS_PER_TASK", granted)

    return cores


def test_ranks_share_the_cores_of_a_host(host):
    host(64)
    assert launch.threads_per_rank(local_size=4) == 16


def test_a_rank_that_is_bound_uses_what_it_is_bound_to(host):
    host(6)
    assert launch.threads_per_rank(local_size=4) == 6


def test_in_a_job_of_slurm_each_rank_uses_what_it_asked_for(host):
    """mpirun's ranks may all use every core of the job on their host: 4 ranks x 8 cores."""
    host(32, "8")
    assert launch.threads_per_rank(local_size=4) == 8
    host(4, "8")
    assert launch.threads_per_rank(local_size=1) == 4
