"""What tests of several files need."""

from __future__ import annotations

import pytest
from stand_in_cluster import StandInCluster

from jobs.store import Store


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
