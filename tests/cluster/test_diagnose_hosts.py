"""Runs over links that are too slow: the network is named, or the one server that all workers share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiny_runs

from jobs.local import mpirun
from trainer.telemetry import evidence

ROOT = Path(__file__).parents[2]
# 4.4 MB of weights: more than a second on this link, and a tenth of one to compute a step.
RATE = "30mbit"
NETWORK = {
    "data__augment": {},
    "data__split": {"validation": 0, "test": 0.2},
    "model__width": 64,
    "model__options": {},
    "train__deterministic": False,
    "train__global_batch": 4,
    "train__epochs": 1,
    "train__optimizer": {"name": "sgd", "momentum": 0.0},
    "checkpoint__every_steps": None,
}
SERVED = {"train__strategy": "parameter-server"}
ON_LINKS = {
    "PYTHONPATH": str(ROOT),
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "OMPI_MCA_oob_tcp_if_include": "eth0",
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards", subjects=20)


def train(cluster, folder: Path, shards: Path, hosts: int, **changes: object) -> Path:
    for host in cluster.hosts:
        cluster.shape(host, RATE)
    config = tiny_runs.write_config(folder, shards, "run", **{**NETWORK, **changes})
    task = [sys.executable, "-m", "cingulum", "train", str(config)]
    line, added = mpirun.command(hosts, task, hosts=dict.fromkeys(cluster.hosts[:hosts], 1))
    sent = ["-x", "PYTHONPATH", *line[1:]]
    done = cluster.exec("n1", [line[0], *sent], environment={**added, **ON_LINKS}, timeout=200)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.mark.slow
def test_a_throttled_link_is_the_network(cluster, tmp_path, shards):
    found = evidence.diagnose(train(cluster, tmp_path, shards, 2))
    assert (found.bound, found.cause) == ("network", None), found
    assert any("host n2: " in sentence and "eth0 sends " in sentence for sentence in found.evidence), found
    assert any(setting.words == "train.strategy.compression=float16" for setting in found.settings)


def test_a_throttled_link_between_the_parts_of_a_network_is_the_network(cluster, tmp_path, shards):
    # Of four samples, few bytes cross: small steps.
    changes = {"train__strategy": "spatial", "train__global_batch": 8}
    found = evidence.diagnose(train(cluster, tmp_path, shards, 2, **changes))
    assert (found.bound, found.cause) == ("network", None), found
    assert "is waiting for messages of other ranks" in found.summary
    assert any("rank 1 @ n2 waits for messages in each step: " in sentence for sentence in found.evidence)


def test_one_server_of_two_workers_is_what_they_wait_for(cluster, tmp_path, shards):
    found = evidence.diagnose(train(cluster, tmp_path, shards, 3, **SERVED))
    assert found.bound == "server", found
    assert any("2 workers share 1 server" in sentence for sentence in found.evidence)
    assert found.settings[0].words == "train.strategy.placement=colocated train.strategy.count=2"
