"""`cingulum simulate` and `advise`: every strategy on ranks that are not there, and what to change."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import pytest
import yaml
from tiny_runs import make_shards, write_config

from cingulum.cli import app
from trainer.forecast import growth
from trainer.planning.simulation import cluster
from trainer.telemetry.trace import MESSAGES, STEP

# Which of two is faster at first, and then.
STARTS = [("hybrid", "data"), ("data", "hybrid")]
STRATEGIES = ["data", "server", "spatial", "filters", "filters, master", "hybrid", "hypergraph"]


@pytest.fixture(autouse=True)
def _one_precision():
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    # Repeatable operations cannot be switched off again in this process.
    return write_config(
        folder, make_shards(folder / "shards"), "run", train__deterministic=False, model__options={}
    )


def simulated(capsys, config: Path, *arguments: str) -> list[dict]:
    assert app.run(["simulate", str(config), *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["rows"]


def test_every_strategy_has_a_row_of_80_columns_or_a_reason(config, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    line = ["simulate", str(config), "--ranks", "2,1,8", "--batch-per-rank", "1", "--cluster"]
    line += ["dragonfly-a100", "--plot", str(tmp_path / "plot.png")]
    assert app.run(line) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 80 and not any("…" in line for line in lines)
    starts = [i for i, line in enumerate(lines) if " rank(s) " in line]
    assert [lines[i].split()[0] for i in starts] == ["1", "2", "8"]
    assert any(line.startswith("spatial, filters, hybrid, hypergraph: not possible.") for line in lines)
    longest_first = sorted(STRATEGIES, key=len, reverse=True)
    told = lines[starts[1] + 1 :][: len(STRATEGIES)]
    assert [next(name for name in longest_first if line.startswith(name)) for line in told] == STRATEGIES
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


OWN = """
import dataclasses

from trainer.strategies import data_plan
from trainer.strategies.base import Strategy

class Silent(Strategy):
    def build(self, plan, setup):
        raise NotImplementedError

class Ring(Silent):
    def plan(self, model, optimizer, world_size):
        train = self.config.train
        return data_plan.plan(
            model, world_size=world_size, global_batch=train.global_batch, accumulation=train.accumulation
        )

class Half(Ring):
    def on_cluster(self, label, model, fabric):
        update = super().on_cluster(label, model, fabric)
        return dataclasses.replace(update, way="every second update", exchanged=update.exchanged.of(0.5))

class Broken(Silent):
    def plan(self, model, optimizer, world_size):
        return model.no_such_thing
"""


def test_a_strategy_of_ones_own_has_a_row_by_what_its_plan_says_it_moves(config, capsys, tmp_path):
    file, plot = tmp_path / "mine.py", tmp_path / "plot.png"
    file.write_text(OWN)
    line = ["--ranks", "4", "--batch-per-rank", "2", f"train.strategy={file}:Ring", "--plot", str(plot)]
    rows = {one["strategy"]: one for one in simulated(capsys, config, *line)}
    own, ring = rows["Ring"], rows["data"]
    for key in ("step_s", "sent_bytes", "memory_bytes", "epoch_s", "samples"):
        assert own[key] == pytest.approx(ring[key], rel=1e-9), key
    assert plot.stat().st_size > 0
    (only,) = simulated(capsys, config, "--ranks", "4", *line[2:5], "--strategy", f"{file}:Ring")
    assert only["step_s"] == own["step_s"]
    (half,) = simulated(
        capsys,
        config,
        "--ranks",
        "4",
        *line[2:4],
        f"train.strategy={file}:Half",
        "--strategy",
        f"{file}:Half",
    )
    assert half["way"] == "every second update" and half["sent_bytes"] == own["sent_bytes"] / 2
    (silent,) = simulated(
        capsys, config, "--ranks", "4", f"train.strategy={file}:Silent", "--strategy", f"{file}:Silent"
    )
    assert "Plan.exchange" in silent["refused"]
    (broken,) = simulated(
        capsys, config, "--ranks", "4", f"train.strategy={file}:Broken", "--strategy", f"{file}:Broken"
    )
    assert "mine.py" in broken["refused"] and "no_such_thing" in broken["refused"]
    assert app.run(["simulate", str(config), "--strategy", f"{file}:Ring"]) == 2
    assert "--strategy data" in capsys.readouterr().err


def test_the_floor_under_short_steps_is_told(config, capsys):
    assert app.run(["simulate", str(config), "--ranks", "2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "5 us for handing over each operation (estimated)" in said and "90 us were measured" in said
    assert app.run(["simulate", str(config), "--ranks", "2", "--cluster", "dgx-h200"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "90 us for handing over each operation (measured)" in said and "Steps of less than" not in said


def test_a_plot_that_cannot_be_drawn_does_not_lose_the_figures(config, capsys, monkeypatch, tmp_path):
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(growth, "draw", fail)
    line = ["simulate", str(config), "--ranks", "1", "--strategy", "data", "--json"]
    with pytest.raises(ZeroDivisionError):
        app.run([*line, "--plot", str(tmp_path / "plot.png")])
    assert json.loads(capsys.readouterr().out)["rows"]


def test_figures_follow_from_the_cluster(config, capsys):
    rows = simulated(
        capsys, config, "--ranks", "1,4,8", "--batch-per-rank", "2", "--cluster", "dragonfly-a100"
    )
    by = {(one["strategy"], one["ranks"]): one for one in rows if one["refused"] is None}
    alone, four = by["data", 1], by["data", 4]
    assert alone["efficiency"] == pytest.approx(1.0) and alone["sent_bytes"] == 0
    parameters = 1180
    assert four["sent_bytes"] == pytest.approx(2 * 3 / 4 * 4 * parameters)
    assert four["samples"] == 8 and four["hosts"] == 1 and by["data", 8]["hosts"] == 2
    assert four["step_s"] == pytest.approx(four["busy_s"] + four["slowest_rank_s"] + four["waiting_s"])
    assert four["busy_s"] == alone["busy_s"] and 0 < four["efficiency"] < 1
    volumes = {
        round(one["epoch_s"] / one["factor"] / one["step_s"] * one["samples"], 6) for one in by.values()
    }
    assert len(volumes) == 1 and volumes.pop() in range(16, 33)
    for one in by.values():
        assert one["factor"] > 1 and one["step_s"] >= one["reading_s"]
        assert one["fits"] and one["joules"] > 0 and one["dollars"] is None
    # Two groups of 4: the bytes of one, and its own parameters' gradients to the other.
    one, two = by["filters", 4], by["filters", 8]
    # An owner of a quarter of all sends half of it, and half of that of the other group's owner back.
    assert parameters <= two["sent_bytes"] - one["sent_bytes"] < 4 * parameters
    assert two["samples"] == 2 * one["samples"]
    # An owner keeps the optimizer's slots of what it owns alone.
    assert 0 < one["memory_bytes"] - two["memory_bytes"] < 4 * parameters
    assert two["waiting_s"] > one["waiting_s"]


def test_a_step_is_written_for_a_trace_viewer(config, capsys, tmp_path):
    path = tmp_path / "step.json"
    for strategy, threads in (("hybrid", {STEP, MESSAGES}), ("data", {STEP})):
        line = ["simulate", str(config), "--ranks", "2", "--strategy", strategy, "--trace", str(path)]
        assert app.run([*line, "--cluster", "cpu-ethernet"]) == 0
        events = [one for one in json.loads(path.read_text())["traceEvents"] if one["ph"] == "X"]
        assert threads <= {one["tid"] for one in events}
        assert {"forward", "backward", "update"} <= {one["name"] for one in events} or strategy == "hybrid"
        assert min(one["ts"] for one in events) == 0
    assert f"wrote {path}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ranks", "8,x"), "'x' is not a number of ranks"),
        (("--ranks", "0"), "'0' is not a number of ranks"),
        (("--cluster", "nowhere"), "There is no cluster 'nowhere'"),
        (("--trace", "t.json"), "--strategy data"),
        (("--profiled-on", "a100"), "--profile FILE"),
        (("--plot", "/nowhere/plot.png"), "there is no such folder"),
    ],
)
def test_what_cannot_be_simulated_is_refused(config, capsys, arguments, said):
    assert app.run(["simulate", str(config), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_cluster_that_is_too_small_and_a_batch_that_cannot_be_shared(config, capsys, tmp_path):
    text = (
        dict(cluster.shipped())["dragonfly-a100"]
        .read_text()
        .replace("devices: 4\n", "devices: 4\n    count: 1\n")
    )
    (tmp_path / "mine.yaml").write_text(text)
    assert app.run(["simulate", str(config), "--ranks", "8", "--cluster", str(tmp_path / "mine.yaml")]) == 2
    assert "mine has 4 devices, fewer than 8 ranks" in capsys.readouterr().err
    rows = simulated(capsys, config, "--ranks", "8", "--strategy", "data")
    reasons = {one["strategy"]: one["refused"] for one in rows if one["refused"]}
    assert "4 samples cannot be shared evenly by 8 rank(s)" in reasons["data"]


def advised(capsys, config: Path, *arguments: str) -> dict:
    line = ["advise", str(config), "--cluster", "cpu-ethernet", "--most", "16", *arguments, "--json"]
    assert app.run(line) == 0
    return json.loads(capsys.readouterr().out)


def test_advice_is_what_the_rows_of_a_simulation_say(config, capsys, monkeypatch):
    each = ("model.width=32", "--batch-per-rank", "64")
    found = advised(capsys, config, *each)
    assert [one["ranks"] for one in found["growth"]] == [1, 2, 4, 8, 16]
    rates = {one["ranks"]: one["samples_per_s"] for one in found["growth"]}
    useful = found["useful"]
    assert found["ranks"] == useful and useful > 1
    assert all(rates[n] >= 1.5 * rates[n // 2] for n in rates if 1 < n <= useful)
    assert useful == 16 or rates[2 * useful] < 1.5 * rates[useful]
    assert found["upgrades"]["devices twice as fast"] > 1
    assert list(found["upgrades"].values()) == sorted(found["upgrades"].values(), reverse=True)
    assert found["interval_s"] == pytest.approx(found["young_s"], rel=0.01)

    few = advised(capsys, config, "model.width=32", "--batch-per-rank", "1", "--ranks", "4")
    assert few["ranks"] == 4 and few["batch"] > 1 and few["limit"] != "computing"
    assert few["upgrades"]["twice the batch"] > 1.5
    rows = simulated(
        capsys, config, "model.width=32", "--ranks", "4", "--cluster", "cpu-ethernet", "--strategy", "data",
        "--batch-per-rank", str(few["batch"]),
    )  # fmt: skip
    best = max(rows, key=lambda one: one["samples_per_s"])
    assert best["waiting_s"] <= 0.1 * best["step_s"]
    monkeypatch.setenv("COLUMNS", "80")
    assert app.run(["advise", str(config), "--most", "2", *each]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and any(line.startswith("Useful ranks: up to") for line in lines)


def test_smaller_buckets_are_advised_where_a_simulation_with_them_is_faster(config, capsys, tmp_path):
    hosts = yaml.safe_load(dict(cluster.shipped())["cpu-ethernet"].read_text())
    # Slow links, whose last bucket is most of what the backward pass cannot hide.
    hosts["hosts"][0]["interface"]["bytes_per_second"] = {"value": 1.5e8, "source": "made up"}
    hosts["hosts"][0]["devices"] = 1
    slow = tmp_path / "slow.yaml"
    slow.write_text(yaml.safe_dump(hosts))
    network = ("model.width=32", "--batch-per-rank", "64", "--ranks", "4")

    def of(*more: str) -> dict:
        line = ["advise", str(config), *network, "--cluster", str(slow), "--most", "4", *more, "--json"]
        assert app.run(line) == 0
        return json.loads(capsys.readouterr().out)

    found = of()
    size, factor = found["bucket"]
    assert size < 4 and factor >= 1.03
    set_to_it = of(f"train.strategy.bucket_mb={size}")
    assert set_to_it["step_s"] == pytest.approx(found["step_s"] / factor)
    assert set_to_it["bucket"] is None
    assert of("train.strategy.reduction=grouped")["bucket"] is None
    assert advised(capsys, config, *network, "--strategy", "hybrid")["bucket"] is None


def test_there_is_no_advice_where_no_rank_can_train(config, capsys):
    assert app.run(["advise", str(config), "--ranks", "3", "--most", "2"]) == 2
    assert "On 3 rank(s): train.global_batch: 4 samples cannot be shared" in capsys.readouterr().err


def test_a_divided_network_is_advised_on_and_compared_with_another_strategy(config, capsys):
    each = (
        "--strategy",
        "hybrid",
        "--against",
        "data",
        "--most",
        "4",
        "--ranks",
        "4",
        "--batch-per-rank",
        "2",
    )
    line = ["advise", str(config), "--cluster", "cpu-ethernet", *each, "--json"]
    assert app.run(line) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert [one["ranks"] for one in found["growth"]] == [2, 4] and found["label"] == "hybrid"
    planned = [one for one in told.err.splitlines() if one.startswith("planning hybrid on ")]
    # Nothing is planned twice, however many links and devices were looked at.
    assert len(planned) == len(set(planned)) >= 8 and not found["is_cut_short"]
    compared = found["break_even"]
    assert compared["against"] == "data" and compared["rates"] == [1 / 64, 64]
    for turns in (compared["links"], compared["batch"]):
        assert turns[0]["since"] in (1 / 64, 1)
        assert [one["faster"] for one in turns] in ([a, b][: len(turns)] for a, b in STARTS)
        assert all(one["factor"] >= 1 for one in turns)
    rows = {}
    for strategy in ("hybrid", "data"):
        rows[strategy] = simulated(
            capsys, config, "--ranks", "4", "--cluster", "cpu-ethernet", "--strategy", strategy,
            "--batch-per-rank", str(int(compared["batch"][-1]["since"])),
        )[0]["samples_per_s"]  # fmt: skip
    assert max(rows, key=rows.__getitem__) == compared["batch"][-1]["faster"]
    assert app.run([*line[:-1], "--within", "0"]) == 0
    assert "larger batches were not looked at (--within)" in " ".join(capsys.readouterr().out.split())


def test_a_strategy_is_not_compared_with_itself(config, capsys):
    assert app.run(["advise", str(config), "--against", "data"]) == 2
    assert "--against data: is the strategy itself" in capsys.readouterr().err


def test_each_strategy_has_a_colour_line_and_marker_of_its_own():
    assert set(growth.KINDS) == {*STRATEGIES, "data, by host"}
    assert len(set(growth.KINDS.values())) == len({kind.split()[0] for kind in growth.KINDS.values()}) == 8
    in_grey = {frozenset(kind.split()[1:]) for kind in growth.KINDS.values()}
    assert len(in_grey) == 8
