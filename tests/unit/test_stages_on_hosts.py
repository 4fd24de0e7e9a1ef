"""benchmarks/stages_on_hosts.py: what it measures, and its table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import stages_on_hosts

    return stages_on_hosts


def asked(program, **changes):
    given = {
        "model": "resattnet18", "width": 16, "size": 64, "samples": 8, "gflops": 8.0, "steps": 4,
        "first": False, "rate": "250mbit", "planner": "gabra", "ranks": [1, 2, 8], "ways": program.WAYS,
    }  # fmt: skip
    return program.cells(argparse.Namespace(**{**given, **changes}))


def test_replicas_are_of_two_ranks_at_least_and_one_host_has_one_way(program):
    cells = [(one["strategy"], one["ranks"], one["replicas"]) for one in asked(program)]
    assert cells[0] == ("stages", 1, 1)
    assert cells[1:4] == [("data", 2, 1), ("stages", 2, 1), ("gpipe", 2, 1)]
    assert cells[-2:] == [("hybrid", 8, 2), ("hybrid", 8, 4)]


def test_a_micro_batch_is_a_volume_of_each_replica(program):
    cell = asked(program)[-1]
    job = program.job_of(cell)
    assert (job.strategy["replicas"], job.strategy["micro_batches"], job.batch) == (4, 2, 8)
    assert program.job_of({**cell, "strategy": "gpipe"}).strategy["schedule"] == "gpipe"
    assert program.bits_per_second("250mbit") == 250e6


def test_steps_are_those_of_the_slowest_rank_and_the_prediction_is_beside_them(program):
    def row(ranks, rate, *seconds):
        same = {"predicted_s": 0.5, "waited_s": 0.4, "planned_bytes": 8, "sent_bytes": 8, "wire_bytes": 9}
        # Of each rank, the first step is not counted.
        block = [{"seconds": [9.0, *each], **same} for each in seconds]
        return {
            "strategy": "stages",
            "ranks": ranks,
            "replicas": 1,
            "rate": "1gbit",
            "blocks": {rate: [block]},
        }

    two = row(2, "1gbit", [0.1, 0.1], [0.8, 1.2])
    assert program.steps(two, "1gbit") == [0.8, 1.2]
    lines = program.table([row(1, "unlimited", [2.0, 2.0]), two])
    assert lines[-1] == ("| stages | 2 | 1 x 2 | 1.000 (0.800, 1.200) | 2.00 | 0.500 | 0.500 | 60% | 0.00 |")


def cell_of(program, **changes):
    """A cell of a tiny network on two hosts."""
    cell = asked(program, model="tiny", size=16, width=4, samples=2, ranks=[2], ways=["stages"])[0]
    return {**cell, "overhead_s": [0.0, 0.0], **changes}


def test_what_waits_and_tasks_take_besides_is_that_of_one_rank(program):
    figures = {"seconds": [9.0, 1.3, 1.3], "waited_s": 1.1, "planned_s": 1.0, "calls": (10, 40)}
    alone = {"strategy": "stages", "ranks": 1, "blocks": {"unlimited": [[figures]]}}
    assert program.overhead([]) == [0.0, 0.0]
    assert program.overhead([alone]) == pytest.approx([0.01, 0.005])


def test_a_profile_has_the_waits_of_the_accelerator_and_what_tasks_and_messages_take_besides(program):
    from trainer.planning.profile import ProfiledHandling

    cell = cell_of(program)
    plain = program.profile(cell, program.job_of(cell))
    handled = ProfiledHandling(message_s=(0.25, 0.5), byte_s=(0.0, 1.0))
    slower = program.profile({**cell, "overhead_s": [2.0, 8.0]}, program.job_of(cell), handled)
    more = {
        one.kind: (slower.forward_s(one.name, 0) - plain.forward_s(one.name, 0),
                   slower.backward_s(one.name, 1) - plain.backward_s(one.name, 1))
        for one in plain.operations
    }  # fmt: skip
    assert more["input"] == (0.0, 0.0)
    # The gradients of a convolution's inputs and weights are two tasks with a wait each.
    assert more["convolution"] == pytest.approx((10.0, 20.0)) and more["activation"] == (8.0, 8.0)
    assert slower.handling_s(1, 3) == 3.5 and plain.handling_s(1, 3) == 0.0


@pytest.mark.parametrize("way", ["torch-gpipe", "torch-1f1b"])
def test_the_chain_of_the_peer_takes_the_seconds_of_all_operations(program, way):
    cell = cell_of(program, strategy=way)
    job, profile = program.job_of(cell), program.profile(cell, program.job_of(cell))
    assert job.strategy["schedule"] == way.removeprefix("torch-")
    stages = program.stages_of_torch.chain(profile, job, 2, job.strategy["schedule"])
    for key in ("forward_s", "backward_s"):
        whole = sum(getattr(one, key)[0] for one in profile.operations)
        assert sum(stage[key] for stage in stages) == pytest.approx(whole)
    assert [stage["sent_bytes"] > 0 for stage in stages] == [*[True] * (len(stages) - 1), False]


def test_a_peer_without_its_python_is_refused_before_anything_starts(program, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["stages_on_hosts.py", "--ways", "torch-gpipe"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2 and "--peers-python" in capsys.readouterr().err


def test_its_help_is_there(program, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["stages_on_hosts.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 0 and "--rate" in capsys.readouterr().out
