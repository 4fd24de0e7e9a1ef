"""Runs that go on after their last epoch, or by another version than the one that began them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_runs

from cingulum import cli
from trainer.run_folder.checkpoint_checks import fingerprint

EPOCHS = 3
QUICK = {
    "train__deterministic": False,
    "train__epochs": EPOCHS,
    "checkpoint__every_steps": None,
    "train__optimizer": {"name": "sgd", "learning_rate": 0.01},
    "telemetry__enabled": False,
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards", subjects=20)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, shards) -> Path:
    """A run of 3 epochs, of 3 updates each."""
    folder = tmp_path_factory.mktemp("finished")
    changes = {**QUICK, "task__loss": "focal", "train__early_stopping": {"patience": 2}}
    assert cli.run(["train", str(tiny_runs.write_config(folder, shards, "run", **changes))]) == 0
    return folder / "run"


def go_on(folder: Path, *changes: str) -> int:
    return cli.run(["train", str(folder / "config.yaml"), f"runs={folder.parent}", *changes, "--resume"])


def rewrite(path: Path, change: Any) -> None:
    content = change(json.loads(path.read_text()))
    path.write_text(json.dumps(content))


def of_an_earlier_version(folder: Path, *, last: int) -> Path:
    """Turn a run into one of checkpoints of format 2 that ended after epoch `last`."""

    def row(now: dict[str, Any]) -> dict[str, Any]:
        before = {**now, "val_loss": now["val_cross_entropy"]}
        return {key: value for key, value in before.items() if key != "val_cross_entropy"}

    def cursor(now: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in now.items() if key not in ("epochs", "cycles")}
        rows, best = [row(one) for one in now["rows"]], now["best"] and row(now["best"])
        return {**kept, "sums": [0.0, 0.0, 0.0], "rows": rows, "best": best}

    def manifest(now: dict[str, Any]) -> dict[str, Any]:
        return {
            **now,
            "format": 2,
            "files": {**now["files"], "cursor.json": fingerprint(path / "cursor.json")},
        }

    for path in sorted((folder / "checkpoints").iterdir()):
        if int(path.name[5:]) > 3 * last:
            shutil.rmtree(path)
            continue
        rewrite(path / "cursor.json", cursor)
        rewrite(path / "manifest.json", manifest)
    rows = [row(one) for one in tiny_runs.rows(folder)][:last]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    rewrite(folder / "run.json", lambda now: {k: v for k, v in now.items() if k != "cycles"})
    (folder / "result.json").unlink()
    return folder


def test_a_run_says_what_it_trains_and_what_chooses_its_best_epoch(finished, capsys):
    result = tiny_runs.result(finished)
    loss = "focal loss (gamma 2) with classes weighted equally"
    assert (result["best_by"], result["trained_loss"]) == ("val_loss", loss)
    assert result["best"] == min(tiny_runs.rows(finished), key=lambda row: row["val_loss"])
    assert {"loss", "cross_entropy"} < result["test"].keys()
    config = finished.parent / "run.yaml"
    assert cli.run(["train", str(config), "name=other", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trains"] == loss
    assert cli.run(["train", str(config), "name=other", "train.epochs=1"]) == 0
    said = capsys.readouterr().err
    assert f"the best epoch is that of the lowest val_loss ({loss}) on the validation split; " in said
    assert "training stops after 2 epoch(s) without a better one." in said


def test_the_validation_loss_follows_from_the_predictions_of_the_epoch(finished):
    """Focal loss, weighted by the classes of the training split, of what evaluation/validation.csv has."""
    import csv

    import numpy as np

    with (finished / "evaluation" / "validation.csv").open() as file:
        lines = list(csv.DictReader(file))
    p = np.array([float(line[f"p_{line['label']}"]) for line in lines])
    rows = json.loads((finished / "run.json").read_text())["split"]["train"]
    counts = {label: sum(row % 2 == number for row in rows) for number, label in enumerate(("AD", "NC"))}
    weights = np.array([1 / counts[line["label"]] for line in lines])
    best = tiny_runs.result(finished)["best"]
    assert best["val_loss"] == pytest.approx(-weights @ ((1 - p) ** 2 * np.log(p)) / weights.sum(), rel=1e-5)
    assert best["val_cross_entropy"] == pytest.approx(-np.log(p).mean(), rel=1e-5)


def test_a_run_of_an_earlier_version_mixes_no_two_functions_when_it_goes_on(finished, tmp_path, capsys):
    folder = of_an_earlier_version(shutil.copytree(finished, tmp_path / "run"), last=2)
    before = tiny_runs.rows(folder)
    assert go_on(folder) == 0
    said = capsys.readouterr().err
    assert "this run began when val_loss was another function" in said
    assert "lowest val_cross_entropy on the validation split" in said
    first, second, third = tiny_runs.rows(folder)
    for old, new in zip(before, (first, second), strict=True):
        assert new["val_cross_entropy"] == old["val_loss"] and new["unweighted_loss"] == old["loss"]
        assert not {"val_loss", "loss"} & new.keys()
    assert {"val_loss", "loss", "val_cross_entropy"} < third.keys()
    result = tiny_runs.result(folder)
    assert result["best_by"] == "val_cross_entropy"
    assert result["best"] == min(tiny_runs.rows(folder), key=lambda row: row["val_cross_entropy"])
    report = (folder / "figures" / "learning-curve-loss.csv").read_text().splitlines()
    assert report[0] == "epoch,loss,val_loss" and report[1] == "1,,"
