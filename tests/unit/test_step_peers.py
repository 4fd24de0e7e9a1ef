"""What `cingulum bench step` says of peers beside ours, from seconds."""

import contextlib
from typing import ClassVar

import pytest

from benchmarks.peers import beside_step, starting
from trainer.bench.step_worker import StepJob
from trainer.errors import WorldError


class Pretended:
    """A contestant whose blocks take what was planned: `plan` by number of launches."""

    plan: ClassVar[dict[str, dict[int, list[float]]]] = {}
    closed: ClassVar[list[str]] = []

    def __init__(self, title, processes):
        self._peer, launches = processes[0].peer, len(processes)
        self._seconds = iter(self.plan[self._peer][launches])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.closed.append(self._peer)

    def warm_up(self):
        pass

    def block(self):
        value = next(self._seconds)
        if isinstance(value, Exception):
            raise value
        # The mean of all steps of all processes, but for the first one after standing still.
        return [{"seconds": [9.0, value - 0.02, value]}, {"seconds": [5.0, value, value + 0.02]}]


@pytest.fixture
def asked(monkeypatch):
    """Two repeats of both peers are planned; the jobs that were started."""
    jobs = []

    def processes_of(job, *, environment):
        jobs.append(job)
        return [job]

    monkeypatch.setattr(Pretended, "plan", {"ddp": {1: [0.3, 0.5], 2: [0.2, 0.4]}})
    Pretended.plan["multiworker"] = {1: [0.2, 0.25], 2: [0.18, 0.2]}
    monkeypatch.setattr(Pretended, "closed", [])
    monkeypatch.setattr(beside_step, "Contestant", Pretended)
    monkeypatch.setattr(starting, "processes_of", processes_of)
    monkeypatch.setattr(starting, "missing", lambda peer, environment: None)
    return jobs


def measured(repeats=2, **job):
    with contextlib.ExitStack() as stack:
        made = [beside_step.PeerTimes(name, StepJob(**job), None) for name in beside_step.NAMES]
        timed = [stack.enter_context(peer) for peer in made]
        for peer in timed:
            peer.start()
        for _ in range(repeats):
            for peer in timed:
                peer.measure_ranks()
                peer.measure_copies()
    return beside_step.figures([0.1, 0.2], timed)


def test_a_peer_is_compared_with_its_own_copies_and_with_ours_in_the_same_repeat(asked):
    found = measured(steps=7)
    ddp = found["peers"]["ddp"]
    assert ddp["efficiency"] == pytest.approx((0.2 / 0.3 + 0.4 / 0.5) / 2)
    assert (ddp["lead_min"], ddp["lead_max"]) == (pytest.approx(2.5), pytest.approx(3))
    assert found["best_peer"] == "multiworker"
    assert found["best_peer_lead"] == pytest.approx((2 + 1.25) / 2)
    assert [job.ranks for job in asked] == [2, 1, 1] * 2
    assert (asked[0].steps, asked[0].warm_up, asked[0].batch) == (8, 8, 4)
    assert sorted(Pretended.closed) == ["ddp", "ddp", "multiworker", "multiworker"]


def test_a_peer_that_fails_is_told_and_not_tried_again(asked):
    Pretended.plan["ddp"][1] = [0.3, WorldError("rank 1 failed")]
    found = measured()
    assert found["peers"]["ddp"] == {"skipped": "failed: rank 1 failed"}
    assert found["best_peer"] == "multiworker"
    assert beside_step.told("ddp", found["peers"]["ddp"]) == "PyTorch DDP (gloo): failed: rank 1 failed"
    told = beside_step.told("multiworker", found["peers"]["multiworker"])
    assert "MultiWorkerMirrored: step time over ours 162.50% (95 %: 125.00% to 200.00%)" in told


def test_without_peers_there_is_no_best(asked):
    assert beside_step.figures([0.1], []) == {"peers": {}, "best_peer": None, "best_peer_lead": None}
    assert "synchronous" in measured(sync_batch_norm=True)["peers"]["ddp"]["skipped"]
    assert asked == []
