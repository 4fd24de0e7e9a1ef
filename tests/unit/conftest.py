"""What tests of several files need."""

from __future__ import annotations

import pytest
from pretended_slurm import Pretended
from stand_in_cluster import StandInCluster

from jobs.schedulers import registry
from jobs.store.store import Store


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    """A new store, in a home of its own."""
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CINGULUM_STORE", raising=False)
    return Store()


@pytest.fixture
def cluster(tmp_path) -> StandInCluster:
    """A cluster in which nothing runs."""
    return StandInCluster(tmp_path / "cluster", place="near")


@pytest.fixture
def slurm(monkeypatch) -> Pretended:
    """A launcher, by whatever name, that does as it is told."""
    launcher = Pretended()
    monkeypatch.setattr(registry, "named", lambda name: launcher)
    return launcher


@pytest.fixture
def served_jobs(store, slurm, tmp_path):
    """Jobs of each kind, by name."""
    from jobs_to_serve import fill

    return fill(store, slurm, tmp_path / "runs")


@pytest.fixture
def client(store, served_jobs):
    """A client of the service over these jobs, as the user's own."""
    from served import client_of

    return client_of(store)
