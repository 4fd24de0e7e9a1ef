"""benchmarks/placement_on_hosts.py: its arguments, its table, and its emulated accelerator."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import emulated_units
from trainer.bench.placement_worker import PlacementJob, prepared
from trainer.ranks.world import World


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend("benchmarks")
    import placement_on_hosts

    return placement_on_hosts


def rank(seconds, planned_bytes=None):
    return {
        **{"seconds": seconds, "planned_s": 0.1, "waited_s": 0.1, "messages_s": 0.0},
        **{"planned_bytes": planned_bytes, "sent_bytes": planned_bytes, "wire_bytes": 2e6},
    }


def row(strategy, ranks, blocks):
    cell = {"strategy": strategy, "width": 16, "size": 96, "gflops": 32.0, "ranks": ranks}
    streams = {rate: [9e8, 9.5e8, 8e8] for rate in blocks} if ranks > 1 else {}
    return {**cell, "blocks": blocks, "streams_bits_s": streams}


def test_a_line_of_the_table_has_the_median_of_counted_steps_and_what_is_exposed(benchmark):
    rows = [
        row("spatial", 1, {"unlimited": [[rank([9.0, 0.2, 0.2])]]}),
        row(
            "spatial",
            2,
            {"1gbit": [[rank([9.0, 0.12, 0.16], 10**6)] * 2, [rank([9.0, 0.16, 0.18], 10**6)] * 2]},
        ),
    ]
    head, _, *lines = benchmark.placement_table.table(rows)
    figures = "0.160 (0.120, 0.180) | 1.25 | 0.100 | 0.060 | 0.000 | 1.00 | 2.00 | 0.90"
    assert lines[1] == f"| 16 | spatial | 2 | 1gbit | {figures} |"
    assert {line.count("|") for line in lines} == {head.count("|")}


def test_the_speed_up_of_data_is_that_of_volumes(benchmark):
    rows = [
        row("data", 1, {"unlimited": [[rank([1.0, 0.2])]]}),
        row("data", 4, {"1gbit": [[rank([1.0, 0.4])]]}),
    ]
    assert benchmark.placement_table.speed_up(rows, rows[1], "1gbit") == pytest.approx(2.0)
    assert benchmark.placement_table.speed_up(rows[1:], rows[1], "1gbit") is None


def test_bytes_that_the_plan_does_not_have_are_an_error(benchmark):
    wrong = row("spatial", 2, {"1gbit": [[rank([1.0, 0.2], 10), {**rank([1.0, 0.2], 10), "sent_bytes": 11}]]})
    with pytest.raises(ValueError, match="11 bytes per step were sent, of 10"):
        benchmark.placement_table.table([wrong])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "1"], "--steps: take 2 or more"),
        (["--rates", "fast"], "'fast' is not a rate"),
        (["--ranks", "0"], "0: take a number above 0"),
        (["--strategies", "hybrid"], "invalid choice: 'hybrid'"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(benchmark, monkeypatch, capsys, words, said):
    monkeypatch.setattr(sys, "argv", ["placement_on_hosts.py", *words])
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_help_says_that_hosts_and_accelerators_are_emulated(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["placement_on_hosts.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    assert ended.value.code == 0
    assert "Hosts and accelerators are emulated." in capsys.readouterr().out


def test_what_is_measured_is_not_measured_again(benchmark, monkeypatch, tmp_path, capsys):
    asked = []

    def measure(cell, rates, repeats):
        asked.append(cell["ranks"])
        links = ["unlimited"] if cell["ranks"] == 1 else [*rates, "unlimited"]
        blocks = {rate: [[rank([1.0, 0.2], 10)]] * repeats for rate in links}
        return {**cell, **row(cell["strategy"], cell["ranks"], blocks)}

    monkeypatch.setattr(benchmark, "measure", measure)
    line = ["placement_on_hosts.py", "--strategies", "spatial", "--out", str(tmp_path / "found.json")]
    for words in (["--ranks", "1"], ["--ranks", "1", "2"], ["--ranks", "1", "2", "--rates", "2gbit"]):
        monkeypatch.setattr(sys, "argv", [*line, *words])
        assert benchmark.main() == 0
    assert asked == [1, 2, 2]


SPEED = 1e8  # of an accelerator, FLOP/s: a step of the tiny network takes it long enough to be seen


class Counting(emulated_units.Accelerator):
    def __init__(self):
        super().__init__(SPEED)
        self.traced = []

    def work(self, flops, after):
        self.traced.append(flops)
        return super().work(flops, after)


def test_an_emulated_step_waits_for_the_work_of_its_plan_each_time_and_for_none_twice():
    from trainer import config as configuration
    from trainer.strategies import registry

    job = PlacementJob({"name": "spatial"}, "tiny", size=16, depth=16, width=4)
    tree = {"name": "a", "data": {"shards": "none"}, "model": {"name": "tiny"}}
    config = configuration.parse(json.dumps(tree), ["train.strategy=spatial", "train.global_batch=1"])
    device = Counting()
    plan, learner, batch = prepared(
        job, registry.of(config), World(), lambda *given: emulated_units.EmulatedModel(*given, device)
    )
    planned = emulated_units.flops_of(plan.placement, plan.lists[0])
    for _ in range(2):
        before = device.busy_s
        learner.train_step(*batch)
        assert device.busy_s - before >= planned / SPEED
    assert sum(device.traced) == pytest.approx(planned)


def test_the_work_of_a_divided_network_is_that_of_the_whole_one():
    from trainer import models
    from trainer.planning.placement import ways
    from trainer.planning.placement.listing import task_lists
    from trainer.planning.placement.units import place
    from trainer.strategies.placed.reading import read

    network = read(models.build("tiny", (16, 16, 16, 1), 2, width=4), 1)
    heavy = [one for one in network.operations if one.kind in emulated_units.KINDS]
    totals = []
    for count in (1, 2):
        placement = place(network, ways.spatial(network, (count, 1, 1), range(count)))
        totals.append(
            sum(emulated_units.flops_of(placement, tasks) for tasks in task_lists(placement).values())
        )
    # Nobody asks for the gradient of the volume, which the first convolution reads.
    assert totals[0] == pytest.approx(3 * sum(one.flops for one in heavy) - heavy[0].flops)
    assert totals[1] == pytest.approx(totals[0])
