"""A strategy in a file of the user: examples/local_sgd.py trained, stopped, resumed; wrong ones refused."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tiny_runs
from tiny_runs import PROGRAM

from trainer import config as configuration
from trainer.errors import ConfigError
from trainer.strategies import registry

pytestmark = pytest.mark.slow

FILE = Path(__file__).parents[2] / "examples" / "local_sgd.py"
OWN = f"{FILE}:LocalSgd"
# Plain SGD is linear in its gradients: the mean of weights after one update each is the update by their mean.
COMMON = {
    "train__epochs": 2,
    "train__optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.0},
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards")


def weights(folder: Path) -> list[np.ndarray]:
    return keras.saving.load_model(folder / "model.keras").get_weights()


def test_averaging_every_update_is_data_parallel_and_a_stopped_run_goes_on(tmp_path, shards, launch):
    assert len(FILE.read_text().splitlines()) <= 60  # as the docs say

    def train(name, strategy, fault="none", step=0, *more):
        config = tiny_runs.write_config(tmp_path, shards, name, **COMMON, train__strategy=strategy)
        outcome = launch(2, PROGRAM, fault, 0, step, config, *more)
        assert outcome.exit_code == (75 if fault == "stop" else 0), outcome.err
        return outcome

    train("ring", "data")
    train("each", {"name": OWN, "options": {"every": 1}})
    for mine, its in zip(weights(tmp_path / "each"), weights(tmp_path / "ring"), strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=1e-5)

    train("local", {"name": OWN, "options": {"every": 3}}, "stop", 4)
    train("local", {"name": OWN, "options": {"every": 3}}, "none", 0, "--resume")
    result = tiny_runs.result(tmp_path / "local")
    assert result["steps"] == 12 and result["strategy"] == OWN and result["world_size"] == 2
    assert json.loads((tmp_path / "local" / "plan.json").read_text())["micro_batch"] == 2
    code = json.loads((tmp_path / "local" / "run.json").read_text())["strategy_code"]
    assert code == {"file": str(FILE), "sha256": hashlib.sha256(FILE.read_bytes()).hexdigest()}
    apart = [
        abs(a - b).max() for a, b in zip(weights(tmp_path / "local"), weights(tmp_path / "ring"), strict=True)
    ]
    assert max(apart) > 1e-3  # ranks were on their own in between

    config = tiny_runs.write_config(
        tmp_path, shards, "local", **COMMON, train__strategy={"name": OWN, "options": {"every": 2}}
    )
    outcome = launch(2, PROGRAM, "none", 0, 0, config, "--resume")
    assert outcome.exit_code == 2, outcome.err
    assert "train.strategy.options.every was 3 and is 2 now" in outcome.err


def test_one_that_asks_for_messages_groups_and_settings_of_mpi_gets_them(tmp_path, shards, launch):
    note, talks = tmp_path / "note.json", Path(__file__).parent / "programs" / "talking_sgd.py"
    strategy = {"name": f"{talks}:TalkingSgd", "options": {"note": str(note)}}
    config = tiny_runs.write_config(
        tmp_path, shards, "talks", **{**COMMON, "train__epochs": 1}, train__strategy=strategy
    )
    outcome = launch(2, "command.py", "train", config)
    assert outcome.exit_code == 0, outcome.err
    assert json.loads(note.read_text()) == {"from": 1, "values": [1, 1, 1], "group": 1, "algorithm": 3}


def test_a_wrong_option_is_told_once_by_all_ranks(tmp_path, shards, launch):
    strategy = {"name": OWN, "options": {"evry": 3}}
    config = tiny_runs.write_config(tmp_path, shards, "run", **COMMON, train__strategy=strategy)
    outcome = launch(2, PROGRAM, "none", 0, 0, config)
    said = "train.strategy.options: unknown key 'evry'. Did you mean 'every'?"
    assert outcome.exit_code == 2 and outcome.err.count(said) == 1, outcome.err
    assert "Traceback" not in outcome.err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"name": OWN, "options": {"every": 0}}, "train.strategy.options: every: must be at least 1"),
        (f"{FILE}:Options", f"{FILE}:Options is not a strategy."),
        (f"{FILE}:LocalSgb", "has no class 'LocalSgb'"),
        ("nowhere.py:X", "nowhere.py: there is no such Python file."),
    ],
)
def test_a_wrong_one_is_named(tmp_path, shards, strategy, said):
    config = tiny_runs.write_config(tmp_path, shards, "run", **COMMON, train__strategy=strategy)
    with pytest.raises(ConfigError, match=re.escape(said)):
        registry.of(configuration.load(config, []))
