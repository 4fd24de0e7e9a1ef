"""Each task is trained on two ranks, and evaluated to the same figures on any number of ranks."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Launch
from tiny_runs import make_shards, result, rows, write_config

TASKS: dict[str, dict[str, Any]] = {
    "classification": {
        "data__covariates": ["age", "sex"],
        "data__sampling": "balanced",
        "task__loss": "focal",
    },
    "regression": {
        "data__covariates": ["sex"],
        "task__loss": "huber",
        "train__strategy": {"algorithm": "tree", "timeline": True, "autotune": True},
    },
    "segmentation": {"model__name": "unet3d", "model__options": {"depth": 2}, "model__width": 4},
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # 25 subjects: 5 are held out, so that 2, 3 and 4 ranks have unequal shares.
    return make_shards(tmp_path_factory.mktemp("data") / "shards", subjects=25, maps=True)


@pytest.fixture(scope="module", params=TASKS)
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shards: Path, launch: Launch
) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    changes = {"task__name": request.param, "train__epochs": 3, **TASKS[request.param]}
    config = write_config(folder, shards, "run", data__augment={"flip": True, "shift": 1}, **changes)
    done = launch(2, "command.py", "train", config)
    assert done.exit_code == 0, done.err
    return folder / "run"


def test_it_learns_and_says_how_well(finished: Path):
    task = json.loads((finished / "run.json").read_text())["task"]["name"]
    first, *_, last = rows(finished)
    # The same volumes each time: those of training are seen through other masks and shifts in every epoch.
    assert last["val_loss"] < first["val_loss"]
    score, monitored = {
        "classification": ("accuracy", "val_auc"),
        "regression": ("mae", "val_mae"),
        "segmentation": ("dice", "val_dice"),
    }[task]
    assert score in last and monitored in last
    held_out = result(finished)["test"]
    assert held_out["n"] == 5 and held_out[monitored.removeprefix("val_")] is not None
    drawn = list((finished / "evaluation").glob("maps/row-*.nii.gz"))
    assert bool(drawn) == (task == "segmentation")


def test_the_record_keeps_what_mpi_and_horovod_say_of_the_reduction(finished: Path):
    said = json.loads((finished / "run.json").read_text())
    plan = json.loads((finished / "plan.json").read_text())
    tree = said["task"]["name"] == "regression"
    assert said["mpi"]["coll_tuned_allreduce_algorithm"] == (2 if tree else 4)
    assert plan["algorithm"] == ("tree" if tree else "ring")
    names = {path.name for path in (finished / "telemetry").glob("horovod-*")}
    assert names == ({"horovod-timeline-000000.json", "horovod-autotune-000000.csv"} if tree else set())


# The run itself was evaluated on 2.
@pytest.mark.parametrize("ranks", [3, *(n for n in (1, 4))])
def test_figures_are_the_same_on_any_number_of_ranks(finished: Path, launch: Launch, ranks: int):
    of_the_run = (finished / "evaluation" / "test.csv").read_text()
    done = launch(ranks, "command.py", "evaluate", finished, "--json")
    assert done.exit_code == 0, done.err
    assert json.loads(done.out) == result(finished)["test"]
    assert (finished / "evaluation" / "test.csv").read_text() == of_the_run
    lines = list(csv.DictReader(of_the_run.splitlines()))
    split = json.loads((finished / "run.json").read_text())["split"]["test"]
    assert sorted(int(line["row"]) for line in lines) == split


def test_the_losses_of_two_ranks_are_those_of_one_process(tmp_path: Path, launch: Launch):
    """Weighted means over all ranks' samples, of shares that weigh differently."""
    shards = make_shards(tmp_path / "shards", subjects=27, labels=("AD", "NC", "NC"))
    changes = {"train__epochs": 1, "train__label_smoothing": 0.1, "task__loss": "focal", "model__options": {}}
    for name, ranks in (("alone", 0), ("both", 2)):
        config = write_config(tmp_path, shards, name, **changes)
        done = launch(ranks, "command.py", "train", config)
        assert done.exit_code == 0, done.err
    (alone,), (both,) = rows(tmp_path / "alone"), rows(tmp_path / "both")
    for key in ("loss", "val_loss", "val_cross_entropy", "accuracy"):
        assert both[key] == pytest.approx(alone[key], rel=1e-4), key
    assert abs(both["val_loss"] - both["val_cross_entropy"]) > 0.05
