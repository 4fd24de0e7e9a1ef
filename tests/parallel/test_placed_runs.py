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

from cingulum.cli import app
from trainer.telemetry import records

pytestmark = pytest.mark.slow

# Adam, averaged weights, batch norm, dropout and augmentation as in every tiny run.
COMMON = {"train__epochs": 2, "checkpoint__every_steps": 3}


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards")


def weights(folder: Path) -> list[np.ndarray]:
    return keras.saving.load_model(folder / "model.keras").get_weights()


def train(
    launch, folder, shards, name, ranks, strategy, more, *options, fault="none", step=0, environment=None
):
    config = tiny_runs.write_config(folder, shards, name, **{**COMMON, **more}, train__strategy=strategy)
    outcome = launch(ranks, PROGRAM, fault, 0, step, config, *options, environment=environment)
    assert outcome.exit_code == {"none": 0, "stop": 75}.get(fault, 1), outcome.err
    return folder / name


@pytest.fixture(scope="module")
def alone(tmp_path_factory, shards, launch) -> Path:
    """A run of one process."""
    return train(launch, tmp_path_factory.mktemp("runs"), shards, "alone", 0, "data", {})


def test_it_ends_with_the_weights_of_one_process(tmp_path, shards, launch):
    # With accumulation, Keras averages weights after every micro-batch: no strategy else does.
    plain = {"train__optimizer": {"name": "adamw", "learning_rate": 0.01}}
    ranks, more = 3, {"train__accumulation": 2, **plain}
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
    # Micro-batches that stages pass on are those of accumulation.
    section = {"name": "hybrid", "micro_batches": 2, "recompute": True}
    staged = train(launch, tmp_path, shards, "staged", 2, section, plain)
    for mine, its in zip(weights(staged), weights(alone), strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=1e-5)
    told_who_works_when(staged)


def told_who_works_when(folder: Path) -> None:
    """The plan says what was measured for it and is predicted; the chart has both passes of both halves."""
    division = json.loads((folder / "plan.json").read_text())["division"]
    assert (division["by"], division["planner"], len(division["ranks"])) == ("profile", "gabra", 8)
    assert 0 < division["step_s"] < 10 and division["gap"] >= 0
    chart = json.loads((folder / "telemetry" / "pipeline.json").read_text())
    assert chart["step"] == tiny_runs.rows(folder)[-1]["step"] and len(chart["ranks"]) == 2
    both = {(kind, micro) for kind in ("forward", "backward") for micro in (0, 1)}
    for rank in set(division["ranks"]):
        parts = chart["ranks"][rank]
        assert {(kind, micro) for kind, micro, _, _ in parts} == both
        ends = [moment for _, _, *span in parts for moment in span]
        assert ends == sorted(ends) and ends[0] >= 0 and ends[-1] <= chart["seconds"]


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


def test_a_stopped_run_goes_on_under_another_strategy_and_number_of_ranks(tmp_path, shards, launch, alone):
    moved = ({"name": "spatial"}, {})
    folder = train(launch, tmp_path, shards, "moved", 2, *moved, fault="stop", step=4)
    others = ({"name": "filters", "mode": "master"}, {})
    train(launch, tmp_path, shards, "moved", 3, *others, "--resume", fault="stop", step=8)
    train(launch, tmp_path, shards, "moved", 0, "data", {}, "--resume")
    for mine, its in zip(weights(folder), weights(alone), strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=1e-5)


FOLLOWING = {"name": "filters", "balance": "speed", "recalibrate_every": 4}
# Up to update 4 rank 1 is slow, and computes nothing of what reads volumes; from update 9 on rank 0 is.
# Beside so many seconds, those of messages are nothing.
SPEEDS = {0: [1e6, 4e6], 4: [1e6, 1e6], 8: [3e6, 1e6]}
DIVIDED = [[[2, 0], [3, 1], [6, 2]], [[1, 1], [2, 2], [4, 4]], [[1, 1], [1, 3], [2, 6]]]


def divisions(folder: Path) -> list[tuple[int, list[list[int]]]]:
    """After how many updates each convolution's filters were divided how, as plan.json has it."""
    plan = json.loads((folder / "plan.json").read_text())
    everyone = plan["recalibrated"] or [{"step": 0, **plan}]
    return [(one["step"], list(one["balance"]["filters"].values())) for one in everyone]


def pretended(speeds: dict[int, list[float]]) -> dict[str, str]:
    return {"SPEEDS": json.dumps(speeds)}


def follow(launch, folder, shards, name, *options, speeds=None, more=None, **fault) -> Path:
    environment = pretended(speeds or SPEEDS)
    return train(
        launch, folder, shards, name, 2, FOLLOWING, more or {}, *options, environment=environment, **fault
    )


def is_close(mine: Path, its: Path) -> bool:
    """Whether two runs end with the same weights but for the order of sums."""
    pairs = zip(weights(mine), weights(its), strict=True)
    return all(np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(other) for one, other in pairs)


@pytest.fixture(scope="module")
def followed(tmp_path_factory, shards, launch) -> Path:
    """A run whose filters follow the speeds of its devices."""
    return follow(launch, tmp_path_factory.mktemp("runs"), shards, "followed")


def test_filters_follow_the_speed_of_a_device_and_the_weights_stay_those_of_one_process(followed, alone):
    assert divisions(followed) == list(zip([0, 4, 8], DIVIDED, strict=True))
    plan = json.loads((followed / "plan.json").read_text())
    first, *later = plan["recalibrated"]
    assert first["owned"] != later[0]["owned"] != later[1]["owned"]
    assert {**plan, **later[-1]} == {**plan, "step": 8}, "what plan.json has besides is of the last division"
    assert sum(size for _, _, size in plan["drawing"]["pairs"]) == sum(plan["sent_per_update"])
    result = tiny_runs.result(followed)
    assert result["recalibrated"] == [{"step": one["step"], "way": one["way"]} for one in later]
    predicted = json.loads((followed / "prediction.json").read_text())
    assert predicted["sent"] == plan["sent_per_update"] and predicted["began"] == 8
    counted = result["prediction"]["counted_bytes"]
    assert counted["predicted"] == counted["measured"] == max(predicted["received"])
    assert is_close(followed, alone)
    for mine, its in zip(tiny_runs.rows(followed), tiny_runs.rows(alone), strict=True):
        assert mine["loss"] == pytest.approx(its["loss"], abs=1e-5)


def test_a_kill_changes_no_bit_of_a_run_that_was_divided_anew(tmp_path, shards, launch, followed):
    config = tiny_runs.write_config(tmp_path, shards, "killed", **COMMON, train__strategy=FOLLOWING)
    outcome = launch(2, PROGRAM, "kill", 1, 5, config, environment=pretended(SPEEDS))
    assert outcome.exit_code not in (0, 75)
    # It goes on from update 3. What plan.json has of update 5 counts, not what would be measured now.
    again = {**SPEEDS, 4: [4e6, 1e6]}
    resumed = follow(launch, tmp_path, shards, "killed", "--resume", speeds=again)
    assert divisions(resumed) == divisions(followed)
    ends = [tiny_runs.result(folder)["weights_sha256"] for folder in (followed, resumed)]
    assert ends[0] == ends[1]


def test_nor_does_a_signal_just_when_ranks_would_look_nor_a_table_that_is_missing_in_the_end(
    tmp_path, shards, launch, followed
):
    # Ranks agree to stop where a checkpoint is due.
    more = {"checkpoint__every_steps": 4}
    folder = follow(launch, tmp_path, shards, "stopped", more=more, fault="stop", step=4)
    assert tiny_runs.steps(folder)[-1] == 4 and divisions(folder) == [(0, DIVIDED[0])]
    follow(launch, tmp_path, shards, "stopped", "--resume", more=more)
    assert divisions(folder) == divisions(followed)
    ends = [tiny_runs.result(one)["weights_sha256"] for one in (followed, folder)]
    assert ends[0] == ends[1]
    table = folder / "evaluation" / "validation.csv"
    content = table.read_bytes()
    table.unlink()
    follow(launch, tmp_path, shards, "stopped", "--resume", more=more)
    assert table.read_bytes() == content


@pytest.mark.parametrize("more", [{"mode": "master", "balance": "bandwidth"}, {"balance": "speed"}])
def test_replicas_and_accumulation_go_with_it(tmp_path, shards, launch, more):
    accumulating = {"train__accumulation": 2}
    single = train(launch, tmp_path, shards, "single", 0, "data", accumulating)
    strategy = {"name": "filters", "replicas": 2, "recalibrate_every": 2, **more}
    speeds = pretended({0: [1e6] * 4, 4: [1e6, 1e6, 1e6, 4e6], 8: [4e6, 1e6, 1e6, 1e6]})
    folder = train(launch, tmp_path, shards, "four", 4, strategy, accumulating, environment=speeds)
    assert [step for step, _ in divisions(folder)] == [0, 4, 8]
    (_, first), (_, second), (_, third) = divisions(folder)
    assert first[2] == [4, 4] and second[2][0] > 4 > third[2][0]
    assert is_close(folder, single)


def test_a_rank_that_really_gets_less_of_its_processor_gets_fewer_filters(tmp_path, launch):
    shards = tiny_runs.make_shards(tmp_path / "shards", size=32)
    # So many that another division is worth its tracing on a fast processor, too.
    more = {**COMMON, "model__width": 32, "train__epochs": 12, "train__strategy": FOLLOWING}
    config = tiny_runs.write_config(tmp_path, shards, "slowed", **more)
    outcome = launch(2, PROGRAM, "quota", 1, 5, config)
    assert outcome.exit_code == 0, outcome.err
    (_, first), *_, (step, last) = divisions(tmp_path / "slowed")
    assert step > 5
    assert all(its[1] < before[1] for its, before in zip(last, first, strict=True))


@pytest.mark.parametrize("name", ["hybrid", "spatial", "hypergraph"])
def test_a_rank_that_is_killed_changes_no_bit_of_what_the_resumed_run_ends_with(
    tmp_path, shards, launch, name
):
    # Under `hybrid` rank 1 draws the masks.
    strategy, more = {"name": name}, {}
    if name == "hybrid":
        # By measurements, two runs could be divided otherwise, and differ in their last bits.
        strategy |= {"micro_batches": 2, "planner": "dynamic"}
        config = tiny_runs.write_config(
            tmp_path, shards, "planned", **{**COMMON, **more}, train__strategy=strategy
        )
        plan, again = tmp_path / "plan.json", "train.deterministic=false"
        assert app.run(["plan", str(config), again, "--ranks", "2", "--out", str(plan)]) == 0
        assert {rank for one in json.loads(plan.read_text())["operations"] for rank, _ in one["pieces"]} == {
            0,
            1,
        }
        strategy["plan"] = str(plan)
    elif name == "hypergraph":
        strategy["objective"] = "volume"
    whole = train(launch, tmp_path, shards, "whole", 2, strategy, more)
    killed = tiny_runs.write_config(
        tmp_path, shards, "killed", **{**COMMON, **more}, train__strategy=strategy
    )
    assert launch(2, PROGRAM, "kill", 1, 5, killed).exit_code not in (0, 75)
    train(launch, tmp_path, shards, "killed", 2, strategy, more, "--resume")
    ends = [tiny_runs.result(folder)["weights_sha256"] for folder in (whole, tmp_path / "killed")]
    assert ends[0] == ends[1]


@pytest.mark.timeout(900)  # five launches, one after the other
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
    plan.write_text(json.dumps({"replicas": 1, "balance": about}))
    train(launch, tmp_path, shards, "killed", 2, strategy, {}, "--resume", fault="stop", step=8)
    kept = json.loads(plan.read_text())["balance"]
    assert kept["measured"] == measured and kept["filters"] != about["filters"]
    ends = []
    for name in ("once", "again"):
        shutil.copytree(tmp_path / "killed", tmp_path / name)
        folder = train(launch, tmp_path, shards, name, 2, strategy, {}, "--resume")
        ends.append(tiny_runs.result(folder)["weights_sha256"])
    assert ends[0] == ends[1]
    about["measured"]["devices"] = []
    plan.write_text(json.dumps({"replicas": 1, "balance": about}))
    train(launch, tmp_path, shards, "killed", 2, strategy, {}, "--resume")
    assert json.loads(plan.read_text())["balance"]["measured"] not in (measured, None)


@pytest.mark.parametrize(
    "strategy, samples, said",
    [
        ({"name": "spatial", "parts": [3, 1, 1]}, 4, "3x1x1 are 3 parts, and a replica has 2 rank"),
        ({"name": "filters", "shares": [1, 1, 1]}, 4, "3 shares, and a replica has 2 rank"),
        ({"name": "spatial", "replicas": 3}, 6, "cannot be divided into 3 replicas"),
        ({"name": "hybrid", "micro_batches": 3}, 4, "cannot be divided into 3 micro-batches"),
    ],
)
def test_what_does_not_fit_the_ranks_is_refused(tmp_path, shards, launch, strategy, samples, said):
    more = {**COMMON, "train__strategy": strategy, "train__global_batch": samples}
    config = tiny_runs.write_config(tmp_path, shards, "wrong", **more)
    outcome = launch(2, PROGRAM, "none", 0, 0, config)
    assert outcome.exit_code == 2 and said in outcome.err
    assert outcome.err.count("train.strategy.") == 1
    assert not (tmp_path / "wrong").exists()
