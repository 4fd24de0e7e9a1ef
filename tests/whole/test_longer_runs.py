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

from cingulum.cli import app
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
    assert app.run(["train", str(tiny_runs.write_config(folder, shards, "run", **changes))]) == 0
    return folder / "run"


def go_on(folder: Path, *changes: str) -> int:
    return app.run(["train", str(folder / "config.yaml"), f"runs={folder.parent}", *changes, "--resume"])


def rewrite(path: Path, change: Any) -> None:
    content = change(json.loads(path.read_text()))
    path.write_text(json.dumps(content))


def test_a_run_says_what_it_trains_and_what_chooses_its_best_epoch(finished, capsys):
    result = tiny_runs.result(finished)
    loss = "focal loss (gamma 2) with classes weighted equally"
    assert (result["best_by"], result["trained_loss"]) == ("val_loss", loss)
    assert result["best"] == min(tiny_runs.rows(finished), key=lambda row: row["val_loss"])
    assert {"loss", "cross_entropy"} < result["test"].keys()
    config = finished.parent / "run.yaml"
    assert app.run(["train", str(config), "name=other", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trains"] == loss
    assert app.run(["train", str(config), "name=other", "train.epochs=1"]) == 0
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


def rates(folder: Path) -> list[float]:
    """The rate of the update after each epoch."""
    return [row["learning_rate"] for row in tiny_runs.rows(folder)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, shards) -> Iterator[Path]:
    """A run of a cosine over 3 epochs, of 3 updates each."""
    folder = tmp_path_factory.mktemp("trained")
    changes = {**QUICK, "train__deterministic": True, "train__schedule": {"warmup_epochs": 0}}
    assert app.run(["train", str(tiny_runs.write_config(folder, shards, "run", **changes))]) == 0
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


def test_early_stopping_is_not_undone_by_more_epochs(finished, tmp_path, capsys):
    folder = shutil.copytree(finished, tmp_path / "run")
    newest = max((folder / "checkpoints").iterdir())
    rewrite(newest / "cursor.json", lambda now: {**now, "waited": 2})
    files = {"cursor.json": fingerprint(newest / "cursor.json")}
    rewrite(newest / "manifest.json", lambda now: {**now, "files": {**now["files"], **files}})
    assert go_on(folder, "train.epochs=5") == 0
    assert "early stopping has ended this run after epoch 3" in capsys.readouterr().err
    assert len(tiny_runs.rows(folder)) == EPOCHS
