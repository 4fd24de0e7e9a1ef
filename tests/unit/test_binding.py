"""The cores that a rank keeps to."""

import os
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.ranks import launch, starting


def tensorflow(gpus=0):
    return SimpleNamespace(config=SimpleNamespace(list_physical_devices=lambda kind: ["gpu"] * gpus))


@pytest.fixture
def host(monkeypatch):
    """A host of four cores; what was bound is in `bound`."""
    bound = []
    monkeypatch.delenv("CINGULUM_BIND", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: bound.append(sorted(cores)))
    monkeypatch.setattr(starting, "neighbours", sorted)
    return bound


@given(st.lists(st.integers(0, 999), unique=True, min_size=1), st.integers(1, 20))
def test_shares_are_all_cores_and_equal_but_for_one(cores, ranks):
    shares = [starting.share(cores, rank, ranks) for rank in range(ranks)]
    assert [core for share in shares for core in share] == cores
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_threads_of_a_core_and_cores_of_a_package_are_neighbours(tmp_path):
    # As Linux numbers two packages of two cores with two threads: 0 and 4 are one core.
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{cpu % 2}\n")
        (folder / "core_id").write_text(f"{cpu // 2 % 2}\n")
    assert starting.neighbours(range(8), tmp_path) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert starting.neighbours({3, 1, 2}, tmp_path / "nowhere") == [1, 2, 3]


def test_ranks_that_compute_with_all_cores_keep_to_their_share(host):
    found = [starting.keep_to_own_cores(tensorflow(), threads=2, place=(rank, 2)) for rank in (0, 1)]
    assert found == host == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "asked",
    [
        {"threads": 1, "place": (0, 2)},  # others need cores, too
        {"threads": 1, "place": (0, 5)},  # more ranks than cores
        {"threads": 4, "place": (0, 1)},  # alone
        {"threads": 2, "place": None},  # bound by others
        {"threads": 2, "place": (0, 2), "gpus": 1},
    ],
)
def test_any_other_rank_is_left_alone(host, asked):
    gpus = asked.pop("gpus", 0)
    assert starting.keep_to_own_cores(tensorflow(gpus), **asked) is None
    assert host == []


def test_a_site_can_forbid_it(host, monkeypatch):
    monkeypatch.setenv("CINGULUM_BIND", "none")
    assert starting.keep_to_own_cores(tensorflow(), threads=2, place=(0, 2)) is None
    assert host == []


def test_only_ranks_of_mpirun_that_nobody_bound_have_a_place(monkeypatch):
    for name in ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_MCA_orte_bound_at_launch"):
        monkeypatch.delenv(name, raising=False)
    assert launch.unbound_place() is None
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
    assert launch.unbound_place() == (1, 2)
    monkeypatch.setenv("OMPI_MCA_orte_bound_at_launch", "1")
    assert launch.unbound_place() is None
