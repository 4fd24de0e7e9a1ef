"""`train.strategy=auto`: a run trains as if what it chose had been named, also where it changes its mind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tiny_runs
from tiny_runs import PROGRAM

pytestmark = pytest.mark.slow

COMMON = {"train__epochs": 4, "checkpoint__every_steps": 6}
AUTO = {"name": "auto", "among": ["data", "spatial", "hybrid"], "reconsider_after": 3}


def weights(folder: Path) -> list[np.ndarray]:
    return keras.saving.load_model(folder / "model.keras").get_weights()


def chosen(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "plan.json").read_text())["auto"]
    return found


OWN = """
from trainer.strategies import data, data_plan
from trainer.strategies.base import Strategy
from trainer.strategies.distributed_optimizer import DistributedOptimizer

class Mine(Strategy):
    def divided(self, optimizer, world):
        return DistributedOptimizer(optimizer)

    def plan(self, model, optimizer, world_size):
        train = self.config.train
        return data_plan.plan(
            model, world_size=world_size, global_batch=train.global_batch, accumulation=train.accumulation
        )

    def build(self, plan, setup):
        return data.build(setup, bucket_mb=4.0)

class Needy(Mine):
    def environment(self):
        return {"HOROVOD_CYCLE_TIME": "2"}
"""


@pytest.fixture(scope="module")
def train(tmp_path_factory, launch):
    folder = tmp_path_factory.mktemp("runs")
    shards = tiny_runs.make_shards(folder / "shards")

    def start(name, ranks, strategy, *options, fault="none", step=0):
        config = tiny_runs.write_config(folder, shards, name, **COMMON, train__strategy=strategy)
        outcome = launch(ranks, PROGRAM, fault, 0, step, config, *options)
        assert outcome.exit_code == (75 if fault == "stop" else 0), outcome.err
        return folder / name, outcome.err

    return start


@pytest.fixture(scope="module")
def alone(train) -> Path:
    return train("alone", 0, "data")[0]


def test_a_run_that_changes_its_mind_at_checkpoints_ends_with_the_weights_of_one_process(train, alone):
    folder, told = train("late", 2, AUTO, fault="late")
    auto = chosen(folder)
    labels = [one["label"] for one in auto["candidates"]]
    assert labels == ["data", "spatial", "hybrid"] and all(one["step_s"] > 0 for one in auto["candidates"])
    # Each update is told to have taken a minute: all others promise more, until three were tried.
    assert [step for step, _, _ in auto["changes"]] == [6, 12]
    (_, first, second), (_, also_second, third) = auto["changes"]
    assert second == also_second and {first, second, third} == {0, 1, 2} and auto["chosen"] == third
    assert all(one["measured_s"] > 60 for one in auto["candidates"])
    assert told.count("strategy: ") == 3
    ran = json.loads((folder / "run.json").read_text())
    assert [again["step"] for again in ran["resumed_from"]] == [6, 12]
    assert json.loads((folder / "plan.json").read_text())["strategy"] == labels[third]
    assert tiny_runs.result(folder)["strategy"] == labels[third]
    assert [row["step"] for row in tiny_runs.rows(folder)] == [6, 12, 18, 24]
    for mine, its in zip(weights(folder), weights(alone), strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=1e-5)


def test_a_run_that_goes_on_keeps_its_choice_on_the_same_ranks_and_chooses_anew_on_others(train, alone):
    keeps = {**AUTO, "reconsider_after": None}
    folder, _ = train("kept", 2, keeps, fault="stop", step=4)
    before = chosen(folder)
    _, told = train("kept", 2, keeps, "--resume", fault="stop", step=8)
    assert chosen(folder) == before and before["candidates"][before["chosen"]]["label"] in told
    train("kept", 0, keeps, "--resume")
    assert [one["label"] for one in chosen(folder)["candidates"]] == ["data"]
    for mine, its in zip(weights(folder), weights(alone), strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=1e-5)


def test_a_strategy_of_ones_own_is_tried_beside_ours_and_one_that_needs_more_is_told(train, alone, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    among = [f"{file}:Mine", f"{file}:Needy", "data"]
    folder, _ = train("own", 2, AUTO | {"among": among}, fault="late")
    auto = chosen(folder)
    mine, needy, ring = auto["candidates"]
    assert [one["label"] for one in (mine, needy, ring)] == ["Mine", "Needy", "data"]
    assert "train.strategy.name" in needy["refused"] and not needy["fits"]
    # Its messages are those of the ring, over links that were measured; computing is summed up otherwise.
    assert mine["step_s"] == pytest.approx(ring["step_s"], rel=0.5)
    assert mine["memory_bytes"] == ring["memory_bytes"]
    # Each was told to have taken a minute, so that both have trained.
    assert len(auto["changes"]) == 1 and min(mine["measured_s"], ring["measured_s"]) > 60
    code = json.loads((folder / "run.json").read_text())["strategy_code"]
    assert code is None if auto["chosen"] == 2 else code["file"] == str(file)
    for its, one in zip(weights(folder), weights(alone), strict=True):
        np.testing.assert_allclose(its, one, rtol=0, atol=1e-5)
