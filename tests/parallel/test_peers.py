"""Other frameworks, given our weights and batches: the same weights after five steps."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks.peers import starting
from benchmarks.peers.job import PeerJob

# Five steps, each on another batch; batch norm takes the statistics of each rank's own samples everywhere.
JOB = {"model": "tiny", "size": 16, "batch": 2, "batches": 5, "warm_up": 1, "steps": 4, "optimizer": "sgd"}
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def ours(launch, tmp_path_factory):
    """What our own two ranks, and one of them alone, make of the batches; and the weights before."""
    folder = tmp_path_factory.mktemp("ours")
    job = PeerJob("ddp", ranks=2, **JOB)
    outcome = launch(2, "steps_of_ours.py", json.dumps(dataclasses.asdict(job)), folder)
    assert outcome.exit_code == 0, outcome.err
    return {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")} | {"folder": folder}


def trained(ours, tmp_path, peer, **options):
    saved = tmp_path / "theirs.npz"
    first = str(ours["folder"] / "first.npz")
    job = PeerJob(peer, weights=first, saved=str(saved), **JOB, **options)
    found = starting.run(job)
    assert all(len(rank["seconds"]) == JOB["steps"] for rank in found)
    return found, dict(np.load(saved))


def farthest(one, other):
    """Largest difference of two sets of weights, moving statistics included."""
    assert set(one) == set(other)
    return max(np.max(np.abs(one[name] - other[name])) for name in one)


def test_the_weights_move_far_beyond_the_tolerance_and_by_both_ranks(ours):
    assert farthest(ours["ranks"], ours["first"]) > 1000 * TOLERANCE
    assert farthest(ours["ranks"], ours["one"]) > 1000 * TOLERANCE


@pytest.mark.parametrize("peer", ["multiworker", "ddp"])
def test_two_ranks_of_a_peer_end_with_our_weights(ours, tmp_path, peer):
    if reason := starting.missing(peer):
        pytest.skip(reason)
    found, theirs = trained(ours, tmp_path, peer, ranks=2)
    assert len(found) == 2
    assert farthest(ours["ranks"], theirs) < TOLERANCE


def test_one_worker_of_tensorflows_parameter_server_ends_with_the_weights_of_one_process(ours, tmp_path):
    """With more workers no two runs are alike: they do not wait for each other."""
    found, theirs = trained(ours, tmp_path, "tf-parameter-server", ranks=1, servers=1)
    assert len(found) == 1
    assert farthest(ours["one"], theirs) < TOLERANCE
