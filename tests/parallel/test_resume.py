"""A run that is interrupted at any moment and resumed ends with the very same weights."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_runs
from tiny_runs import PROGRAM

from jobs.local import mpirun
from trainer.run_folder import checkpoint
from trainer.run_folder.run_record import RunRecord

# Of what is killed: so many times at any step, and while a checkpoint is written and renamed.
KILLS = {"kill": 1, "kill-writing": 1, "kill-renaming": 1}
MANY_KILLS = {"kill": 6, "kill-writing": 2, "kill-renaming": 2}
MEASURED = (
    "time", "seconds", "samples_per_second", "input_wait_s",
    "timeline", "slowest_rank", "slowest_ratio", "slowest_part", "energy_j", "start",
)  # fmt: skip


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    return tiny_runs.make_shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="module")
def reference(tmp_path_factory, shards, launch) -> Path:
    """The run folder of two ranks that nothing interrupted."""
    folder = tmp_path_factory.mktemp("reference")
    outcome = launch(2, PROGRAM, "none", 0, 0, tiny_runs.write_config(folder, shards, "run"))
    assert outcome.exit_code == 0, outcome.err
    return folder / "run"


def assert_same_run(folder: Path, reference: Path) -> None:
    ours, theirs = tiny_runs.result(folder), tiny_runs.result(reference)
    assert ours["weights_sha256"] == theirs["weights_sha256"]
    assert ours["best_weights_sha256"] == theirs["best_weights_sha256"]
    for mine, its in zip(tiny_runs.rows(folder), tiny_runs.rows(reference), strict=True):
        assert mine.keys() == its.keys()
        for key in mine.keys() - set(MEASURED):
            assert mine[key] == pytest.approx(its[key], abs=1e-9), key
    tables = [(run / "evaluation" / "test.csv").read_text() for run in (folder, reference)]
    assert tables[0] == tables[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.deep)])
def test_kills_at_random_steps_and_moments_change_no_bit(tmp_path, shards, reference, launch, kills):
    config = tiny_runs.write_config(tmp_path, shards, "run")
    folder = tmp_path / "run"
    chance = random.Random(20190507)
    kinds = [kind for kind, times in kills.items() for _ in range(times)]
    chance.shuffle(kinds)
    for kind in kinds:
        there = max(tiny_runs.steps(folder), default=0)
        step = there + (chance.randint(1, 3) if kind == "kill" else 2)
        rank = chance.randint(0, 1) if kind == "kill" else 0
        outcome = launch(2, PROGRAM, kind, rank, step, config, "--resume", timeout=90)
        assert outcome.exit_code != 0, f"{kind} of rank {rank} at step {step} did not strike"
        assert not (folder / "result.json").exists()

    outcome = launch(2, PROGRAM, "none", 0, 0, config, "--resume")
    assert outcome.exit_code == 0, outcome.err
    assert_same_run(folder, reference)
    assert not list((folder / "checkpoints").glob("*.partial"))


@pytest.mark.slow
def test_a_run_whose_update_is_compiled_goes_on_with_it_and_changes_no_bit(tmp_path, shards, launch):
    whole = tiny_runs.write_config(tmp_path, shards, "whole", train__compile="xla")
    assert launch(2, PROGRAM, "none", 0, 0, whole).exit_code == 0
    config = tiny_runs.write_config(tmp_path, shards, "run", train__compile="xla")
    assert launch(2, PROGRAM, "kill", 1, 9, config).exit_code != 0
    # A new run of so few weights would not be compiled.
    tiny_runs.write_config(tmp_path, shards, "run", train__compile="auto")
    outcome = launch(2, PROGRAM, "none", 0, 0, config, "--resume")
    assert outcome.exit_code == 0, outcome.err
    assert RunRecord.read(tmp_path / "run" / "run.json").update.compiled
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert "the update is compiled by XLA: as this run has updated so far" in outcome.err


@pytest.mark.slow
def test_a_stop_saves_and_a_corrupted_newest_checkpoint_falls_back_to_the_one_before(
    tmp_path, shards, reference, launch
):
    config = tiny_runs.write_config(tmp_path, shards, "run")
    folder = tmp_path / "run"
    first = launch(2, PROGRAM, "stop", 1, 7, config)
    assert first.exit_code == 75, first.err
    saved = max(tiny_runs.steps(folder))
    assert f"stopped at step {saved} of 24" in first.err and "--resume" in first.err
    assert saved >= 7

    second = launch(2, PROGRAM, "stop", 0, saved + 4, config, "--resume")
    assert second.exit_code == 75, second.err
    assert f"resumed from {folder / 'checkpoints' / f'step-{saved:08d}'}" in second.err

    newest = checkpoint.path_of(folder / "checkpoints", max(tiny_runs.steps(folder)))
    content = bytearray((newest / "optimizer.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (newest / "optimizer.npz").write_bytes(content)
    third = launch(2, PROGRAM, "none", 0, 0, config, "--resume")
    assert third.exit_code == 0, third.err
    assert f"skipped the checkpoint {newest}: optimizer.npz does not match its checksum" in third.err
    assert_same_run(folder, reference)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGINT])
def test_signals_to_mpirun_reach_the_ranks_which_save_and_tell_how_to_go_on(tmp_path, shards, number):
    config = tiny_runs.write_config(tmp_path, shards, "run", train__epochs=5000)
    program = Path(__file__).parent / "programs" / PROGRAM
    line, additions = mpirun.command(2, [sys.executable, str(program), "none", "0", "0", str(config)])
    environment = {**os.environ, **additions, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 90
        while not checkpoint.find(tmp_path / "run" / "checkpoints").path and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    config_there = tmp_path / "run" / "config.yaml"
    again = f"Go on with: mpirun -np 2 cingulum train {config_there} --resume"
    if number == signal.SIGINT:  # mpirun kills them a second later, saved or not, and ends with 1
        assert f"stopping; mpirun leaves a second to save in.\n  {again}" in errors
        return
    assert process.returncode == 75, errors
    saved = max(tiny_runs.steps(tmp_path / "run"))
    ours, mpiruns = errors.split("aborted job now, it means this stop (exit code 75): nothing is lost.")
    assert f"stopped at step {saved} of" in ours and "the job has been aborted" in mpiruns
    assert again in mpiruns


@pytest.mark.slow
def test_another_world_size_goes_on_with_the_same_sequence(tmp_path, shards, launch):
    """Two ranks begin, one process without mpirun ends: as one process alone, but for rounding."""
    options = {"train__epochs": 3}
    alone = tiny_runs.write_config(tmp_path, shards, "alone", **options)
    assert launch(0, PROGRAM, "none", 0, 0, alone).exit_code == 0

    shared = tiny_runs.write_config(tmp_path, shards, "shared", **options)
    outcome = launch(2, PROGRAM, "kill", 1, 9, shared)
    assert outcome.exit_code != 0
    outcome = launch(0, PROGRAM, "none", 0, 0, shared, "--resume")
    assert outcome.exit_code == 0, outcome.err
    assert "step-00000008" in outcome.err

    assert tiny_runs.result(tmp_path / "shared")["world_size"] == 1
    keras = pytest.importorskip("keras")
    models = [
        keras.saving.load_model(
            checkpoint.find(tmp_path / name / "checkpoints").path / "model.keras", compile=False
        )
        for name in ("alone", "shared")
    ]
    for ours, theirs in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-4)
