"""A network of patches is trained on two ranks, evaluated on any number, and asked about images."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from conftest import Launch
from tiny_runs import make_shards, result, rows, write_config

from cingulum.cli import app

SEGMENTATION = {
    "task__name": "segmentation",
    "model__name": "unet3d",
    "model__options": {"depth": 1, "normalisation": "instance"},
    "model__width": 4,
    "data__patch": {"size": [8, 8, 12], "per_volume": 2, "sampling": "classes", "foreground_share": 0.7},
}
REGRESSION = {
    "task__name": "regression",
    "data__covariates": ["sex"],
    "data__patch": {"size": 16, "per_volume": 2, "sampling": "foreground"},
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("data") / "shards", subjects=25, maps=True)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((SEGMENTATION, 16), id="segmentation"),
        pytest.param((REGRESSION, 24), id="regression"),
    ],
)
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, launch: Launch
) -> Path:
    changes, size = request.param
    folder = tmp_path_factory.mktemp(changes["task__name"])
    shards = make_shards(folder / "shards", subjects=25, size=size, maps=True)
    config = write_config(folder, shards, "run", train__epochs=3, **changes)
    done = launch(2, "command.py", "train", config)
    assert done.exit_code == 0, done.err
    return folder / "run"


def test_it_learns_and_says_how_well_on_whole_volumes(finished: Path):
    first, *_, last = rows(finished)
    assert last["loss"] < first["loss"]
    ran = json.loads((finished / "run.json").read_text())
    assert (ran["volume"], ran["patch"]) in (
        ([16, 16, 16, 1], [8, 8, 12, 1]),
        ([24, 24, 24, 1], [16, 16, 16, 1]),
    )
    trained = 2 * len(ran["split"]["train"])
    assert last["step"] == 3 * -(-trained // 4)
    assert result(finished)["test"]["n"] == 5
    drawn = list((finished / "evaluation").glob("maps/row-*.nii.gz"))
    assert all(nib.load(path).shape == (16, 16, 16) for path in drawn)
    assert bool(drawn) == (ran["task"]["name"] == "segmentation")


# The run itself was evaluated on 2.
@pytest.mark.parametrize("ranks", [3, 1])
def test_figures_are_the_same_on_any_number_of_ranks(finished: Path, launch: Launch, ranks: int):
    of_the_run = (finished / "evaluation" / "test.csv").read_text()
    done = launch(ranks, "command.py", "evaluate", finished, "--json")
    assert done.exit_code == 0, done.err
    assert json.loads(done.out) == result(finished)["test"]
    assert (finished / "evaluation" / "test.csv").read_text() == of_the_run
    assert len(list(csv.DictReader(of_the_run.splitlines()))) == 5


def test_two_ranks_train_what_one_trains(finished: Path, launch: Launch):
    """The same patches in the same updates; sums in another order leave the last digits to chance."""
    done = launch(0, "command.py", "train", finished.parent / "run.yaml", "name=alone", "train.epochs=1")
    assert done.exit_code == 0, done.err
    alone, shared = rows(finished.parent / "alone")[0], rows(finished)[0]
    assert alone["loss"] == pytest.approx(shared["loss"], rel=1e-4)
    assert alone["val_loss"] == pytest.approx(shared["val_loss"], rel=1e-4)


def test_a_dry_run_tells_of_the_patches(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = write_config(tmp_path, shards, "dry", train__deterministic=False, **SEGMENTATION)
    assert app.run(["train", str(config), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["volume"] == [16, 16, 16, 1] and plan["patch"] == [8, 8, 12, 1]
    assert plan["patches_per_epoch"] == 2 * plan["split"]["train"]
    assert plan["patches_placed"] == "classes"
    assert app.run(["train", str(config), "data.patch.size=17"]) == 2
    assert "do not fit into volumes of 16x16x16" in capsys.readouterr().err


def test_images_are_predicted_and_explaining_is_refused(finished: Path, tmp_path: Path):
    image = tmp_path / "sub-1_T1w.nii.gz"
    volume = np.zeros((20, 20, 20), np.float32)
    volume[4:16, 4:16, 4:16] = np.random.default_rng(0).normal(100, 10, (12, 12, 12))
    nib.save(nib.Nifti1Image(volume, np.diag([12.0, 12.0, 12.0, 1.0])), image)
    told = tmp_path / "participants.tsv"
    told.write_text("participant_id\tsex\nsub-1\tF\n")
    covariates = json.loads((finished / "run.json").read_text())["covariates"]
    given = ["--covariates", str(told)] if covariates else []
    assert app.run(["predict", str(finished), str(image), "--out", str(tmp_path / "out"), *given]) == 0
    assert app.run(["explain", str(finished), "--out", str(tmp_path / "explained")]) == 2
    assert app.run(["export", str(finished), "--out", str(tmp_path / "exported")]) == 0
