"""The command that is told to go on with a run is one that goes on with that run."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from wording import fails_with

from trainer import config as configuration
from trainer.config import RunConfig
from trainer.errors import RunError
from trainer.run_folder import resuming
from trainer.run_folder.record import RunFolder

TREE = "{name: a, data: {shards: s, classes: [x, y]}, model: {name: tiny}}"
OWN = ["/env/bin/cingulum", "train", "a b.yaml", "train.epochs=3"]

CONFIG = {"name": "run", "data": {"shards": "shards", "classes": ["a", "b"]}}


def run_folder(path: Path, *overrides: str) -> RunFolder:
    """A run folder, as far as it is needed to tell which run it is."""
    folder = RunFolder(path)
    path.mkdir(parents=True)
    folder.write_config(configuration.parse(TREE, overrides=overrides))
    folder.run.write_text("{}")
    return folder


@pytest.fixture
def alone(monkeypatch) -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def loaded(command: str) -> RunConfig:
    """The configuration that a command would train by, after its own check."""
    words = shlex.split(command)
    assert words[:2] == ["cingulum", "train"] and words[-1] == "--resume"
    config = configuration.load(Path(words[2]), words[3:-1])
    resuming.check_place(Path(words[2]), words[3:-1], config)
    return config


@pytest.mark.parametrize("name", ["a", "b", "2024", "on"])
def test_the_command_for_a_run_goes_on_in_the_folder_where_it_lies(tmp_path, alone, name):
    original = run_folder(tmp_path / "runs" / "a", f"runs={tmp_path / 'runs'}")
    assert resuming.command(original) == f"cingulum train {original.config} --resume"
    copy = RunFolder(shutil.copytree(original.path, tmp_path / "my copies" / name))
    assert loaded(resuming.command(copy)).folder == copy.path


def test_a_copys_configuration_alone_goes_on_with_neither_run(tmp_path, alone):
    original = run_folder(tmp_path / "runs" / "a", f"runs={tmp_path / 'runs'}")
    copy = run_folder(tmp_path / "copies" / "b", f"runs={tmp_path / 'runs'}")
    with pytest.raises(RunError) as refused:
        resuming.check_place(copy.config, [], configuration.load(copy.config))
    assert resuming.command(copy) in str(refused.value) and f"name={copy.path.name}" in str(refused.value)
    assert resuming.command(original) in str(refused.value)
    resuming.check_place(copy.config, ["name=new"], configuration.load(copy.config, ["name=new"]))
    resuming.check_place(original.config, [], configuration.load(original.config))


def test_a_copy_may_be_gone_on_with_under_another_name_and_is_named_where_it_may_not(tmp_path, alone):
    stored = configuration.parse(TREE, overrides=["runs=runs"])
    given = configuration.parse(TREE, overrides=["runs=copies", "name=b"])
    resuming.check_resumable(stored, given)
    with fails_with(RunError) as refused:
        resuming.check_resumable(configuration.parse(TREE, overrides=["runs=runs", "train.seed=9"]), given)
    assert "cingulum train copies/b/config.yaml --resume" in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "parent", "words"),
    [
        ({}, ["bash"], []),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, ["mpirun", "-np", "2", "cingulum", *OWN[1:]], ["mpirun", "-np", "2"]),
        (
            {"OMPI_COMM_WORLD_SIZE": "3"},
            ["/opt/bin/mpirun", "-H", "n1:2,n2:1", "--bind-to", "core", "/env/bin/cingulum", *OWN[1:]],
            ["/opt/bin/mpirun", "-H", "n1:2,n2:1", "--bind-to", "core"],
        ),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, ["mpirun", "-np", "2", "python", "mine.py"], ["mpirun", "-np", "2"]),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, ["orted", "-mca", "x"], ["mpirun", "-np", "4"]),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, ["mpirun"], ["mpirun", "-np", "2"]),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8", "OMPI_COMM_WORLD_SIZE": "8"},
            ["slurmstepd: [7.0]"],
            ["srun", "--ntasks=8", "--mpi=pmix"],
        ),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, ["bash"], []),
    ],
)
def test_the_launcher_is_the_one_that_started_the_run(environment, parent, words):
    assert resuming.launcher(environment, parent, OWN) == words


def test_in_a_job_of_slurm_the_script_is_named_first(tmp_path, alone, monkeypatch):
    folder = run_folder(tmp_path / "runs" / "a", f"runs={tmp_path / 'runs'}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert resuming.cure(folder).startswith("Submit the same script again with --resume in it")


@pytest.mark.parametrize(
    ("rows", "checkpoints", "is_finished", "refused"),
    [
        (0, (), False, False),
        (1, (), False, False),  # killed between the first row and its checkpoint
        (2, (), False, True),
        (2, ("step-00000004",), False, False),
        (1, (), True, True),
    ],
)
def test_a_run_whose_checkpoints_were_removed_does_not_begin_again(
    tmp_path, rows, checkpoints, is_finished, refused
):
    folder = run_folder(tmp_path / "a")
    folder.metrics.write_text('{"epoch": 1}\n' * rows)
    for name in checkpoints:
        (folder.checkpoints / name).mkdir(parents=True)
    if is_finished:
        folder.result.write_text("{}")
    if not refused:
        resuming.check_not_lost(folder, RunConfig.model_validate(CONFIG))
        return
    with pytest.raises(RunError, match=f"was trained for {rows} epochs, but checkpoints/ is empty") as error:
        resuming.check_not_lost(folder, RunConfig.model_validate(CONFIG))
    assert f"remove {folder.path}" in str(error.value.cure)


def test_while_early_stopping_may_have_kept_no_epoch_a_run_begins_again(tmp_path):
    """What it watches, such as an AUC, was not to be had: the first checkpoint is that of `every_epochs`."""
    folder = RunFolder(tmp_path)
    config = RunConfig.model_validate(
        {**CONFIG, "checkpoint": {"every_epochs": 3}, "train": {"early_stopping": {"metric": "val_auc"}}}
    )
    folder.metrics.write_text("{}\n" * 3)
    resuming.check_not_lost(folder, config)
    folder.metrics.write_text("{}\n" * 4)
    with fails_with(RunError):
        resuming.check_not_lost(folder, config)
