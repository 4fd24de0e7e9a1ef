"""`cingulum plan`: every strategy beside the one that is asked for, and the plan that can be trained."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import pytest
from tiny_runs import make_shards, write_config

from cingulum.cli import app
from trainer import config as configuration
from trainer.forecast import plans
from trainer.planning.placement.drawing import WIDTH, strips
from trainer.planning.placement.plan_file import PlanFile
from trainer.planning.profile import Profile
from trainer.progress import Counting
from trainer.runs import preparation
from trainer.strategies import registry
from trainer.strategies.placed.profiling import timing


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return make_shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(autouse=True)
def _one_precision():
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def config(tmp_path, shards) -> Path:
    # Repeatable operations cannot be switched off again in this process.
    return write_config(tmp_path, shards, "run", train__deterministic=False, model__options={})


def planned(capsys, config: Path, *arguments: str) -> dict:
    assert app.run(["plan", str(config), *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def rows(tree: dict) -> dict[str, dict]:
    return {one["strategy"]: one for one in tree["strategies"]}


def test_all_strategies_are_in_one_table_of_80_columns_and_the_plan_is_written(config, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = config.parent / "plan.json"
    assert app.run(["plan", str(config), "--ranks", "2", "--strategy", "spatial", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 80  # the last one is a path
    start = next(i for i, line in enumerate(lines) if line.startswith("on 2 rank(s)"))
    named = [line.split("  ")[0] for line in lines[start + 1 : start + 7]]
    assert named == ["spatial", "data", "filters", "filters, master", "hybrid", "hypergraph"]
    assert any(line.split()[:3] == ["stage1_conv", "2", "depth"] for line in lines)
    assert lines[-1] == f"plan: {out}"
    file = PlanFile.read(out)
    assert (file.strategy, file.network, file.ranks) == ("spatial", "tiny", 2)
    assert {rank for one in file.operations for rank, _ in one.pieces} == {0, 1}


def test_the_figures_are_those_of_the_plan_that_a_run_would_follow(config, capsys):
    changes = ["train.strategy=filters", "train.strategy.shares=[1, 0.5, 0.25]", "train.accumulation=2"]
    tree = planned(capsys, config, *changes, "--ranks", "3")
    run = configuration.load(config, changes)
    data = preparation.open_data(run)
    model = preparation.build_model(run, data, synchronised=False)
    plan = registry.of(run).plan(model, keras.optimizers.SGD(), 3)
    found = tree["strategies"][0]
    assert found["strategy"] == "filters" and found["way"] == plan.way
    assert tuple(found["sent_bytes"]) == plan.sent_per_update
    assert tuple(found["messages"]) == plan.messages_per_update
    assert tuple(found["parameters_owned"]) == plan.owned and sum(plan.owned) == tree["parameters"]
    # Adam's two moments, the average of the weights and the sum of gradients, where the weights are.
    assert tree["slots"] == 4
    slots = [one["slots"] for one in found["memory_bytes"]]
    assert slots == [4 * 4 * own for own in plan.owned]
    assert found["step_s"] is None and found["imbalance"] > 0.5


def test_data_parallelism_sends_what_a_ring_does_once_in_an_update(config, capsys):
    sent = {}
    for batches in (1, 2):
        changes = ("train.sync_batch_norm=false", "train.global_batch=8", f"train.accumulation={batches}")
        found = rows(planned(capsys, config, *changes, "--ranks", "4" if batches == 1 else "2"))["data"]
        sent[batches] = sum(found["sent_bytes"])
        numbers = 3 if batches == 1 else 4  # gradients of micro-batches are added up
        assert {one["slots"] for one in found["memory_bytes"]} == {numbers * 4 * 1180}
    assert sent == {1: 2 * 3 * 4 * 1180, 2: 2 * 1 * 4 * 1180}
    moments = rows(planned(capsys, config, "train.global_batch=8", "--ranks", "2"))["data"]
    assert sum(moments["sent_bytes"]) > sent[2]


def profile_of_two(config: Path, factor: float) -> Path:
    """A profile of this process, but that seconds follow FLOPs; `factor` times as many on a second rank."""
    out = config.parent / "profile.json"
    assert app.run(["profile", str(config), "--out", str(out)]) == 0
    tree = json.loads(out.read_text())
    tree["devices"] *= 2
    tree["update"].update(seconds=[1e-5, 1e-5 * factor], spread_s=[0.0, 0.0])
    for one in tree["operations"]:
        for way, times in (("forward", 1), ("backward", 2)):
            seconds = times * one["flops"] / 1e9
            one.update({f"{way}_s": [seconds, seconds * factor], f"{way}_spread_s": [0.0, 0.0]})
    link = {"latency_s": 1e-6, "bytes_per_second": 1e12}
    tree |= {"links": [[None, link], [link, None]], "task_s": None}
    out.write_text(json.dumps(tree))
    return out


def test_with_a_profile_seconds_are_predicted_and_filters_follow_the_speed_of_devices(
    config, capsys, monkeypatch
):
    monkeypatch.setattr(timing, "ROUNDS", 1)
    monkeypatch.setattr(timing, "CALL_S", 0.0)
    path = profile_of_two(config, 3.0)
    capsys.readouterr()
    found = rows(planned(capsys, config, "--ranks", "2", "--profile", str(path)))
    whole = Profile.read(path).step_s(0)
    for one in found.values():
        assert max(one["busy_s"]) <= one["step_s"]
        assert one["step_s"] == pytest.approx(one["busy_s"][0] + one["waiting_s"][0])
    assert found["data"]["busy_s"][0] == pytest.approx(
        (whole + Profile.read(path).update.seconds[0]) / 2, rel=1e-3
    )
    assert found["data"]["imbalance"] == pytest.approx(0.5, rel=0.05)  # three times as long: 3 / 2 - 1
    assert found["filters"]["way"] == "filters divided 1:0.333, no master"
    assert found["filters"]["imbalance"] < 0.495  # 0.4997 if all are cut 1:1
    assert app.run(["plan", str(config), "--ranks", "2", "--profile", str(path)]) == 0
    assert " waits " in capsys.readouterr().out
    assert app.run(["plan", str(config), "model.width=4", "--ranks", "2", "--profile", str(path)]) == 2
    assert "FLOPs per sample for stage1_conv" in capsys.readouterr().err


def test_a_strategy_that_is_not_possible_is_refused_where_it_was_asked_for_and_said_beside_others(
    config, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    assert app.run(["plan", str(config), "--ranks", "3"]) == 2
    assert "4 samples cannot be shared evenly by 3 rank(s)" in capsys.readouterr().err
    assert app.run(["plan", str(config), "--ranks", "3", "--strategy", "filters"]) == 0
    assert "data: not possible. train.global_batch: 4 samples" in capsys.readouterr().out
    assert app.run(["plan", str(config), "--ranks", "32", "--strategy", "spatial"]) == 2
    assert "a depth of 16 voxels cannot be cut into 32 parts" in capsys.readouterr().err
    assert app.run(["plan", str(config), "--ranks", "2", "train.strategy=parameter-server"]) == 2
    assert "parameter-server is not one that can be planned" in capsys.readouterr().err
    many = ["plan", str(config), "--ranks", "13", "train.strategy={name: hybrid, planner: dynamic}"]
    assert app.run(many) == 2
    assert "the dynamic program takes at most 12 devices, not 13" in capsys.readouterr().err
    kept = config.parent / "notes.json"
    kept.write_text("{}")
    assert app.run(["plan", str(config), "--ranks", "2", "--out", str(kept)]) == 2
    assert "is not a plan that can be replaced" in capsys.readouterr().err and kept.read_text() == "{}"


def test_memory_of_stages_that_compute_activations_again_and_the_samples_of_batch_norm_are_said(
    config, capsys
):
    def found(**keys):
        section = json.dumps(
            {"name": "hybrid", "micro_batches": 4, "schedule": "gpipe", "planner": "dynamic", **keys}
        )
        return planned(capsys, config, f"train.strategy={section}", "--ranks", "2")["strategies"][0]

    kept, again = found(), found(recompute=True)
    assert "gpipe, computed again backwards, " in again["way"] and "again" not in kept["way"]
    assert again["way"].endswith("; batch norm over 1 of 4 samples of an update")
    # The second rank has no part of the batch.
    whole, less = (one["memory_bytes"][1]["kept"] for one in (kept, again))
    assert less < whole / 2


def test_a_plan_of_a_file_is_compared_like_any_other_and_refused_for_other_ranks_or_networks(config, capsys):
    out = config.parent / "plan.json"
    assert app.run(["plan", str(config), "--ranks", "2", "--strategy", "spatial", "--out", str(out)]) == 0
    tree = json.loads(out.read_text())
    (one,) = [one for one in tree["operations"] if one["name"] == "stage2_conv"]
    one["pieces"] = [[1, [[0, length] for length in one["shape"]]]]
    out.write_text(json.dumps(tree))
    capsys.readouterr()
    follow = ["train.strategy=spatial", f"train.plan={out}"]
    found = planned(capsys, config, *follow, "--ranks", "2")
    assert found["strategies"][0]["way"].startswith(f"divided as {out} says (SHA-256 ")
    assert found["plan"] == tree
    by_rule = rows(planned(capsys, config, "--strategy", "spatial", "--ranks", "2"))["spatial"]
    held = found["strategies"][0]["parameters_held"]
    assert held[0] < by_rule["parameters_held"][0] and held[1] == by_rule["parameters_held"][1]
    for more, said in (
        (("--ranks", "3"), "is a plan for 2 rank(s), and 3 would train"),
        (("--ranks", "2", "model.name=resnet10"), "is a plan for the network tiny, not for resnet10"),
        (("--ranks", "2", "model.width=4"), "stage1_conv is of shape"),
        (("--ranks", "2", "train.strategy.replicas=2"), "is a plan for 1 replica(s), not 2"),
    ):
        assert app.run(["plan", str(config), *follow, *more]) == 2
        assert said in capsys.readouterr().err


def test_a_strip_shows_who_computes_which_part(config):
    run = configuration.load(config, ["train.strategy=filters", "train.strategy.shares=[1, 0, 1]"])
    found = plans.compare(run, 3).chosen
    drawn = strips(found.file.layouts(found.placement.network))
    assert sum(one.count for one in drawn) == len(found.file.operations)
    assert {len(one.signs) for one in drawn} == {WIDTH}
    assert drawn[0].axes == ("channels",) and drawn[0].ranks == (0, 2)
    assert drawn[0].signs == "0" * (WIDTH // 2) + "2" * (WIDTH // 2)
    assert drawn[-1].axes == () and drawn[-1].signs == "0" * WIDTH


def test_planning_shows_how_far_it_is_but_not_for_json_and_ends_with_ctrl_c(config, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(Counting, "show", lambda counting, done, total: seen.append((done, total)))
    asked = ["plan", str(config), "--ranks", "2", "--strategy", "hypergraph"]
    assert app.run(asked) == 0
    (total,) = {total for _, total in seen}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen) and seen[-1] == (total, total)
    assert seen[-2][0] > 0.5 * total
    seen.clear()
    assert app.run([*asked, "--json"]) == 0 and not seen

    def interrupted(counting, done, total):
        if done == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(Counting, "show", interrupted)
    out = config.parent / "plan.json"
    capsys.readouterr()
    assert app.run([*asked, "--out", str(out)]) == 130
    assert not out.exists() and capsys.readouterr().err.splitlines() == ["interrupted"]


def test_of_many_ranks_one_replica_is_laid_out_and_the_figures_are_those_of_all(config, capsys, monkeypatch):
    asked = ["train.strategy=hypergraph", "train.strategy.objective=volume", "train.strategy.replicas=2"]
    asked += ["train.accumulation=2", "train.global_batch=8", "--ranks", "4"]
    of_all = planned(capsys, config, *asked)["strategies"][0]
    monkeypatch.setattr(plans, "MOST_RANKS", 3)
    tree = planned(capsys, config, *asked)
    found = tree["strategies"][0]
    for key in ("sent_bytes", "messages", "flops", "parameters_held", "parameters_owned"):
        assert found[key] == of_all[key], key
    assert [one["slots"] for one in found["memory_bytes"]] == [one["slots"] for one in of_all["memory_bytes"]]
    assert "2 replicas of 2 ranks, one of which was planned" in found["way"]
    assert (tree["plan"]["ranks"], tree["plan"]["replicas"]) == (4, 2)
    assert all("Not compared" in one["refused"] for one in tree["strategies"][1:])
    # As many replicas as take least, of those that samples allow.
    tree = planned(capsys, config, *[one.replace("replicas=2", "replicas=auto") for one in asked])
    assert tree["plan"]["replicas"] in (1, 2, 4)


def test_of_many_ranks_in_one_replica_the_plan_is_told_without_messages(config, capsys, monkeypatch):
    monkeypatch.setattr(plans, "MOST_RANKS", 3)
    monkeypatch.setattr("trainer.planning.hypergraph.judging.MOST_LISTED", 3)
    monkeypatch.setattr("trainer.planning.hypergraph.candidates.MOST_LISTED", 3)
    monkeypatch.setenv("COLUMNS", "80")
    out = config.parent / "plan.json"
    asked = ["train.strategy=hypergraph", "train.strategy.objective=volume", "--ranks", "4"]
    assert app.run(["plan", str(config), *asked, "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 80 and any(line.startswith("this plan") for line in lines)
    tree = planned(capsys, config, *asked)
    found = tree["strategies"][0]
    assert len(found["flops"]) == len(found["variable_bytes"]) == 4
    assert PlanFile.read(out).ranks == tree["plan"]["ranks"] == 4


OWN = """
from trainer.strategies import data_plan
from trainer.strategies.base import Strategy

class Silent(Strategy):
    def build(self, plan, setup):
        raise NotImplementedError

class Mine(Silent):
    def plan(self, model, optimizer, world_size):
        train = self.config.train
        return data_plan.plan(
            model, world_size=world_size, global_batch=train.global_batch, accumulation=train.accumulation
        )

class Broken(Silent):
    def plan(self, model, optimizer, world_size):
        return model.no_such_thing
"""


def test_a_strategy_of_ones_own_has_a_row_by_what_its_plan_tells(config, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(timing, "ROUNDS", 1)
    monkeypatch.setattr(timing, "CALL_S", 0.0)
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "own_planned.py"
    file.write_text(OWN)
    line = [f"train.strategy={file}:Mine", "--ranks", "2", "--profile", str(profile_of_two(config, 3.0))]
    capsys.readouterr()
    tree = planned(capsys, config, *line)
    own, ring = tree["strategies"][0], rows(tree)["data"]
    assert own["strategy"] == "Mine" and tree["plan"] is None and own["flops"] == ring["flops"]
    assert own["sent_bytes"] == pytest.approx(ring["sent_bytes"], rel=0.2)
    assert [one["total"] for one in own["memory_bytes"]] == [one["total"] for one in ring["memory_bytes"]]
    assert own["step_s"] == pytest.approx(ring["step_s"], rel=0.1)  # that of the slowest rank
    assert planned(capsys, config, *line[:3])["strategies"][0]["step_s"] is None
    assert app.run(["plan", str(config), *line]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown[:-1])) <= 80 and any(one.startswith("Mine  ") for one in shown)
    # Beside another one it is a row like others, and has no plan to be written.
    assert "Mine" in rows(planned(capsys, config, *line, "--strategy", "spatial"))
    out = tmp_path / "plan.json"
    assert app.run(["plan", str(config), *line, "--out", str(out)]) == 2
    assert "--strategy data" in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize(("name", "told"), [("Silent", "Plan.exchange"), ("Broken", "no_such_thing")])
def test_a_strategy_of_ones_own_that_does_not_tell_it_is_refused(config, capsys, tmp_path, name, told):
    file = tmp_path / "own_refused.py"
    file.write_text(OWN)
    assert app.run(["plan", str(config), f"train.strategy={file}:{name}"]) == 2
    assert told in capsys.readouterr().err
    beside = planned(capsys, config, f"train.strategy={file}:{name}", "--strategy", "data")
    assert told in rows(beside)[name]["refused"]
