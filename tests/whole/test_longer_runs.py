"""Runs that go on after their last epoch, or by another version than the one that began them."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_runs
from tensorflow.python.framework.config import disable_op_determinism

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


def rates(folder: Path) -> list[float]:
    """The rate of the update after each epoch."""
    return [row["learning_rate"] for row in tiny_runs.rows(folder)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, shards) -> Iterator[Path]:
    """A run of a cosine over 3 epochs, of 3 updates each."""
    folder = tmp_path_factory.mktemp("trained")
    changes = {**QUICK, "train__deterministic": True, "train__schedule": {"warmup_epochs": 0}}
    assert cli.run(["train", str(tiny_runs.write_config(folder, shards, "run", **changes))]) == 0
    yield folder / "run"
    # It holds for the whole process; other files' runs, which time their steps, could not go on.
    disable_op_determinism()


LAST = 0.005 * (1 + np.cos(np.pi * 8 / 9))


def test_added_epochs_go_on_at_the_last_rate_and_the_run_says_so(trained, tmp_path, capsys):
    folder = shutil.copytree(trained, tmp_path / "run")
    before = tiny_runs.rows(folder)
    said = "the rate was 0.000302 in update 9 and is 0.000302 in update 10"
    what = "train.epochs was 3 and is 5: epochs 4 to 5 have the last rate of the schedule, 0.000302"
    assert go_on(folder, "train.epochs=5", "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["resumes_after_step"], plan["epochs"]) == (9, 5)
    assert plan["rate_before"] == plan["rate_after"] == pytest.approx(LAST, rel=1e-4)
    assert plan["lengthened"] == f"{what} (train.schedule.extend=tail); {said}."
    assert go_on(folder, "train.epochs=4") == 0
    assert go_on(folder, "train.epochs=6") == 0  # a second time
    told = capsys.readouterr().err
    assert "train.epochs was 3 and is 4: epoch 4 has the last rate of the schedule, 0.000302" in told
    assert "train.epochs was 4 and is 6: epochs 5 to 6 have the last rate of the schedule, 0.000302" in told
    assert tiny_runs.rows(folder)[:3] == before
    assert rates(folder)[2:] == pytest.approx([LAST] * 4, rel=1e-4)
    run = json.loads((folder / "run.json").read_text())
    assert run["cycles"] == [[0, 3]]
    assert "Epochs 4 to 6 were added, at its last rate." in (folder / "report.html").read_text()
    # Stopped and resumed, it is the same run to the bit.
    again = shutil.copytree(folder, tmp_path / "again" / "run")
    shutil.rmtree(again / "checkpoints" / "step-00000018")
    (again / "result.json").unlink()
    assert go_on(again) == 0
    assert "train.epochs was" not in capsys.readouterr().err
    assert tiny_runs.result(again)["weights_sha256"] == tiny_runs.result(folder)["weights_sha256"]


def test_a_restart_is_a_new_cycle_over_the_added_epochs(trained, tmp_path, capsys):
    folder = shutil.copytree(trained, tmp_path / "run")
    assert go_on(folder, "train.epochs=5", "train.schedule.extend=restart") == 0
    said = capsys.readouterr().err
    assert "epochs 4 to 5 are a new cycle of the schedule, up to 0.01 (train.schedule.extend=restart)" in said
    assert "the rate was 0.000302 in update 9 and is 0.01 in update 10" in said
    assert rates(folder)[3] == pytest.approx(0.005, rel=1e-4)  # half of its cosine
    assert json.loads((folder / "run.json").read_text())["cycles"] == [[0, 3], [3, 2]]
    assert "It began anew after epoch 3, over 2 epochs." in (folder / "report.html").read_text()
    assert go_on(folder, "train.epochs=6", "train.schedule.extend=tail") == 0
    assert rates(folder)[4] == rates(folder)[5] > 0


def test_a_run_may_not_be_made_shorter(trained, capsys):
    assert go_on(trained, "train.epochs=2") == 2
    said = capsys.readouterr().err
    assert "train.epochs was 3 and is 2 now; a run may be made longer, not shorter" in said


def test_a_run_of_an_earlier_version_goes_on_at_its_last_rate_however_often_it_is_killed(
    trained, tmp_path, capsys, monkeypatch
):
    """Its checkpoints do not tell how long it was to be: config.yaml does, until a start changes it."""
    folder = of_an_earlier_version(shutil.copytree(trained, tmp_path / "run"), last=3)
    killed = shutil.copytree(folder, tmp_path / "killed" / "run")
    with monkeypatch.context() as patch:
        patch.setattr("trainer.runs.loop.Training.run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert go_on(killed, "train.epochs=5", "train.schedule.extend=restart") != 0
    assert "epochs: 5" in (killed / "config.yaml").read_text()
    capsys.readouterr()
    for each in (folder, killed):
        assert go_on(each, "train.epochs=5", "train.schedule.extend=tail") == 0
        assert "train.epochs was 3 and is 5: epochs 4 to 5 have the last rate" in capsys.readouterr().err
        assert rates(each)[3:] == pytest.approx([LAST] * 2, rel=1e-4)


def test_early_stopping_is_not_undone_by_more_epochs(finished, tmp_path, capsys):
    folder = shutil.copytree(finished, tmp_path / "run")
    newest = max((folder / "checkpoints").iterdir())
    rewrite(newest / "cursor.json", lambda now: {**now, "waited": 2})
    files = {"cursor.json": fingerprint(newest / "cursor.json")}
    rewrite(newest / "manifest.json", lambda now: {**now, "files": {**now["files"], **files}})
    assert go_on(folder, "train.epochs=5") == 0
    assert "early stopping has ended this run after epoch 3" in capsys.readouterr().err
    assert len(tiny_runs.rows(folder)) == EPOCHS
