"""`evaluate`, `diagnose` and `explain` take the folder of a cross-validation."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import telemetry_lines
from test_crossval_held_out import crossval
from wording import fails_with

from cingulum.cli import app
from trainer.crossval import tables
from trainer.errors import RunError
from trainer.run_folder import crossval_folder
from trainer.telemetry import records
from trainer.telemetry.records import Step


@pytest.fixture
def finished(tmp_path) -> Path:
    """Three folds, two seeds."""
    made = crossval(tmp_path)
    tables.write(made)
    (made.folder / "crossval.yaml").write_text("")
    return made.folder


def test_evaluate_shows_what_all_folds_say_of_held_out_subjects(finished, capsys):
    assert app.run(["evaluate", str(finished)]) == 0
    said = capsys.readouterr().out
    assert "6 subjects, each held out once for each of 2 seeds" in said
    assert "auc" in said and "mean and sd over 6 runs" in said
    assert app.run(["evaluate", str(finished), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((finished / "crossval.json").read_text())


@pytest.mark.parametrize(
    "environment",
    [
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "{}"},
        {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "{}", "PMIX_RANK": "{}"},
    ],
)
def test_of_several_ranks_one_shows_a_cross_validation(finished, capsys, monkeypatch, environment):
    for rank in (0, 1):
        for name, value in environment.items():
            monkeypatch.setenv(name, value.format(rank))
        assert app.run(["evaluate", str(finished)]) == 0
        assert ("held out once" in capsys.readouterr().out) == (rank == 0)


def test_another_split_than_the_held_out_one_belongs_to_a_fold(finished, capsys):
    assert app.run(["evaluate", str(finished), "--split", "validation"]) == 2
    said = capsys.readouterr().err
    assert "held out" in said and f"cingulum evaluate {finished / 'fold-0-seed-0'} --split validation" in said


@pytest.mark.parametrize("command", ["evaluate", "explain"])
def test_an_unfinished_cross_validation_says_how_to_go_on(finished, capsys, command):
    (finished / "crossval.json").unlink()
    (finished / "fold-1-seed-0" / "result.json").unlink()
    assert app.run([command, str(finished)]) == 2
    said = capsys.readouterr().err
    assert "5 of its runs have a result" in said
    assert f"cingulum crossval {finished / 'crossval.yaml'}" in said


@pytest.mark.parametrize("text", ["{", "[]", '{"per_fold": 3}', "[" * 100_000])
def test_a_damaged_summary_is_named(finished, capsys, text):
    (finished / "crossval.json").write_text(text)
    assert app.run(["evaluate", str(finished)]) == 2
    assert "crossval.json: is damaged" in capsys.readouterr().err


def test_the_first_seed_holds_every_subject_out_once(finished):
    (finished / "fold-9-seed-x").mkdir()
    (finished / "notes").mkdir()
    every = [path.name for path in crossval_folder.runs(finished)]
    assert every == [f"fold-{fold}-seed-{seed}" for seed in (0, 1) for fold in range(3)]
    assert [path.name for path in crossval_folder.finished_runs(finished)] == every[:3]


def test_a_cross_validation_without_a_fold_says_how_to_begin(tmp_path):
    (tmp_path / "crossval.yaml").write_text("")
    with fails_with(RunError):
        crossval_folder.runs(tmp_path)


def test_diagnose_judges_every_fold_that_told_of_its_time(finished, capsys):
    assert app.run(["diagnose", str(finished)]) == 2
    assert "none of its runs" in capsys.readouterr().err
    told = finished / "fold-2-seed-1"
    (told / "config.yaml").write_text("name: x\ndata: {shards: nowhere}\n")
    for rank in range(2):
        steps = [Step(n, 1.0, 0.0, 0.2, 0.3, 0.4, 0.1, 0.05, 0.05, first=n == 1) for n in range(1, 9)]
        telemetry_lines.append(records.rank_file(told, rank), [dataclasses.asdict(step) for step in steps])
    assert app.run(["diagnose", str(finished)]) == 0
    said = capsys.readouterr().out
    assert f"{told}: network-bound" in said
    assert f"{finished / 'fold-0-seed-0'}: has no telemetry" in said
    assert app.run(["diagnose", str(finished), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in found["runs"]] == [str(told)]
    assert len(found["without"]) == 5
