"""The run folder and what may change on resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wording import fails_with

from trainer import config as configuration
from trainer.errors import RunError
from trainer.run_folder import machine, record, resuming
from trainer.run_folder.record import RunFolder


def config(*overrides: str) -> configuration.RunConfig:
    return configuration.parse("{name: r, data: {shards: s}}", overrides)


def test_the_configuration_comes_back_equal(tmp_path):
    folder = RunFolder(tmp_path)
    given = config("train.epochs=7", "train.early_stopping.patience=2", "data.classes=[b, a]")
    folder.write_config(given)
    assert record.load_config(RunFolder.open(tmp_path)) == given


def test_the_same_configuration_resumes():
    resuming.check_resumable(config(), config())


@pytest.mark.parametrize(
    "free",
    [
        "train.epochs=120",
        "data.prefetch=9",
        "data.page_cache=bypass",
        "checkpoint.keep=9",
        "guards.timeout_s=5",
        "runs=/elsewhere",
    ],
)
def test_epochs_may_grow_and_what_changes_no_step_may_change(free):
    resuming.check_resumable(config(), config(free))


def test_other_keys_may_not_change_and_all_are_named():
    with pytest.raises(RunError) as caught:
        resuming.check_resumable(config(), config("train.global_batch=4", "train.seed=3", "train.epochs=2"))
    message = str(caught.value)
    assert "train.global_batch was 8 and is 4 now" in message
    assert "train.seed was 0 and is 3 now" in message
    assert "train.epochs was 80 and is 2 now" in message
    assert "learning_rate" not in message
    assert "--resume" in message


def test_a_section_that_was_absent_is_named_too():
    with fails_with(RunError):
        resuming.check_resumable(config(), config("train.early_stopping.patience=2"))


def test_what_is_no_run_folder_is_told_from_what_does_not_exist(tmp_path):
    with fails_with(RunError):
        RunFolder.open(tmp_path / "none")
    with fails_with(RunError):
        RunFolder.open(tmp_path)


def test_an_unfinished_run_is_refused_with_the_command_that_goes_on(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_config(config())
    with fails_with(RunError):
        resuming.open_finished(tmp_path)


def test_a_damaged_configuration_is_an_error_of_the_run_folder(tmp_path):
    (tmp_path / "config.yaml").write_text("name: r\nwhat: 1\n")
    with fails_with(RunError):
        record.load_config(RunFolder(tmp_path))


def test_rows_are_replaced_by_those_the_checkpoint_knows(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_rows([{"epoch": epoch} for epoch in (1, 2, 3)])
    folder.write_rows([{"epoch": 1}, {"epoch": 2}])
    assert [json.loads(line)["epoch"] for line in folder.metrics.read_text().splitlines()] == [1, 2]


def test_damaged_or_missing_json_is_named(tmp_path):
    with fails_with(RunError):
        record.read_json(tmp_path / "run.json")
    (tmp_path / "run.json").write_text("{")
    with fails_with(RunError):
        record.read_json(tmp_path / "run.json")


def test_a_number_that_is_no_json_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        record.write_json(tmp_path / "result.json", {"loss": float("nan")})
    assert list(Path(tmp_path).iterdir()) == []


def test_the_environment_names_versions_and_machine():
    said = machine.described()
    assert said["packages"]["numpy"] and said["python"] and said["cpu"]["threads"] >= 1
