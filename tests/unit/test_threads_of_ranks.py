"""How many cores a rank computes with."""

from __future__ import annotations

import os

import pytest

from trainer.ranks import launch


@pytest.fixture
def host(monkeypatch):
    """A host of 64 cores of which this process may use some."""

    def cores(
        mine: int, granted: str | None = None, *, of_mpirun: int | None = None, **variables: str
    ) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range((pid and of_mpirun) or mine)))
        monkeypatch.setattr(os, "cpu_count", lambda: 64)
        for name in ("SLURM_CPUS_PER_TASK", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_orte_bound_at_launch"):
            monkeypatch.delenv(name, raising=False)
        if of_mpirun is not None:
            monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if granted is not None:
            monkeypatch.setenv("SLURM_CPUS_PER_TASK", granted)

    return cores


def test_ranks_share_the_cores_of_a_host(host):
    host(64)
    assert launch.threads_per_rank(local_size=4) == 16


def test_a_rank_that_is_bound_uses_what_it_is_bound_to(host):
    host(6)
    assert launch.threads_per_rank(local_size=4) == 6


def test_ranks_share_the_cores_that_a_container_has(host):
    """mpirun has 8 of 64 cores, and its 4 ranks are bound to none of them."""
    host(8, of_mpirun=8)
    assert launch.threads_per_rank(local_size=4) == 2


def test_a_rank_that_mpirun_or_a_wrapper_has_bound_uses_what_it_is_bound_to(host):
    host(2, of_mpirun=2, OMPI_MCA_orte_bound_at_launch="1")  # in a container of its own, say
    assert launch.threads_per_rank(local_size=4) == 2
    host(3, of_mpirun=8)
    assert launch.threads_per_rank(local_size=4) == 3


def test_in_a_job_of_slurm_each_rank_uses_what_it_asked_for(host):
    """mpirun's ranks may all use every core of the job on their host: 4 ranks x 8 cores."""
    host(32, "8")
    assert launch.threads_per_rank(local_size=4) == 8
    host(4, "8")
    assert launch.threads_per_rank(local_size=1) == 4
