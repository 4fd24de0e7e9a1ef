"""Runs whose network is divided over ranks end with the weights of one process, and go on anywhere.

Every strategy, option and number of ranks: test_placed_cases.py, without the rest of a run.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tiny_runs
from tiny_runs import PROGRAM

from trainer.telemetry import records

pytestmark = pytest.mark.slow

# Adam, averaged weights, batch norm and augmentation as in every tiny run; dropout draws other masks than
# Keras does.
COMMON = {"train__epochs": 2, "model__options": {}, "checkpoint__every_steps": 3}


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards")


def weights(folder: Path) -> list[np.ndarray]:
    return keras.saving.load_model(folder / "model.keras").get_weights()


def train(launch, folder, shards, name, ranks, strategy, more, *options, fault="none", step=0):
    config = tiny_runs.write_config(folder, shards, name, **{**COMMON, **more}, train__strategy=strategy)
    outcome = launch(ranks, PROGRAM, fault, 0, step, config, *options)
    assert outcome.exit_code == {"none": 0, "stop": 75}.get(fault, 1), outcome.err
    return folder / name


def test_it_ends_with_the_weights_of_one_process(tmp_path, shards, launch):
    ranks, more = 3, {"train__accumulation": 2}
    alone = train(launch, tmp_path, shards, "alone", 0, "data", more)
    strategy = {"name": "filters", "shares": [1, 0.5, 0.25]}
    divided = train(launch, tmp_path, shards, "divided", ranks, strategy, more)
    for mine, its in zip(weights(divided), weights(alone), strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=1e-5)
    kept = tiny_runs.rows(divided)[-1], tiny_runs.rows(alone)[-1]
    for key in ("loss", "val_loss", "learning_rate"):
        assert kept[0][key] == pytest.approx(kept[1][key], abs=1e-5)
    plan = json.loads((divided / "plan.json").read_text())
    assert len(plan["sent_per_update"]) == ranks and sum(plan["owned"]) == plan["parameters"]
    told_what_it_moves_and_waits_for(divided, plan)


def told_what_it_moves_and_waits_for(folder: Path, plan: dict[str, Any]) -> None:
    """Bytes as predicted, from each peer in each step; waiting is no part of what a rank computes."""
    predicted = json.loads((folder / "prediction.json").read_text())
    assert predicted["sent"] == plan["sent_per_update"] and predicted["link"] is None
    assert predicted["messages"] == plan["messages_per_update"]
    for rank, steps in records.read(folder).steps.items():
        assert len(steps) == tiny_runs.rows(folder)[-1]["step"]
        for step in steps:
            peers = {one.peer for one in step.transfers}
            assert {one.kind for one in step.transfers} == {"wait"} and peers <= {0, 1, 2} - {rank}
            assert sum(one.bytes for one in step.transfers) == predicted["received"][rank]
            assert 0 < step.exposed < step.seconds
    assert sum(size for _, _, size in plan["drawing"]["pairs"]) == sum(plan["sent_per_update"])
    assert "<h2>Who holds what</h2>" in (folder / "report.html").read_text()
    result = tiny_runs.result(folder)
    counted, memory = (result["prediction"][key] for key in ("counted_bytes", "memory_bytes"))
    assert counted["predicted"] == counted["measured"] == max(predicted["received"])
    assert len(predicted["memory"]) == len(result["memory_bytes"]) == 3
    # Of so small a network nearly all that a process takes is TensorFlow's graph.
    assert memory["predicted"] == max(predicted["memory"]) < memory["measured"] in result["memory_bytes"]


def test_a_stopped_run_goes_on_under_another_strategy_and_number_of_ranks(tmp_path, shards, launch):
    alone = train(launch, tmp_path, shards, "alone", 0, "data", {})
    moved = ({"name": "spatial"}, {})
    folder = train(launch, tmp_path, shards, "moved", 2, *moved, fault="stop", step=4)
    others = ({"name": "filters"}, {})
    train(launch, tmp_path, shards, "moved", 3, *others, "--resume", fault="stop", step=8)
    train(launch, tmp_path, shards, "moved", 0, "data", {}, "--resume")
    for mine, its in zip(weights(folder), weights(alone), strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=1e-5)


def test_a_rank_that_is_killed_changes_no_bit_of_what_the_resumed_run_ends_with(tmp_path, shards, launch):
    strategy = {"name": "spatial"}
    whole = train(launch, tmp_path, shards, "whole", 2, strategy, {})
    killed = tiny_runs.write_config(tmp_path, shards, "killed", **COMMON, train__strategy=strategy)
    assert launch(2, PROGRAM, "kill", 1, 5, killed).exit_code not in (0, 75)
    train(launch, tmp_path, shards, "killed", 2, strategy, {}, "--resume")
    ends = [tiny_runs.result(folder)["weights_sha256"] for folder in (whole, tmp_path / "killed")]
    assert ends[0] == ends[1]


@pytest.mark.deep
def test_what_was_measured_of_the_ranks_goes_on_with_the_run(tmp_path, shards, launch):
    strategy = {"name": "filters", "balance": "bandwidth"}
    killed = tiny_runs.write_config(tmp_path, shards, "killed", **COMMON, train__strategy=strategy)
    assert launch(2, PROGRAM, "kill", 1, 5, killed).exit_code not in (0, 75)
    plan = tmp_path / "killed" / "plan.json"
    about = json.loads(plan.read_text())["balance"]
    measured = about["measured"]
    assert [one["threads"] for one in measured["devices"]] == [1, 1]
    assert all(1e-3 < seconds < 1e3 for seconds in measured["seconds_per_gflop"])
    assert measured["links"][0] is None and measured["links"][1]["bytes_per_second"] > 1e6
    assert [sum(split) for split in about["filters"].values()] == [2, 4, 8]
    # As if rank 1 had been a quarter as fast when the run began; its filters are fewer than are measured now.
    measured["seconds_per_gflop"][1] = 4 * measured["seconds_per_gflop"][0]
    plan.write_text(json.dumps({"balance": about}))
    train(launch, tmp_path, shards, "killed", 2, strategy, {}, "--resume", fault="stop", step=8)
    kept = json.loads(plan.read_text())["balance"]
    assert kept["measured"] == measured and kept["filters"] != about["filters"]
    ends = []
    for name in ("once", "again"):
        shutil.copytree(tmp_path / "killed", tmp_path / name)
        folder = train(launch, tmp_path, shards, name, 2, strategy, {}, "--resume")
        ends.append(tiny_runs.result(folder)["weights_sha256"])
    assert ends[0] == ends[1]
    plan.write_text(json.dumps({"balance": {**about, "measured": {**measured, "devices": []}}}))
    train(launch, tmp_path, shards, "killed", 2, strategy, {}, "--resume")
    assert json.loads(plan.read_text())["balance"]["measured"] not in (measured, None)


@pytest.mark.parametrize(
    "strategy, said",
    [
        ({"name": "spatial", "parts": [3, 1, 1]}, "3x1x1 are 3 parts, and a replica has 2 rank"),
        ({"name": "filters", "shares": [1, 1, 1]}, "3 shares, and a replica has 2 rank"),
        ({"name": "spatial", "replicas": 3}, "cannot be divided into 3 replicas"),
    ],
)
@pytest.mark.deep
def test_what_does_not_fit_the_ranks_is_refused(tmp_path, shards, launch, strategy, said):
    config = tiny_runs.write_config(tmp_path, shards, "wrong", **COMMON, train__strategy=strategy)
    outcome = launch(2, PROGRAM, "none", 0, 0, config)
    assert outcome.exit_code == 2 and said in outcome.err
    assert outcome.err.count("train.strategy.") == 1
    assert not (tmp_path / "wrong").exists()
