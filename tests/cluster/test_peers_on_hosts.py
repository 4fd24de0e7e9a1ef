"""Peers on emulated hosts with a shaped link: what they exchange crosses it, and is counted."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from benchmarks.peers import cells, starting
from jobs.testbed import Testbed
from trainer.bench.scaling.cells import Cell

CELL = {"model": "tiny", "size": 16, "width": 8, "batch": 4, "ranks": 2, "hosts": 2, "steps": 5}
GRADIENT_BYTES = 70_680  # 17,670 trainable numbers in float32


@pytest.fixture(scope="module")
def hosts(cluster_machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    kept = [tmp_path_factory.getbasetemp(), ROOT, Path(sys.prefix), Path(sys.base_prefix)]
    testbed = Testbed.up(
        3, slurm=False, bandwidth="200mbit", shared=kept, name=f"peers-{os.getpid()}", tied=True
    )
    yield testbed
    testbed.down()


def measured(testbed: Testbed, strategy: str, **changes: int) -> dict[str, dict[str, float]]:
    """Bytes per step and host."""
    if reason := starting.missing(strategy.removeprefix("peer:")):
        pytest.skip(reason)

    def count() -> dict[str, tuple[int, int]]:
        return {host: counters(testbed, host) for host in testbed.hosts}

    row = cells.measure(Cell(strategy=strategy, **CELL, **changes), testbed, print, count=count)
    assert row.error is None
    assert row.samples_per_second == pytest.approx(4 / row.step_s["median"])
    return dict(row.interfaces)


def counters(testbed: Testbed, host: str) -> tuple[int, int]:
    files = [f"/sys/class/net/eth0/statistics/{way}_bytes" for way in ("tx", "rx")]
    sent, received = testbed.exec(host, ["cat", *files], cwd="/").stdout.split()
    return int(sent), int(received)


@pytest.mark.parametrize("strategy", ["peer:multiworker", "peer:ddp"])
def test_two_ranks_on_two_hosts_send_each_their_gradients_once(hosts, strategy):
    crossed = measured(hosts, strategy)
    for host in ("n1", "n2"):
        assert GRADIENT_BYTES < crossed[host]["sent"] < 1.1 * GRADIENT_BYTES
        assert GRADIENT_BYTES < crossed[host]["received"] < 1.1 * GRADIENT_BYTES
    assert crossed["n3"]["sent"] < 0.1 * GRADIENT_BYTES


def test_a_server_of_tensorflow_on_a_host_of_its_own_serves_both_workers(hosts):
    crossed = measured(hosts, "peer:tf-parameter-server", servers=1)
    assert crossed["n3"]["sent"] > 2 * GRADIENT_BYTES
    assert crossed["n3"]["received"] > 2 * GRADIENT_BYTES
