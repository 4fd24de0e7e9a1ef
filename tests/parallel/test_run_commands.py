"""`cingulum train`, `evaluate` and `predict` in one process: what they leave behind, and what they refuse."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
import yaml
from tiny_runs import flip_a_byte, make_shards, result, rows, steps, write_config

from cingulum.cli import app


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return make_shards(tmp_path_factory.mktemp("data") / "shards", tissue=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, shards) -> Path:
    """A finished run folder; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("finished")
    # Repeatable operations cannot be switched off again in this process.
    config = write_config(folder, shards, "run", train__deterministic=False, train__epochs=3)
    assert app.run(["train", str(config)]) == 0
    return folder / "run"


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that must fail for bad input; return its one message."""
    assert app.run([str(argument) for argument in arguments]) == 2
    errors = capsys.readouterr().err
    assert errors.count("error: ") == 1
    assert "Traceback" not in errors
    return errors


def test_a_run_leaves_every_file_that_the_run_folder_promises(finished):
    names = {path.name for path in finished.iterdir()}
    assert names >= {
        "config.yaml", "plan.json", "run.json", "metrics.jsonl", "result.json", "model.keras",
        "baseline.json", "checkpoints", "evaluation", "tensorboard", "telemetry", "report.html",
    }  # fmt: skip
    assert list((finished / "tensorboard").glob("events.out.tfevents.*"))
    said = result(finished)
    assert (said["epochs"], said["steps"], said["world_size"]) == (3, 18, 1)
    assert [row["epoch"] for row in rows(finished)] == [1, 2, 3]
    assert said["final"] == rows(finished)[-1] and said["best"] in rows(finished)
    assert said["test"]["n"] == 6 and said["samples_per_second"] > 0
    assert 0 < said["input_wait_share"] < 1
    # The first step of a session is counted in neither.
    assert all(0 < row["input_wait_s"] < row["seconds"] for row in rows(finished))
    assert steps(finished)[-1] == 18


def test_the_record_says_what_ran_on_which_data(finished):
    said = json.loads((finished / "run.json").read_text())
    assert said["finished"] and said["shards"]["volumes"] == 32 and said["classes"] == ["AD", "NC"]
    assert sorted(row for part in said["split"].values() for row in part) == list(range(32))
    assert said["preprocessing"]["size"] == 16


def test_the_rows_of_metrics_have_the_columns_that_the_report_reads(finished):
    assert rows(finished)[0].keys() == {
        "epoch", "step", "loss", "accuracy", "val_loss", "val_cross_entropy", "val_accuracy",
        "val_balanced_accuracy", "val_auc",
        "learning_rate", "samples_per_second", "input_wait_s", "seconds", "time", "start",
        "timeline", "slowest_rank", "slowest_ratio", "slowest_part", "energy_j",
    }  # fmt: skip


def test_every_held_out_subject_is_in_the_table_once(finished):
    with (finished / "evaluation" / "test.csv").open() as file:
        table = list(csv.DictReader(file))
    split = json.loads((finished / "run.json").read_text())["split"]["test"]
    assert sorted(int(row["row"]) for row in table) == split
    assert all(float(row["p_AD"]) + float(row["p_NC"]) == pytest.approx(1, abs=1e-5) for row in table)


def test_evaluating_again_gives_the_metrics_of_the_run(finished, capsys):
    assert app.run(["evaluate", str(finished), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    expected = result(finished)["test"]
    assert said["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert said["confusion"] == expected["confusion"]


def test_the_model_of_a_run_is_an_ordinary_keras_model(finished):
    import keras

    model = keras.saving.load_model(finished / "model.keras", compile=False)
    assert model(np.zeros((1, 16, 16, 16, 1), "float32")).shape == (1, 2)


def test_a_finished_run_is_not_run_again(finished, capsys):
    before = (finished / "result.json").read_bytes()
    assert app.run(["train", str(finished / "config.yaml"), "--resume"]) == 0
    assert "finished already" in capsys.readouterr().err
    assert (finished / "result.json").read_bytes() == before


def test_epochs_may_grow(finished, tmp_path, capsys):
    copy = shutil.copytree(finished, tmp_path / "run")
    assert (
        app.run(["train", str(copy / "config.yaml"), f"runs={tmp_path}", "train.epochs=4", "--resume"]) == 0
    )
    assert [row["epoch"] for row in rows(copy)] == [1, 2, 3, 4]
    assert result(copy)["steps"] == 24


def test_another_runs_checkpoint_is_named_and_not_gone_on_from(finished, tmp_path, shards, capsys):
    changes = {"train__deterministic": False, "train__epochs": 1, "train__seed": 1}
    config = write_config(tmp_path, shards, "mine", **changes)
    assert app.run(["train", str(config)]) == 0
    checkpoints = tmp_path / "mine" / "checkpoints"
    other = shutil.copytree(finished / "checkpoints" / "step-00000018", checkpoints / "step-00000018")
    capsys.readouterr()
    assert app.run(["train", str(config), "train.epochs=2", "--resume"]) == 0
    said = capsys.readouterr().err
    assert f"skipped the checkpoint {other}: another run wrote it" in said
    assert f"resumed from {checkpoints / 'step-00000006'}" in said
    assert result(tmp_path / "mine")["steps"] == 12
    run_id = json.loads((tmp_path / "mine" / "run.json").read_text())["id"]
    manifest = json.loads((checkpoints / "step-00000012" / "manifest.json").read_text())
    assert manifest["run"] == run_id != json.loads((finished / "run.json").read_text())["id"]


def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path, shards, capsys):
    config = write_config(tmp_path, shards, "run", train__deterministic=False)
    assert app.run(["train", str(config), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["steps_per_epoch"] == 6 and plan["steps"] == 24 and plan["micro_batch"] == 4
    assert plan["split"] == {"train": 22, "validation": 4, "test": 6}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.yaml"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ((), "exists already"),
        (("--resume", "train.seed=3"), "train.seed was 0 and is 3 now"),
        (("--resume", "data.shards={other}", "train.epochs=4"), "was trained on other data"),
        (("name=new", "train.transfer.start_from={folder}/none"), "none: there is no such run folder"),
        (("name=new", "train.transfer.start_from={folder}/none.keras"), "none.keras: there is no such file"),
        (("name=new", "model.width=3", "train.transfer.start_from={run}"), "no layer has the name and the"),
        (("name=new", "data.split.seed=7", "train.transfer.start_from={run}"), "subjects that this run hol"),
        (("name=" + "n" * 300,), "name=nnn"),
        (("name=new", "runs={folder}/" + "r" * 300), "File name too long"),
        (("name=new", "runs={run}/config.yaml"), "config.yaml is not a folder that you may write"),
        (("name=new", "model.width=4096", "model.name=resattnet18"), "parameters and their gradients need"),
        (("model.width=4096", "model.name=resattnet18"), "parameters and their gradients need"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would_refuse(finished, tmp_path, shards, capsys, changes, said):
    other = tmp_path / "other"
    if "other" in "".join(changes):
        make_shards(other, subjects=28)
    before = sorted(finished.parent.rglob("*"))
    given = [change.format(run=finished, folder=tmp_path, other=other) for change in changes]
    assert said in refused(capsys, "train", finished / "config.yaml", *given, "--dry-run")
    assert sorted(finished.parent.rglob("*")) == before


def test_a_dry_run_refuses_leaks_as_the_run_does(tmp_path, capsys):
    shards = make_shards(tmp_path / "shards", twins=True)
    config = write_config(tmp_path, shards, "run", train__deterministic=False)
    said = [refused(capsys, "train", config, *more) for more in (["--dry-run"], [])]
    assert "the same image" in said[0] and "data.leaks=warn" in said[0]
    assert [line for line in said[0].splitlines() if "sub-0" in line] == [
        line for line in said[1].splitlines() if "sub-0" in line
    ]
    assert app.run(["train", str(config), "data.leaks=warn", "--dry-run"]) == 0
    assert "warning: splits share what they must not" in capsys.readouterr().err


def test_a_dry_run_of_a_run_that_goes_on_shows_its_plan(finished, capsys):
    before = sorted(finished.rglob("*"))
    assert app.run(["train", str(finished / "config.yaml"), "train.epochs=5", "--resume", "--dry-run"]) == 0
    assert "steps per epoch" in capsys.readouterr().out
    assert sorted(finished.rglob("*")) == before


def test_the_largest_numbers_that_are_taken_do_no_harm_to_a_dry_run(tmp_path, shards):
    config = write_config(tmp_path, shards, "run")
    largest = "train.seed=4294967295 data.split.seed=4294967295 train.threads=1024 train.epochs=1000000"
    largest += " data.prefetch=1000 data.read_ahead=16777216 data.reader_threads=256 checkpoint.keep=10000"
    largest += " data.evaluation_batch=4096 train.schedule.warmup_epochs=1e6 guards.timeout_s=2678400"
    largest += " train.schedule.step_epochs=[1000000] train.schedule.reference_batch=1000000"
    largest += " train.optimizer.learning_rate=1000 data.augment.shift=1000 train.strategy.bucket_mb=4096"
    line = [sys.executable, "-m", "cingulum", "train", str(config), *largest.split(), "--dry-run"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
    assert "6,000,000" in done.stdout


def test_early_stopping_ends_the_run_and_keeps_the_best_epoch(tmp_path, shards):
    stopping = {"metric": "val_loss", "patience": 1, "min_delta": 100.0}
    changes = {"train__early_stopping": stopping, "train__deterministic": False}
    assert app.run(["train", str(write_config(tmp_path, shards, "run", **changes))]) == 0
    said = result(tmp_path / "run")
    assert said["epochs"] == 2 and said["best"]["epoch"] == 1


def test_an_existing_run_folder_is_not_overwritten(finished, capsys):
    message = refused(capsys, "train", finished / "config.yaml")
    assert "exists already" in message and "--resume" in message


def test_resuming_with_another_configuration_names_the_keys(finished, capsys):
    message = refused(capsys, "train", finished / "config.yaml", "train.seed=5", "--resume")
    assert "train.seed was 0 and is 5 now" in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.epocs=3", "Did you mean 'train.epochs'?"),
        ("train.global_batch=none", "train.global_batch"),
        ("train.global_batch=500", "global_batch"),
        ("train.accumulation=3", "global_batch"),
        ("data.classes=[AD, XX]", "XX"),
        ("data.shards=nowhere", "nowhere"),
        ("model.name=resnet19", "resnet18"),
        ("model.options={dropuot: 0.1}", "dropout"),
        ("train.early_stopping.metric=val_los", "val_los"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(tmp_path, shards, capsys, override, words):
    config = write_config(tmp_path, shards, "run", train__deterministic=False, train__epochs=1)
    assert words in refused(capsys, "train", config, override)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_shards_that_are_too_small_for_the_network_are_refused(tmp_path, capsys):
    config = write_config(tmp_path, make_shards(tmp_path / "small", size=8), "run")
    assert "too small" in refused(capsys, "train", config)


def test_one_class_only_is_refused(tmp_path, capsys):
    config = write_config(tmp_path, make_shards(tmp_path / "one", labels=("AD",)), "run")
    assert "only one class was found (AD)" in refused(capsys, "train", config)


def test_an_index_of_a_newer_version_is_refused(tmp_path, capsys):
    shards = make_shards(tmp_path / "shards")
    index = json.loads((shards / "index.json").read_text())
    (shards / "index.json").write_text(json.dumps({**index, "format_version": 99}))
    assert "format version 99" in refused(capsys, "train", write_config(tmp_path, shards, "run"))


def test_a_flipped_byte_in_a_shard_is_named_with_its_subject(tmp_path, capsys):
    shards = make_shards(tmp_path / "shards")
    flip_a_byte(shards, row=3)
    config = write_config(tmp_path, shards, "run", train__deterministic=False)
    assert "volume 3 (subject sub-003) is damaged" in refused(capsys, "train", config)


def test_other_data_under_the_same_path_are_not_resumed_on(finished, tmp_path, capsys):
    copy = shutil.copytree(finished, tmp_path / "run")
    other = make_shards(tmp_path / "other", subjects=28)
    overrides = [f"runs={tmp_path}", f"data.shards={other}", "train.epochs=4", "--resume"]
    assert "other data" in refused(capsys, "train", copy / "config.yaml", *overrides)


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_what_is_no_finished_run_is_refused(tmp_path, capsys, command):
    image = tmp_path / "a.nii"
    arguments = [image] if command == "predict" else []
    assert "no such run folder" in refused(capsys, command, tmp_path / "none", *arguments)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"name": "x", "data": {"shards": "s"}}))
    assert "not finished" in refused(capsys, command, tmp_path, *arguments)


def image_file(path: Path) -> Path:
    """A ball on a dark ground, 2 mm voxels, as from a scanner."""
    grid = np.indices((60, 70, 60)) - np.array([30, 35, 30]).reshape(3, 1, 1, 1)
    ball = (np.sqrt((grid**2).sum(axis=0)) < 25) * np.random.default_rng(0).normal(100, 10, (60, 70, 60))
    nibabel.save(nibabel.Nifti1Image(ball.astype("int16"), np.diag([2.0, 2.0, 2.0, 1.0])), path)
    return path


def test_raw_images_are_prepared_as_in_training_and_predicted(finished, tmp_path, capsys):
    import keras

    from trainer.data.images.preprocess import Recipe, prepare

    image, table = image_file(tmp_path / "scan.nii.gz"), tmp_path / "table.csv"
    assert app.run(["predict", str(finished), str(image), "--output", str(table)]) == 0
    with table.open() as file:
        (row,) = csv.DictReader(file)
    recipe = Recipe.from_json(json.loads((finished / "run.json").read_text())["preprocessing"])
    model = keras.saving.load_model(finished / "model.keras", compile=False)
    logits = np.array(model(prepare(image, recipe).array.astype("float32")[None], training=False).numpy()[0])
    expected = np.exp(logits[1]) / np.exp(logits).sum()
    assert float(row["p_NC"]) == pytest.approx(float(expected), abs=1e-5)
    assert row["predicted"] == ("NC" if expected > 0.5 else "AD")

    capsys.readouterr()
    assert app.run(["predict", str(finished), str(image), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["predicted"] == row["predicted"]


def test_images_that_cannot_be_predicted_are_named(finished, tmp_path, capsys):
    good, broken = image_file(tmp_path / "good.nii"), tmp_path / "broken.nii.gz"
    broken.write_bytes(b"no image")
    table = tmp_path / "table.csv"
    assert "missing.nii" in refused(
        capsys, "predict", finished, good, tmp_path / "missing.nii", "--output", table
    )
    assert not table.exists()
    assert "broken.nii.gz" in refused(capsys, "predict", finished, good, broken, "--output", table)
    with table.open() as file:
        assert [bool(row["error"]) for row in csv.DictReader(file)] == [False, True]


def test_a_folder_for_a_table_is_named(finished, tmp_path, capsys):
    said = refused(capsys, "predict", finished, image_file(tmp_path / "good.nii"), "--output", tmp_path)
    assert f"{tmp_path}: is a folder." in said


def test_a_damaged_model_is_an_error_of_the_run(finished, tmp_path, capsys):
    copy = shutil.copytree(finished, tmp_path / "run")
    (copy / "model.keras").write_bytes(b"PK no zip")
    assert "cannot be opened as a Keras model" in refused(
        capsys, "predict", copy, image_file(tmp_path / "a.nii")
    )


def test_an_empty_split_is_refused(finished, tmp_path, capsys):
    copy = shutil.copytree(finished, tmp_path / "run")
    said = json.loads((copy / "run.json").read_text())
    said["split"]["validation"] = []
    (copy / "run.json").write_text(json.dumps(said))
    assert "no validation split" in refused(capsys, "evaluate", copy, "--split", "validation")
