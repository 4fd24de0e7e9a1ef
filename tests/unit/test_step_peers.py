"""What `cingulum bench step` says of peers, from seconds."""

import pytest

from trainer.errors import WorldError
from trainer.scaling.peers import starting
from trainer.telemetry import step_peers
from trainer.telemetry.step_worker import StepJob


@pytest.fixture
def seconds(monkeypatch):
    """What each launch of a peer will take, by name, in turn; or the error that it ends with."""
    planned = {"ddp": [0.3, 0.2, 0.5, 0.4], "multiworker": [0.2, 0.18, 0.25, 0.2]}
    asked = []

    def run(jobs, *, environment):
        asked.append(jobs)
        value = planned[jobs[0].peer].pop(0)
        if isinstance(value, Exception):
            raise value
        # The median of steps, the mean of processes.
        return [[{"seconds": [0, value - 0.01, 9]}, {"seconds": [0, value + 0.01, 9]}]] * len(jobs)

    monkeypatch.setattr(starting, "run", run)
    monkeypatch.setattr(starting, "missing", lambda peer, environment: None)
    return planned, asked


def measured(repeats=2, **job):
    peers = [step_peers.PeerTimes(name, StepJob(**job), None) for name in step_peers.NAMES]
    for _ in range(repeats):
        for peer in peers:
            peer.measure()
    return step_peers.figures([0.1, 0.2], peers)


def test_a_peer_is_compared_with_its_own_copies_and_with_ours_in_the_same_repeat(seconds):
    found = measured(steps=7)
    ddp = found["peers"]["ddp"]
    assert ddp["efficiency"] == pytest.approx((0.2 / 0.3 + 0.4 / 0.5) / 2)
    assert (ddp["lead_min"], ddp["lead_max"]) == (pytest.approx(2.5), pytest.approx(3))
    assert found["best_peer"] == "multiworker"
    assert found["best_peer_lead"] == pytest.approx((2 + 1.25) / 2)
    ranks, copies = seconds[1][:2]
    assert [job.ranks for job in ranks] == [2] and [job.ranks for job in copies] == [1, 1]
    assert (ranks[0].steps, ranks[0].warm_up, ranks[0].batch) == (7, 7, 4)


def test_a_peer_that_fails_is_told_and_not_tried_again(seconds):
    seconds[0]["ddp"] = [WorldError("rank 1 failed")]
    found = measured()
    assert found["peers"]["ddp"] == {"skipped": "failed: rank 1 failed"}
    assert found["best_peer"] == "multiworker"
    assert step_peers.told("ddp", found["peers"]["ddp"]) == "PyTorch DDP (gloo): failed: rank 1 failed"
    told = step_peers.told("multiworker", found["peers"]["multiworker"])
    assert "MultiWorkerMirrored: step time over ours 162.50% (from 125.00% to 200.00%)" in told


def test_without_peers_there_is_no_best(seconds):
    assert step_peers.figures([0.1], []) == {"peers": {}, "best_peer": None, "best_peer_lead": None}
    assert "synchronous" in measured(sync_batch_norm=True)["peers"]["ddp"]["skipped"]
    assert seconds[1] == []
