"""What `cingulum submit` says of the time that a training takes, before anything is submitted."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
import tiny_runs
from made_up_run import make_shards
from planned_networks import small
from pretended_slurm import told

from cingulum.cli import app
from trainer import config as configuration
from trainer.data.loading import order
from trainer.data.shards.index_reading import read_index
from trainer.errors import InputError
from trainer.forecast import expecting
from trainer.forecast.simulating import Strategies
from trainer.forecast.subject import ForecastSubject, Scenario
from trainer.planning.simulation import cluster, devices
from trainer.planning.simulation.fabric import ClusterFabric
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord
from trainer.telemetry import earlier_runs


def trained(
    name: str, *changes: str, epochs: int, seconds: float, ranks: int = 1, hosts: int = 1
) -> RunFolder:
    """A run folder as a training leaves it, whose first epoch took ten times as long."""
    folder = RunFolder(Path("runs", name))
    folder.path.mkdir(parents=True)
    changes = (f"name={folder.path.name}", f"runs={folder.path.parent}", *changes)
    folder.write_config(configuration.load(Path("mine.yaml"), changes))
    places = [f"n{rank * hosts // ranks}" for rank in range(ranks)]
    RunRecord(world_size=ranks, hosts=places).write(folder.run)
    took = [10 * seconds, *[seconds] * (epochs - 1)]
    folder.write_rows({"epoch": n, "step": n, "seconds": s, "start": 1} for n, s in enumerate(took, 1))
    return folder


def said_of(capsys, *words: str) -> dict:
    found = told(capsys, "submit", "mine.yaml", *words, "--dry-run")["predicted"]
    assert isinstance(found, dict)
    return found


def test_nothing_is_known_of_a_first_run_and_it_says_how_to_know(slurm, capsys):
    found = said_of(capsys, "--nodes", "2", "--time", "1h")
    assert (found["seconds"], found["starts"], found["warning"]) == (None, None, None)
    assert "--profile FILE" in found["said"] and "cingulum simulate CONFIG --ranks 2" in found["said"]
    assert "\n" not in found["said"]
    assert app.run(["submit", "mine.yaml", "--kind", "report", "--dry-run"]) in (0, 2)
    assert "Predicted time" not in capsys.readouterr().out


def test_an_earlier_run_says_it_where_its_configuration_ranks_and_hosts_are_the_same(slurm, capsys):
    trained("before", "train.seed=7", epochs=5, seconds=90.0, ranks=4, hosts=2)
    trained("other", "model.width=9", epochs=5, seconds=1.0, ranks=4, hosts=2)
    four = ("--nodes", "2", "--ranks-per-node", "2")
    found = said_of(capsys, *four, "train.epochs=100", "--time", "1h")
    assert found["seconds"] == pytest.approx(100 * 90.0) and "runs/before" in found["source"]
    # Of an hour, 120 s are for saving.
    assert (found["limit_s"], found["starts"]) == (3600, 3)
    assert "requeued by itself about 2 time(s)" in found["warning"] and "--time 3h" in found["warning"]
    assert said_of(capsys, *four, "train.epochs=100", "--time", "3h")["warning"] is None
    for other in (
        ("--nodes", "4"),
        ("--nodes", "2", "--ranks-per-node", "1"),
        (*four, "--gpus-per-node", "2"),
    ):
        assert said_of(capsys, *other)["seconds"] is None
    assert said_of(capsys, *four, "train.epochs=100", "model.width=9")["seconds"] == pytest.approx(100.0)


def test_a_run_that_has_begun_needs_what_is_left_and_submitting_it_warns(slurm, capsys):
    trained("mine", epochs=30, seconds=60.0)
    assert said_of(capsys)["epochs"] == 50
    assert app.run(["submit", "mine.yaml", "--time", "30"]) == 0
    shown = capsys.readouterr()
    assert "Predicted time: 50 min for 50 epoch(s) (runs/mine: 60 s per epoch, median of 29)" in shown.out
    assert shown.err.startswith("warning: 50 min are predicted, and the time limit is 30 min")
    assert len(slurm.started) == 1
    slurm.becomes("4711", "COMPLETED", exit_code=0, ended=5.0)
    again = told(capsys, "submit", "mine.yaml", "--time", "2h")
    assert again["predicted"]["starts"] == 1 and again["jobs"][0]["id"] == "4712"


def test_each_task_of_an_array_is_told_by_a_fold_that_was_trained(slurm, capsys, monkeypatch):
    monkeypatch.setattr("trainer.crossval.folds.check", lambda plan: None)
    trained("mine/fold-1-seed-0", "data.split.folds=3", "data.split.fold=1", epochs=4, seconds=30.0)
    found = said_of(capsys, "--folds", "3", "--seeds", "2", "--time", "10")
    assert (found["seconds"], found["tasks"]) == (pytest.approx(80 * 30.0), 6)
    assert "each of 6 tasks" in found["said"] and found["starts"] == 5


def test_what_is_damaged_is_passed_over(slurm, capsys):
    trained("good", epochs=3, seconds=5.0)
    for number, name in enumerate(("config.yaml", "run.json", "metrics.jsonl")):
        bad = trained(f"bad{number}", epochs=3, seconds=1.0)
        (bad.path / name).write_text('{"seconds": [')
    assert said_of(capsys)["seconds"] == pytest.approx(80 * 5.0)
    assert app.run(["submit", "mine.yaml", "name=none", "--profile", "nowhere.json", "model.width=2"]) == 0
    assert "Predicted time: not known: nowhere.json: there is no such file" in capsys.readouterr().out


def test_a_profile_says_it_with_the_links_of_a_cluster(slurm, capsys, tmp_path):
    fabric = ClusterFabric(cluster.load("cpu-ethernet"), 2)
    profile = devices.computed(small(), fabric, name="small")
    profile = profile.model_copy(update={"sample_shape": (16, 16, 16, 1)})
    (tmp_path / "profile.json").write_text(profile.text())
    (tmp_path / "shards" / "index.json").unlink()
    make_shards(tmp_path / "shards", 40, ("NC", "AD"), tissue=False)
    words = ("--profile", "profile.json", "--nodes", "2")
    own = said_of(capsys, *words)
    # 40 volumes less 20 and 15 % are 26, in 3 updates of 12.
    alone_s = 6 / profile.batch * sum(one.forward_s[0] + one.backward_s[0] for one in profile.operations)
    assert own["seconds"] > 80 * 3 * alone_s and "by its links" in own["source"]
    (tmp_path / "site.yaml").write_text("cluster: dgx-a100\n")
    other = said_of(capsys, *words, "--site", "./site.yaml")
    named = said_of(capsys, *words, "--site", "./site.yaml", "--cluster", "cpu-ethernet")
    # The profile's ranks share a host.
    assert named["seconds"] > own["seconds"] and "by cpu-ethernet" in named["source"]
    assert named["seconds"] > other["seconds"] > 80 * 3 * alone_s and "by dgx-a100" in other["source"]
    refused = said_of(capsys, *words[:2], "--nodes", "4")
    assert refused["seconds"] is None and "the links of 2 rank(s)" in refused["said"]
    divided = said_of(capsys, *words, "train.strategy.name=spatial")
    assert "a profile alone does not tell it of train.strategy=spatial" in divided["said"]


def test_a_divided_network_is_simulated_where_there_are_a_profile_and_a_cluster(
    slurm, capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(expecting, "LIMIT_S", 120.0)
    (tmp_path / "shards" / "index.json").unlink()
    tiny_runs.make_shards(tmp_path / "shards")
    changes = ("model.name=tiny", "train.strategy.name=spatial")
    config, hosts = configuration.load(Path("mine.yaml"), changes), cluster.load("cpu-ethernet")
    each = hosts.hosts[0].model_copy(update={"devices": 1})
    hosts = hosts.model_copy(update={"hosts": (each,)})
    subject = ForecastSubject(Scenario(config, hosts, "spatial", group=2))
    profile = subject.profile(1, ClusterFabric(hosts, 1)).model_copy(update={"task_s": (1e-4,)})
    (tmp_path / "profile.json").write_text(profile.text())
    measured = subject.on(dataclasses.replace(subject.asked, profile=profile))
    row, _ = next(Strategies(measured).strategies(ClusterFabric(hosts, 2)))
    words = (*changes, "--profile", "profile.json", "--nodes", "2", "--cluster", "cpu-ethernet")
    found = said_of(capsys, *words, "--time", "1")
    steps = order.steps_per_epoch(expecting._samples(config, read_index(config.data.shards)), 12)
    assert found["seconds"] == pytest.approx(80 * steps * row.step.step_s)
    assert "profile.json: " in found["source"] and "simulated on cpu-ethernet" in found["source"]
    hypergraph = (*words, "train.strategy.name=hypergraph", "train.strategy.replicas=auto")
    assert "replicas=auto is decided when it starts" in said_of(capsys, *hypergraph)["said"]
    with monkeypatch.context() as here:
        # What the process of its own says of a network that the profile is not of, in this one.
        wider = configuration.load(Path("mine.yaml"), [*changes, "model.width=9"])
        here.setattr("sys.stdin", io.StringIO(expecting.asked(wider, profile, hosts, 2)))
        expecting.main()
        assert json.loads(capsys.readouterr().out)["refused"].startswith("The profile of tiny has ")
    monkeypatch.setattr(expecting, "LIMIT_S", 0.001)
    assert "simulating train.strategy=spatial takes longer than 0 s" in said_of(capsys, *words)["said"]
    with expecting._ONE:  # as another request of a service does
        assert "is not simulated while others are" in said_of(capsys, *words)["said"]


def test_the_epochs_until_a_value_are_those_of_a_run(slurm):
    folder = trained("before", epochs=4, seconds=1.0)
    rows = zip((0.5, 0.8, 0.7, 0.9), (0.9, 0.4, 0.5, 0.3), strict=True)
    folder.write_rows({"epoch": n, "val_auc": auc, "val_loss": v} for n, (auc, v) in enumerate(rows, 1))
    assert earlier_runs.epochs_to(folder, "val_auc", 0.75) == 2
    assert earlier_runs.epochs_to(folder, "val_auc", 0.9) == 4
    assert earlier_runs.epochs_to(folder, "val_loss", 0.4) == 2
    for metric, value, said in (
        ("val_auc", 0.95, "came to 0.9"),
        ("val_loss", 0.1, "came to 0.3"),
        ("dice", 1, "has no dice"),
    ):
        with pytest.raises(InputError, match=said):
            earlier_runs.epochs_to(folder, metric, value)
