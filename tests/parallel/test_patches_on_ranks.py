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
        pytest.param((REGRESSION, 24), id="regression", marks=pytest.mark.deep),
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
@pytest.mark.parametrize("ranks", [3, pytest.param(1, marks=pytest.mark.deep)])
def test_figures_are_the_same_on_any_number_of_ranks(finished: Path, launch: Launch, ranks: int):
    of_the_run = (finished / "evaluation" / "test.csv").read_text()
    done = launch(ranks, "command.py", "evaluate", finished, "--json")
    assert done.exit_code == 0, done.err
    assert json.loads(done.out) == result(finished)["test"]
    assert (finished / "evaluation" / "test.csv").read_text() == of_the_run
    assert len(list(csv.DictReader(of_the_run.splitlines()))) == 5


def test_two_ranks_train_what_one_trains(shards: Path, tmp_path: Path, launch: Launch):
    """The same patches in the same updates; sums in another order leave the last digits to chance."""
    losses = []
    for ranks in (1, 2):
        config = write_config(tmp_path, shards, f"on-{ranks}", train__epochs=1, **SEGMENTATION)
        done = launch(ranks, "command.py", "train", config)
        assert done.exit_code == 0, done.err
        losses.append(rows(tmp_path / f"on-{ranks}")[0])
    assert losses[0]["loss"] == pytest.approx(losses[1]["loss"], rel=1e-4)
    assert losses[0]["val_loss"] == pytest.approx(losses[1]["val_loss"], rel=1e-4)


def test_a_dry_run_tells_of_the_patches(shards: Path, tmp_path: Path, launch: Launch):
    config = write_config(tmp_path, shards, "dry", **SEGMENTATION)
    done = launch(1, "command.py", "train", config, "--dry-run", "--json")
    plan = json.loads(done.out)
    assert plan["volume"] == [16, 16, 16, 1] and plan["patch"] == [8, 8, 12, 1]
    assert plan["patches_per_epoch"] == 2 * plan["split"]["train"]
    assert plan["patches_placed"] == "classes"
    too_large = launch(1, "command.py", "train", config, "data.patch.size=17")
    assert too_large.exit_code == 2
    assert "do not fit into volumes of 16x16x16" in too_large.err


def test_images_are_predicted_and_explaining_is_refused(finished: Path, tmp_path: Path, launch: Launch):
    image = tmp_path / "sub-1_T1w.nii.gz"
    volume = np.zeros((20, 20, 20), np.float32)
    volume[4:16, 4:16, 4:16] = np.random.default_rng(0).normal(100, 10, (12, 12, 12))
    nib.save(nib.Nifti1Image(volume, np.diag([12.0, 12.0, 12.0, 1.0])), image)
    told = tmp_path / "participants.tsv"
    told.write_text("participant_id\tsex\nsub-1\tF\n")
    covariates = (
        ["--covariates", told] if json.loads((finished / "run.json").read_text())["covariates"] else []
    )
    said = launch(
        1, "command.py", "predict", finished, image, "--out", tmp_path / "out", "--json", *covariates
    )
    assert said.exit_code == 0, said.err
    refused = launch(1, "command.py", "explain", finished, "--out", tmp_path / "explained")
    assert refused.exit_code == 2
    exported = launch(1, "command.py", "export", finished, "--out", tmp_path / "exported")
    assert exported.exit_code == 0, exported.err
