"""The world under mpirun: its collectives, and that its all-reduce is a ring."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Launch

from jobs.local import mpirun


def test_collectives_agree_the_all_reduce_is_a_ring_and_groups_must_be_prepared(launch: Launch) -> None:
    ranks = 4
    outcome = launch(ranks, "collectives.py", environment={"OMPI_MCA_btl": "tcp,self"})
    assert outcome.exit_code == 0, outcome.err
    report = json.loads(outcome.out.splitlines()[-1])
    assert report["mpi"] == {
        "coll_tuned_allreduce_algorithm": 4,
        "coll_tuned_allreduce_algorithm_segmentsize": 0,
        "coll_tuned_reduce_algorithm": 0,
        "coll_tuned_bcast_algorithm": 0,
        "coll_tuned_use_dynamic_rules": 1,
        "mpi_yield_when_idle": 1,
        "btl_tcp_flags": 9,
        "btl_tcp_eager_limit": 2**22 + 2**12,
    }
    expected = 2 * (ranks - 1) / ranks * report["payload"]
    for sent in report["sent"]:
        # A ring: all of it goes to one neighbour, and what goes elsewhere is only negotiation.
        assert expected <= sent[0] <= 1.01 * expected
        assert sum(sent[1:]) < 0.01 * expected


def test_a_site_can_set_another_algorithm(launch: Launch) -> None:
    environment = {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_coll_tuned_allreduce_algorithm": "3"}
    outcome = launch(4, "collectives.py", environment=environment)
    assert outcome.exit_code == 0, outcome.err
    report = json.loads(outcome.out.splitlines()[-1])
    assert report["mpi"]["coll_tuned_allreduce_algorithm"] == 3
    # Recursive doubling sends everything to two partners, so this test would see that it is no ring.
    assert all(sent[1] > 0.5 * report["payload"] for sent in report["sent"])


@pytest.mark.parametrize(
    ("ranks", "servers", "expected"),
    [
        (0, 0, [["first"]]),
        (3, 0, [["first"], ["second"], ["first"]]),
        (3, 1, [["first"], ["second"], []]),
        (2, 1, [["first"], []]),
    ],
    ids=["alone", "ranks", "two workers and a server", "a worker and a server"],
)
def test_a_process_gets_its_gpu_before_tensorflow_starts_and_servers_none(
    launch: Launch, tmp_path: Path, ranks: int, servers: int, expected: list[list[str]]
) -> None:
    outcome = launch(ranks, "pretended_gpus.py", tmp_path, servers)
    assert outcome.exit_code == 0, outcome.err
    assert [json.loads(path.read_text()) for path in sorted(tmp_path.iterdir())] == expected


def test_ranks_that_computed_before_they_have_a_gpu_are_told_so(launch: Launch, tmp_path: Path) -> None:
    outcome = launch(2, "pretended_gpus.py", tmp_path, 0, environment={"COMPUTES_BEFORE": "1"})
    assert outcome.exit_code != 0
    assert "already started" in outcome.err and "Call trainer.init() before" in outcome.err
    alone = launch(0, "pretended_gpus.py", tmp_path, 0, environment={"COMPUTES_BEFORE": "1"})
    assert alone.exit_code == 0, alone.err


def test_ranks_of_one_host_start_where_there_is_no_ssh(tmp_path: Path) -> None:
    for name in ("true", "false"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    line, environment = mpirun.command(1, ["true"])
    done = subprocess.run(
        line, env={**os.environ, **environment, "PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
