"""Memory that is left: what host, control groups and the process's limit leave, whichever is least."""

from __future__ import annotations

import resource
from pathlib import Path

import psutil
import pytest

from trainer.data.loading import memory

FREE = 1000


def group(folder: Path, files: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


def left(tmp_path: Path, line: str) -> int:
    (tmp_path / "own").write_text(f"{line}\n")
    roots = (tmp_path / "cgroup", tmp_path / "cgroup" / "memory")
    return memory.available_bytes(roots, tmp_path / "own", FREE)


def test_processes_share_a_host_and_a_group_and_none_shares_its_own_limit():
    job, box = {"host": 900, "job": 600}, {"host": 900, "box": 100}
    left = [(None, job), (250, job), (None, box), (40, {"host": 80})]
    assert memory.shares(left, ["a", "a", "a", "b"]) == [300.0, 250.0, 100.0, 40.0]
    assert memory.shares([(None, job), (None, job)], ["a", "b"]) == [600.0, 600.0]


def test_without_control_groups_the_host_decides(tmp_path):
    assert memory.available_bytes((tmp_path,), tmp_path / "none", FREE) == FREE
    assert 0 < memory.available_bytes() < 2**50


def test_a_group_of_version_2_limits_and_what_it_can_give_back_counts_as_free(tmp_path):
    group(
        tmp_path / "cgroup/job/step",
        {"memory.max": 600, "memory.current": 300, "memory.stat": "anon 100\ninactive_file 50"},
    )
    assert left(tmp_path, "0::/job/step") == 600 - 300 + 50


def test_a_group_further_up_limits_too(tmp_path):
    group(tmp_path / "cgroup/job/step", {"memory.max": "max", "memory.current": 300})
    group(tmp_path / "cgroup/job", {"memory.max": 400, "memory.current": 350})
    assert left(tmp_path, "0::/job/step") == 50


def test_a_group_of_version_1_limits(tmp_path):
    group(
        tmp_path / "cgroup/memory/job",
        {
            "memory.limit_in_bytes": 500,
            "memory.usage_in_bytes": 400,
            "memory.stat": "inactive_file 1\ntotal_inactive_file 30",
        },
    )
    assert left(tmp_path, "4:memory:/job") == 130


def test_in_a_container_where_our_name_is_not_there_the_root_limits(tmp_path):
    group(tmp_path / "cgroup", {"memory.max": 200, "memory.current": 80})
    assert left(tmp_path, "0::/docker/1234") == 120


@pytest.mark.parametrize("limit", [10, 300])
def test_a_group_that_has_used_more_than_its_limit_leaves_nothing(tmp_path, limit):
    group(tmp_path / "cgroup/job", {"memory.max": limit, "memory.current": 300})
    assert left(tmp_path, "0::/job") == 0


def test_the_limit_of_the_process_s_address_space_counts_without_what_is_mapped(tmp_path, monkeypatch):
    limits = {resource.RLIMIT_AS: (psutil.Process().memory_info().vms + 2**30, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    assert 2**29 < memory.available_bytes((tmp_path,), tmp_path / "none", 2**40) <= 2**30 + 2**24


def test_a_group_has_the_same_name_in_a_container_that_sees_it_as_its_root(tmp_path):
    for name in ("job", "other"):
        group(tmp_path / "cgroup" / name, {"memory.max": 400, "memory.current": 100})
    (tmp_path / "root").symlink_to(tmp_path / "cgroup/job")
    found = []
    for root, line in (("cgroup", "0::/job"), ("root", "0::/"), ("cgroup", "0::/other")):
        (tmp_path / "own").write_text(f"{line}\n")
        found.append(memory.shared_bytes((tmp_path / root,), tmp_path / "own", FREE))
    assert found[0] == found[1] and sorted(found[0].values()) == [300, FREE]
    assert found[0].keys() & found[2].keys() == {"host"}
