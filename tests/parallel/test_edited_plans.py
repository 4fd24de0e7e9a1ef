"""A plan that is written by `cingulum plan` and edited by hand trains to the weights of one process."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tiny_runs
from tiny_runs import PROGRAM

from cingulum.cli import app

pytestmark = pytest.mark.slow

COMMON = {"train__epochs": 2, "checkpoint__every_steps": 3}


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards")


def write_plan(config: Path, ranks: int) -> Path:
    out = config.parent / "by-hand.json"
    # Repeatable operations cannot be switched off again in this process.
    command = ["plan", str(config), "train.deterministic=false", "--ranks", str(ranks), "--out", str(out)]
    assert app.run(command) == 0
    return out


def move(plan: Path, name: str, rank: int) -> None:
    """Let one rank compute all of an operation."""
    tree = json.loads(plan.read_text())
    (one,) = [one for one in tree["operations"] if one["name"] == name]
    one["pieces"] = [[rank, [[0, length] for length in one["shape"]]]]
    plan.write_text(json.dumps(tree))


def train(launch, folder, shards, name, ranks, strategy):
    config = tiny_runs.write_config(folder, shards, name, **COMMON, train__strategy=strategy)
    outcome = launch(ranks, PROGRAM, "none", 0, 0, config)
    assert outcome.exit_code == 0, outcome.err
    return keras.saving.load_model(folder / name / "model.keras").get_weights()


def test_a_plan_edited_by_hand_ends_with_the_weights_of_one_process(tmp_path, shards, launch):
    strategy = {"name": "spatial"}
    config = tiny_runs.write_config(tmp_path, shards, "planned", **COMMON, train__strategy=strategy)
    plan = write_plan(config, 2)
    move(plan, "stage2_conv", 1)  # whose weights rank 0 has no longer, also to evaluate with
    alone = train(launch, tmp_path, shards, "alone", 0, "data")
    edited = train(launch, tmp_path, shards, "edited", 2, {**strategy, "plan": str(plan)})
    for mine, its in zip(edited, alone, strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=1e-5)
    kept = [tiny_runs.rows(tmp_path / name)[-1] for name in ("edited", "alone")]
    for key in ("loss", "val_loss"):
        assert kept[0][key] == pytest.approx(kept[1][key], abs=1e-5)
    followed = json.loads((tmp_path / "edited" / "plan.json").read_text())
    assert followed["way"].startswith(f"divided as {plan} says (SHA-256 ")
    assert followed["held"][0] < followed["parameters"]


def test_replicas_follow_an_edited_plan_too(tmp_path, shards, launch):
    strategy = {"name": "filters", "replicas": 2}
    config = tiny_runs.write_config(tmp_path, shards, "planned", **COMMON, train__strategy=strategy)
    plan = write_plan(config, 4)
    tree = json.loads(plan.read_text())
    for one in tree["operations"]:
        if one["name"] == "stage2_conv":  # the replicas' ranks change places
            for piece in one["pieces"]:
                piece[0] ^= 1
    plan.write_text(json.dumps(tree))
    alone = train(launch, tmp_path, shards, "alone", 0, "data")
    edited = train(launch, tmp_path, shards, "edited", 4, {**strategy, "plan": str(plan)})
    for mine, its in zip(edited, alone, strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=1e-5)


def test_ranks_whose_hosts_have_different_plans_are_refused_and_named(tmp_path, shards, launch):
    config = tiny_runs.write_config(tmp_path, shards, "run", **COMMON, train__strategy={"name": "spatial"})
    plan = write_plan(config, 2)
    strategy = {"name": "spatial", "plan": "its.json"}
    config = tiny_runs.write_config(tmp_path, shards, "run", **COMMON, train__strategy=strategy)
    folders = [Path(f"{config}.{rank}") for rank in range(2)]
    for folder in folders:
        folder.mkdir()
    shutil.copy(plan, folders[0] / "its.json")
    outcome = launch(2, PROGRAM, "apart", 0, 0, config)
    assert outcome.exit_code == 2, outcome.err
    assert re.search(r"\[rank 1 @ \S+\] its.json: there is no such file", outcome.err)
    move(plan, "stage2_conv", 1)
    shutil.copy(plan, folders[1] / "its.json")
    outcome = launch(2, PROGRAM, "apart", 0, 0, config)
    assert outcome.exit_code == 2, outcome.err
    assert outcome.err.count("its.json: is not the same plan on all ranks (SHA-256): rank 0 @ ") == 1
    assert not (tmp_path / "run").exists()


def test_a_plan_for_other_ranks_is_refused_once_and_nothing_is_written(tmp_path, shards, launch):
    config = tiny_runs.write_config(tmp_path, shards, "run", **COMMON, train__strategy={"name": "spatial"})
    plan = write_plan(config, 4)
    strategy = {"name": "spatial", "plan": str(plan)}
    config = tiny_runs.write_config(tmp_path, shards, "run", **COMMON, train__strategy=strategy)
    outcome = launch(2, PROGRAM, "none", 0, 0, config)
    assert outcome.exit_code == 2
    assert outcome.err.count(f"{plan}: is a plan for 4 rank(s), and 2 would train") == 1
    assert not (tmp_path / "run").exists()
