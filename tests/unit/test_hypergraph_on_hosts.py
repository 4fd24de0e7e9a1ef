"""benchmarks/hypergraph_on_hosts.py: what it measures, the plans it is measured by, and its table."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

RATES = ["200mbit", "1gbit"]
TINY = {"model": "tiny", "width": 4, "size": 16, "samples": 1, "gflops": 0.1, "steps": 4, "first": False}


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import hypergraph_on_hosts

    return hypergraph_on_hosts


def cell(way, ranks=2, planned_for=None, **changes):
    return {"strategy": way, "ranks": ranks, "planned_for": planned_for, **TINY, **changes}


def row(way, ranks, seconds, *, predicted=None, planned_bytes=10**6, **changes):
    rank = {"planned_bytes": planned_bytes, "sent_bytes": planned_bytes, "wire_bytes": 2e6}
    blocks = {rate: [[{"seconds": [9.0, *some], **rank}] * ranks] for rate, some in seconds.items()}
    return {**cell(way, ranks, **changes), "blocks": blocks, "predicted_s": predicted or {}}


def test_only_what_is_planned_for_seconds_is_planned_for_each_rate(program):
    args = argparse.Namespace(ranks=[1, 2], ways=["time", "volume", "data"], rates=RATES, **TINY)
    asked = [(one["strategy"], one["ranks"], program.rates_of(one, RATES)) for one in program.cells(args)]
    assert asked == [
        ("layers", 1, RATES),
        ("time", 2, ["200mbit"]),
        ("time", 2, ["1gbit"]),
        ("volume", 2, RATES),
        ("data", 2, RATES),
    ]


def test_data_has_a_sample_for_each_rank_at_least_and_the_others_have_the_same_samples(program):
    assert program.job_of(cell("data", 8, samples=4)).batch == 8
    assert program.job_of(cell("data", 2, samples=4)).batch == 4
    job = program.job_of({**cell("spatial", 8, samples=4), "plan": "plan.json"})
    assert (job.batch, job.strategy) == (4, {"name": "hypergraph", "plan": "plan.json"})


@pytest.mark.parametrize("way", ["time", "volume-layers", "layers", "spatial"])
def test_ranks_train_by_the_plan_whose_bytes_and_seconds_are_told(program, tmp_path, way):
    """The strategy, given the file, sends what was told."""
    from trainer import models
    from trainer.planning.placement import costs
    from trainer.strategies.placed.reading import read

    one = cell(way, planned_for="200mbit" if way == "time" else None)
    file, told = program.planned(one, RATES)
    path = tmp_path / "plan.json"
    path.write_text(file.text())
    job = program.job_of({**one, "plan": str(path)})
    tree = {"name": "a", "data": {"shards": "none"}, "model": {"name": "tiny"}}
    tree["train"] = {"global_batch": 1, "strategy": job.strategy}
    plan = planned_by(tree, 2)
    assert sum(plan.sent_per_update) == sum(told["bytes"].values()) > 0
    # Slower links, a longer step: what the accelerators do is the same.
    assert told["predicted_s"]["200mbit"] > told["predicted_s"]["1gbit"]
    network = read(models.build("tiny", (16, 16, 16, 1), 2, width=4), 1)
    profile = program.stages_on_hosts.profile({**one, "rate": "1gbit"}, job)
    played = costs.predict(plan.placement, plan.lists, profile, 2)
    costs.check_profile(profile, network, 2)
    assert told["predicted_s"]["1gbit"] == pytest.approx(played.step_s)


def planned_by(tree, ranks):
    import keras

    from trainer import config as configuration
    from trainer import models
    from trainer.strategies import registry

    model = models.build("tiny", (16, 16, 16, 1), 2, width=4)
    return registry.of(configuration.parse(json.dumps(tree), [])).plan(model, keras.optimizers.SGD(), ranks)


def test_a_line_has_samples_per_second_over_those_of_one_host_and_the_prediction(program):
    rows = [
        row("layers", 1, {"unlimited": [0.8, 0.8]}, predicted={"unlimited": 0.76}),
        row("time", 2, {"1gbit": [0.4, 0.5, 0.6]}, predicted={"1gbit": 0.4}, planned_for="1gbit"),
        row("data", 2, {"1gbit": [1.0, 1.0]}, planned_bytes=None),
    ]
    head, _, *lines = program.table(rows, RATES)
    assert lines == [
        "| 1 |  | layers | 0.800 (0.800, 0.800) | 1.00 | 0.760 | 0.95 | 1.00 |",
        "| 2 | 1gbit | time | 0.500 (0.400, 0.600) | 1.60 | 0.400 | 0.80 | 2.00 |",
        "| 2 | 1gbit | data | 1.000 (1.000, 1.000) | 1.60 |  |  | 4.00 |",
    ]
    assert {line.count("|") for line in lines} == {head.count("|")}


def test_bytes_that_the_plan_does_not_have_are_an_error(program):
    wrong = row("time", 2, {"1gbit": [0.4]})
    wrong["blocks"]["1gbit"][0][1] = {**wrong["blocks"]["1gbit"][0][1], "sent_bytes": 11}
    with pytest.raises(ValueError, match="11 bytes per step were sent, of 1000000"):
        program.table([wrong], ["1gbit"])


def test_what_is_measured_is_not_measured_again(program, monkeypatch, tmp_path, capsys):
    asked = []

    def measure(one, rates, repeats):
        asked.append((one["ranks"], *rates))
        links = ["unlimited"] if one["ranks"] == 1 else [*rates, "unlimited"]
        found = row(one["strategy"], one["ranks"], {rate: [0.2, 0.2] for rate in links})
        found["blocks"] = {rate: some * repeats for rate, some in found["blocks"].items()}
        return {**found, **one}

    monkeypatch.setattr(program, "measure", measure)
    line = ["hypergraph_on_hosts.py", "--ways", "time", "--out", str(tmp_path / "found.json")]
    for words in (["--ranks", "1"], ["--ranks", "1", "2"], ["--ranks", "2", "--rates", "1gbit", "2gbit"]):
        monkeypatch.setattr(sys, "argv", [*line, *words])
        assert program.main() == 0
    assert asked == [(1, *RATES), (2, "200mbit"), (2, "1gbit"), (2, "2gbit")]


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--steps", "1"], "--steps: take 2 or more"), (["--ways", "magic"], "invalid choice: 'magic'")],
)
def test_bad_arguments_are_refused_before_anything_starts(program, monkeypatch, capsys, words, said):
    monkeypatch.setattr(sys, "argv", ["hypergraph_on_hosts.py", *words])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
