"""The first page: what runs, what needs attention, what ended; of jobs, runs and cross-validations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from jobs_to_serve import EPOCHS, add, fill, write_run
from served import client_of, code

from jobs.schedulers.base import TaskState

TOLD = {"auc": 0.81, "auc_interval": [0.7, 0.9], "subjects": 12}


@pytest.fixture
def folder(tmp_path) -> Path:
    """Runs by hand: one that ended with figures, one that stopped; and a finished cross-validation."""
    folder = tmp_path / "by-hand"
    done = write_run(folder / "done", EPOCHS)
    (done / "result.json").write_text("{}")
    (done / "evaluation").mkdir()
    (done / "evaluation" / "test.json").write_text(json.dumps(TOLD))
    write_run(folder / "stopped", 3)
    folds = folder / "folds-by-hand"
    folds.mkdir()
    (folds / "crossval.yaml").write_text("name: folds\n")
    pooled = {"auc": {"value": 0.7, "interval": [0.6, 0.8]}, "accuracy": {"value": None, "interval": None}}
    summary = {"per_fold": [], "pooled": pooled, "over_folds": {}, "seeds": [0]}
    (folds / "crossval.json").write_text(json.dumps(summary))
    return folder


def parts(client) -> dict[str, list[str]]:
    home = client.get("/api/v1/home").json()
    return {part: [one["name"] for one in home[part]] for part in ("running", "attention", "ended")}


def test_runs_and_cross_validations_are_told_by_what_became_of_them(store, folder):
    client = client_of(store, folder)
    found = parts(client)
    assert (found["running"], found["attention"]) == ([], ["stopped"])
    assert sorted(found["ended"]) == ["done", "folds-by-hand"]
    ended = {one["name"]: one for one in client.get("/api/v1/home").json()["ended"]}
    assert ended["done"]["figures"] == {"auc": {"value": 0.81, "interval": [0.7, 0.9]}}
    assert ended["folds-by-hand"]["figures"] == {"auc": {"value": 0.7, "interval": [0.6, 0.8]}}
    assert ended["folds-by-hand"]["page"] is None
    run = client.get(ended["done"]["page"].replace("/runs", "/api/v1/runs")).json()
    assert run["figures"]["auc"]["value"] == 0.81
    (folder / "folds-by-hand" / "report.html").write_text("<p>of folds")
    page = next(
        one["page"]
        for one in client_of(store, folder).get("/api/v1/home").json()["ended"]
        if one["page"] and one["what"] == "cross-validation"
    )
    assert "of folds" in client.get(page).text
    assert code(client.get("/crossvals/none/report")) == (404, "NOT_FOUND")


def test_a_damaged_cross_validation_is_left_out(store, folder):
    (folder / "folds-by-hand" / "crossval.json").write_text("{")
    assert parts(client_of(store, folder))["ended"] == ["done"]


def test_jobs_are_told_by_state_and_their_runs_once(store, slurm, tmp_path):
    fill(store, slurm, tmp_path / "runs")
    found = parts(client_of(store, tmp_path / "runs"))
    assert "trains" in found["running"] and "folds" in found["running"] and len(found["running"]) == 3
    assert found["attention"] == ["failed"]
    assert found["ended"] == []


def test_what_failed_and_was_done_since_needs_no_attention(store, slurm, tmp_path):
    run = write_run(tmp_path / "runs" / "again", EPOCHS)
    add(store, slurm, "again", TaskState(0, "FAILED", 1, started=1.7e9, ended=1.7e9 + 9), run=run)
    assert parts(client_of(store))["attention"] == ["again"]
    ended = add(store, slurm, "again", TaskState(0, "COMPLETED", 0, started=1.7e9, ended=1.7e9 + 99), run=run)
    add(store, slurm, "dropped", TaskState(0, "CANCELLED", None))
    found = client_of(store).get("/api/v1/home").json()
    assert (found["attention"], [one["page"] for one in found["ended"]]) == ([], [f"/jobs/{ended.key}"])


def test_no_more_than_a_handful_of_each_are_told(store, tmp_path):
    first = write_run(tmp_path / "many" / "run-0", 2)
    for number in range(1, 10):
        shutil.copytree(first, tmp_path / "many" / f"run-{number}")
    home = client_of(store, tmp_path / "many").get("/api/v1/home").json()
    assert (len(home["attention"]), home["more"]) == (8, {"running": 0, "attention": 2, "ended": 0})
