"""`cingulum train` under parameter servers: stopped, resumed under other strategies, and a frozen server."""

from __future__ import annotations

import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tiny_runs
from tiny_runs import PROGRAM

from jobs.supervisor import blame

pytestmark = pytest.mark.slow

COMMON = {"train__epochs": 2, "train__strategy": "parameter-server"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards")


def test_a_run_goes_on_under_another_strategy_and_ends_with_the_same_weights(tmp_path, shards, launch):
    def train(processes, fault, step, name, *resume, **changes):
        config = tiny_runs.write_config(tmp_path, shards, name, **{**COMMON, **changes})
        outcome = launch(processes, PROGRAM, fault, 0, step, config, *resume)
        assert outcome.exit_code == (75 if fault == "stop" else 0), outcome.err
        return outcome

    train(1, "none", 0, "whole", train__strategy="data")
    first = train(3, "stop", 3, "run")
    assert re.search(r"stopped at step \d+ of 12", first.err)
    said = json.loads((tmp_path / "run" / "run.json").read_text())
    assert said["world_size"] == 2 and len(said["servers"]) == 1
    assert said["mpi"]["btl_tcp_eager_limit"] == 2**22 + 2**12  # messages leave without asking
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["strategy"] == "parameter-server"
    train(2, "stop", max(tiny_runs.steps(tmp_path / "run")) + 2, "run", "--resume", train__strategy="data")
    colocated = {"name": "parameter-server", "count": 2, "placement": "colocated"}
    train(2, "none", 0, "run", "--resume", train__strategy=colocated)

    result = tiny_runs.result(tmp_path / "run")
    assert result["strategy"] == "parameter-server" and result["steps"] == 12
    ours, theirs = (keras.saving.load_model(tmp_path / name / "model.keras") for name in ("run", "whole"))
    for mine, its in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=2e-4)
    for mine, its in zip(*(tiny_runs.rows(tmp_path / name) for name in ("run", "whole")), strict=True):
        assert mine["val_loss"] == pytest.approx(its["val_loss"], abs=1e-4)


def test_a_server_that_is_frozen_is_named_by_the_workers(tmp_path, shards, launch):
    config = tiny_runs.write_config(tmp_path, shards, "run", **COMMON, guards__timeout_s=15)
    outcome = launch(3, PROGRAM, "freeze", -1, 4, config)
    assert outcome.exit_code == 1
    assert re.search(r"^\[server 0 @ \S+\] error: does not answer rank \d @ ", outcome.err, re.M), outcome.err


def test_a_server_that_is_killed_ends_the_run_with_its_name(tmp_path, shards, launch):
    config = tiny_runs.write_config(tmp_path, shards, "run", **COMMON)
    outcome = launch(3, PROGRAM, "kill", -1, 4, config)
    assert outcome.exit_code == 137, outcome.err
    found = blame.read(outcome.out + outcome.err, outcome.exit_code)
    assert re.fullmatch(r"server 0 @ \S+: was killed by signal 9 \(SIGKILL\)", str(found)), outcome.err
