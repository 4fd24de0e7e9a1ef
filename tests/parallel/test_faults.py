"""A rank that fails ends all ranks soon, and its own message comes first."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import tiny_runs
from tiny_runs import PROGRAM

from trainer.run_folder import checkpoint

# Start, imports and tracing of two ranks on two busy cores, and the time a fault may take to end them.
BOUND_S = 60

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow

ENDS_SOON = {"train__epochs": 1, "train__deterministic": False, "checkpoint__every_steps": None}


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards")


def first_line(text: str) -> str:
    noise = ("I0000", "W0000", "WARNING", "epoch", "the best epoch")
    return next(line for line in text.splitlines() if line.strip() and not line.startswith(noise))


def test_a_rank_that_raises_is_heard_first_and_ends_the_others(tmp_path, shards, launch):
    outcome = launch(2, PROGRAM, "raise", 1, 5, tiny_runs.write_config(tmp_path, shards, "run"))
    assert outcome.exit_code == 1
    assert first_line(outcome.err).startswith("[rank 1 @ ")
    assert "KeyError: 'a fault of the test'" in outcome.err
    assert outcome.seconds < BOUND_S


def test_a_rank_that_hangs_says_where_it_stands_and_ends_the_others(tmp_path, shards, launch):
    config = tiny_runs.write_config(tmp_path, shards, "run", guards__timeout_s=8)
    outcome = launch(2, PROGRAM, "hang", 1, 5, config)
    assert outcome.exit_code == 1
    assert first_line(outcome.err).startswith("[rank 1 @ ")
    assert "no progress for 8 s while doing what the test wants" in outcome.err
    assert "in _strike" in outcome.err
    assert "[rank 0" not in outcome.err
    assert outcome.seconds < BOUND_S + 8


def test_a_rank_that_is_frozen_is_named_by_those_that_wait_for_it(tmp_path, shards, launch):
    """It cannot speak itself, and MPI does not know whom it waits for."""
    config = tiny_runs.write_config(tmp_path, shards, "run", guards__timeout_s=10)
    outcome = launch(2, PROGRAM, "freeze", 1, 5, config)
    assert outcome.exit_code == 1
    assert re.match(r"\[rank 1 @ \S+\] error: does not answer rank 0 @ ", first_line(outcome.err))
    assert "[rank 0 @" in outcome.err and "computing a training step" in outcome.err
    # Half of the bound is the start of a busy machine; a frozen rank is missed after 1.5 x 10 s.
    assert outcome.seconds < 2 * BOUND_S + 1.5 * 10


def test_a_rank_that_is_killed_ends_the_others(tmp_path, shards, launch):
    outcome = launch(2, PROGRAM, "kill", 0, 5, tiny_runs.write_config(tmp_path, shards, "run"))
    assert outcome.exit_code == 137
    assert "rank 0" in outcome.err and "signal 9" in outcome.err
    assert outcome.seconds < BOUND_S


def test_a_full_disk_is_one_clear_error_on_all_ranks_and_older_checkpoints_stay(tmp_path, shards, launch):
    """No file of rank 0 may grow past 2000 bytes from step 5 on: a full disk, to a program."""
    outcome = launch(2, PROGRAM, "full", 0, 5, tiny_runs.write_config(tmp_path, shards, "run"))
    assert outcome.exit_code == 1
    assert outcome.err.count("error: ") == 1
    assert "the checkpoint of step 6 could not be written" in outcome.err
    assert "Traceback" not in outcome.err
    found = checkpoint.find(tmp_path / "run" / "checkpoints")
    assert found == checkpoint.NewestCheckpoint(checkpoint.path_of(tmp_path / "run" / "checkpoints", 4))
    assert outcome.seconds < BOUND_S


def test_a_loss_that_is_not_a_number_stops_all_ranks_and_names_the_step(tmp_path, shards, launch):
    outcome = launch(2, PROGRAM, "nan", 1, 9, tiny_runs.write_config(tmp_path, shards, "run"))
    assert outcome.exit_code == 1
    assert outcome.err.count("error: ") == 1
    assert "step 9: the loss is no longer a finite number" in outcome.err
    assert "learning_rate" in outcome.err
    assert max(tiny_runs.steps(tmp_path / "run")) == 8


def test_weights_that_drift_apart_stop_the_run(tmp_path, shards, launch):
    outcome = launch(2, PROGRAM, "diverge", 1, 3, tiny_runs.write_config(tmp_path, shards, "run"))
    assert outcome.exit_code == 1
    assert outcome.err.count("no longer hold the same weights") == 1
    assert "Traceback" not in outcome.err


def test_a_damaged_volume_that_one_rank_reads_is_told_once(tmp_path, launch):
    shards = tiny_runs.make_shards(tmp_path / "shards")
    tiny_runs.flip_a_byte(shards, row=1)
    outcome = launch(2, PROGRAM, "none", 0, 0, tiny_runs.write_config(tmp_path, shards, "run"))
    assert outcome.exit_code == 2
    assert outcome.err.count("error: ") == 1
    assert "volume 1 (subject sub-001) is damaged" in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.seconds < BOUND_S


CLI = ROOT / "cingulum" / "__main__.py"


def test_a_wrong_configuration_is_told_once_where_the_end_of_one_rank_would_not_end_the_others(
    tmp_path, shards, launch
):
    config = tiny_runs.write_config(tmp_path, shards, "run", train__epocs=3)
    spared = {"PRTE_MCA_state_base_recoverable": "1"}  # Open MPI 4 does not know it, but the ranks do
    outcome = launch(2, CLI, "train", config, environment=spared)
    assert outcome.exit_code == 2
    assert outcome.err.count("unknown key 'train.epocs'") == 1
    assert not (tmp_path / "run").exists()


def test_a_wrong_configuration_is_told_before_tensorflow_is_loaded_by_mpirun(tmp_path, shards, launch):
    config = tiny_runs.write_config(tmp_path, shards, "run", train__epocs=3)
    blocked = tmp_path / "blocked" / "tensorflow"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path(__file__).with_name('loaded-by-' + os.environ['OMPI_COMM_WORLD_RANK']).touch()\n"
        "time.sleep(60)\n"
    )
    places = {"PYTHONPATH": f"{blocked.parent}{os.pathsep}{ROOT}"}
    outcome = launch(2, CLI, "train", config, environment=places)
    assert outcome.exit_code == 2
    assert outcome.err.count("unknown key 'train.epocs'") == 1
    assert not (blocked / "loaded-by-0").exists()
    assert outcome.seconds < 60  # rank 1, which would load TensorFlow for so long, was ended
    assert not (tmp_path / "run").exists()


DENSE = {"task__name": "segmentation", "model__name": "unet3d", "model__options": {"depth": 1}}


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (2, {"train__strategy": "data"}),
        (2, {"train__strategy": {"name": "spatial"}, **DENSE, "model__width": 2}),
        (2, {"train__strategy": {"name": "parameter-server", "placement": "colocated"}}),
        (3, {"train__strategy": {"name": "parameter-server", "mode": "async"}}),
    ],
    ids=["data", "spatial", "servers", "async"],
)
def test_an_error_in_the_report_of_several_ranks_is_one_line_and_the_run_is_finished(
    tmp_path, launch, ranks, changes
):
    shards = tiny_runs.make_shards(tmp_path / "shards", subjects=20, maps="task__name" in changes)
    config = tiny_runs.write_config(tmp_path, shards, "run", **{**ENDS_SOON, **changes})
    outcome = launch(ranks, "broken_report.py", "raise", "train", config)
    assert outcome.exit_code == 0, outcome.err
    folder = tmp_path / "run"
    assert outcome.err.count(" could not be made (") == 1 and "Traceback" not in outcome.err
    assert "report.html could not be made (ZeroDivisionError: nobody expected this" in outcome.err
    assert f"cingulum report {folder}" in outcome.err
    assert tiny_runs.result(folder)["test"]["n"] == 4
    assert bool(list(folder.glob("evaluation/maps/*"))) == ("task__name" in changes)

    again = launch(0, "command.py", "train", folder / "config.yaml", "train.strategy=data", "--resume")
    assert again.exit_code == 0, again.err
    assert "is finished already; writing what is missing: report.html." in again.err
    assert (folder / "report.html").is_file()


def test_a_report_that_nothing_ends_does_not_make_a_failure_of_a_finished_run(tmp_path, shards, launch):
    config = tiny_runs.write_config(tmp_path, shards, "run", guards__timeout_s=20, **ENDS_SOON)
    outcome = launch(2, "broken_report.py", "hang", "train", config)
    assert outcome.exit_code == 0, outcome.err
    assert "s while making report.html; " in outcome.err and "is finished all the same" in outcome.err
    assert "Traceback" not in outcome.err and "ending all ranks" not in outcome.err
    assert tiny_runs.result(tmp_path / "run")["test"]["n"] == 6
