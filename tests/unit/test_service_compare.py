"""Runs side by side, as the service tells them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from jobs_to_serve import EPOCHS, HOSTILE, STEPS, write_run
from made_up_run import make_run
from served import client_of, code

from cingulum.service import compare
from trainer.metrics import comparison, tables

NAME = HOSTILE.replace("/", "")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three runs with other learning rates, the last of which has ended."""
    folder = tmp_path / "by-hand"
    for number, name in enumerate(("first", "second", "last")):
        run = write_run(folder / name, EPOCHS - 5 * number)
        config = yaml.safe_load((run / "config.yaml").read_text())
        config["train"]["optimizer"] = {"learning_rate": 10.0 ** -(number + 2)}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "second").rename(folder / NAME)
    (run / "evaluation").mkdir()
    evaluated = {"split": "test", "n": 40, "auc": 0.81, "auc_interval": [0.7, 0.9], "brier": 0.2, "ece": None}
    (run / "evaluation" / "test.json").write_text(json.dumps(evaluated))
    return folder


@pytest.fixture
def client(store, served_jobs, folder):
    return client_of(store, folder)


@pytest.fixture
def ids(client) -> dict[str, str]:
    return {run["name"]: run["id"] for run in client.get("/api/v1/runs").json()["runs"]}


def compared(client, *ids: str, query: str = "") -> dict:
    return client.get(f"/api/v1/compare?runs={','.join(ids)}{query}").json()


def test_runs_stand_in_the_order_in_which_they_were_asked_for(client, ids):
    order = [ids["last"], "4714", ids[NAME], ids["first"]]
    found = compared(client, *order, ids["last"])
    assert [run["name"] for run in found["runs"]] == ["last", "trains", NAME, "first"]
    assert [run["id"] for run in found["runs"]] == [ids["last"], "new-4", ids[NAME], ids["first"]]
    assert [run["page"] for run in found["runs"]][:2] == [f"/runs/{ids['last']}", "/jobs/new-4"]
    assert found["runs"][1]["state"] == "RUNNING" and found["warnings"] == []
    assert {"loss", "val_loss", "learning_rate"} < set(found["metrics"])
    assert not {"epoch", "step"} & set(found["metrics"])


def test_losses_of_runs_that_train_other_functions_are_not_compared_without_a_word(client, ids, folder):
    path = folder / "last" / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "task": {"loss": "focal"}}))
    (warning,) = compared(client, ids["first"], ids[NAME], ids["last"])["warnings"]
    assert warning == (
        "loss and val_loss are not one function in these runs: cross entropy with classes weighted equally; "
        "focal loss (gamma 2) with classes weighted equally. Compare val_cross_entropy."
    )


def test_only_settings_that_differ_are_told_and_figures_have_their_intervals(client, ids):
    found = compared(client, *ids.values())
    assert found["keys"] == ["train.optimizer.learning_rate"]
    rates = {run["name"]: run["settings"] for run in found["runs"]}
    assert rates == {"first": ["0.01"], NAME: ["0.001"], "last": ["0.0001"]}
    figures = {run["name"]: run["figures"] for run in found["runs"]}
    assert figures["first"] == {} and list(figures["last"]) == found["figures"] == ["auc", "brier"]
    assert figures["last"]["auc"] == {"value": 0.81, "interval": [0.7, 0.9]}
    assert compared(client, *ids.values(), query="&split=validation")["figures"] == []


def test_intervals_that_an_older_version_wrote_are_made_again_by_subject(client, ids, folder):
    stored = json.loads((folder / "last" / "evaluation" / "test.json").read_text())
    rng = np.random.default_rng(0)
    lines = ["row,subject,label,predicted,p_NC,p_AD"]
    for row in range(40):
        likely = round(0.4 + 0.2 * (row % 8 > 3) + rng.normal(0, 0.15), 3)
        lines.append(f"{row},s{row % 8},{['NC', 'AD'][row % 8 > 3]},NC,{1 - likely},{likely}")
    (folder / "last" / "evaluation" / "test.csv").write_text("\n".join(lines) + "\n")
    (folder / "last" / "result.json").write_text("{}")
    figures = {run["name"]: run["figures"] for run in compared(client, *ids.values())["runs"]}["last"]
    table = tables.read(folder / "last", "test")
    assert figures["auc"]["value"] == comparison.metrics(table)["auc"] != stored["auc"]
    assert figures["auc"]["interval"] is None  # of four subjects in each class


def test_a_job_with_tasks_means_the_runs_of_all_and_what_is_missing_is_said(client, ids, folder):
    found = compared(client, "4711", "4711_1", "4713", "nobody", ids["first"])
    assert [run["id"] for run in found["runs"]] == ["new-1_0", "new-1_1", ids["first"]]
    assert [run["state"] for run in found["runs"]][:2] == ["COMPLETED", "RUNNING"]
    assert [warning.split(":")[0] for warning in found["warnings"]] == ["4713", "nobody"]
    (folder / "first" / "config.yaml").write_text("a: [")
    assert compared(client, ids["first"], ids["last"])["runs"][0]["settings"] == []
    assert compared(client, "")["runs"] == []


def test_another_user_s_job_is_not_compared_and_many_are_asked_for_at_once(client, store, monkeypatch):
    monkeypatch.setattr(store.__class__, "get", lambda *_: 1 / 0)
    assert [run["id"] for run in compared(client, "4714", "new-4", "4711_9", "4711_0")["runs"]] == [
        "new-4",
        "new-1_0",
    ]
    monkeypatch.setattr("jobs.store.submitter.user", lambda: "somebody-else")
    assert compared(client_of(store), "4714")["runs"] == []


def test_a_curve_is_told_over_epochs_steps_or_seconds_and_thinned(client, ids, monkeypatch):
    asked = f"/api/v1/compare/curves?runs={ids['last']},4713,{ids['first']}&metric=val_auc"
    last, first = client.get(asked).json()["lines"]
    assert (last["id"], last["x"][:2], last["y"][:2]) == (ids["last"], [1, 2], [None, 0.85])
    assert len(first["x"]) == EPOCHS
    assert client.get(f"{asked}&axis=step").json()["lines"][0]["x"][0] == STEPS
    assert client.get(f"{asked}&axis=time").json()["lines"][0]["x"][:2] == [10, 20]
    monkeypatch.setattr(compare, "_POINTS", 8)
    monkeypatch.setattr(compare, "_FEWEST", 4)
    assert client.get(asked).json()["lines"][1]["x"] == [1, 7, 14, 20]
    assert client.get(f"/api/v1/compare/curves?runs={ids['last']}&metric=none").json()["lines"] == []


def test_differences_are_those_that_the_command_tells(store, tmp_path, capsys):
    from cingulum.cli import app

    for name, skill, seed in (("good", 2.5, 11), ("bad", 0.4, 11), ("other", 1.0, 12), ("young", 1.0, 11)):
        make_run(tmp_path / "runs" / name, skill=skill, seed=seed)
    for name in ("good", "bad", "other"):
        path = tmp_path / "runs" / name / "run.json"
        told = json.loads(path.read_text())
        told["shards"]["content_hash"] = "same"
        path.write_text(json.dumps(told))
    (tmp_path / "runs" / "young" / "result.json").unlink()
    client = client_of(store, tmp_path / "runs")
    ids = {run["name"]: run["id"] for run in client.get("/api/v1/runs").json()["runs"]}
    asked = f"/api/v1/compare/tests?runs={ids['good']},{ids['young']},{ids['bad']}"
    found = client.get(asked).json()
    assert app.run(["compare", *(str(tmp_path / "runs" / name) for name in ("good", "bad")), "--json"]) == 0
    names = {"good": ids["good"], "bad": ids["bad"]}
    expected = [
        {**pair, "first": names[pair["first"]], "second": names[pair["second"]]}
        for pair in json.loads(capsys.readouterr().out)["comparisons"]
    ]
    assert found["differences"] == expected and found["n"] == 32
    assert found["notes"][0].startswith("young is left out") and "not finished" in found["notes"][0]
    others = f"/api/v1/compare/tests?runs={ids['good']},{ids['other']}"
    assert "different subjects" in client.get(others).json()["error"]["message"]
    assert 0 < client.get(f"{others}&common=true").json()["n"] < 32
    lone = client.get(f"/api/v1/compare/tests?runs={ids['good']}")
    assert code(lone) == (400, "RUN_UNUSABLE") and "Fewer than two" in lone.json()["error"]["message"]


def test_no_more_runs_than_can_be_shown_or_tested(client, ids, monkeypatch):
    monkeypatch.setattr(compare, "MOST_TESTED", 2)
    asked = f"/api/v1/compare/tests?runs={','.join(ids.values())}"
    assert code(client.get(asked)) == (400, "INPUT_UNUSABLE")
    monkeypatch.setattr(compare, "MOST_RUNS", 2)
    assert code(client.get(f"/api/v1/compare?runs={','.join(ids.values())}")) == (400, "INPUT_UNUSABLE")
    assert code(client.get(f"/api/v1/compare?runs={'x,' * 9000}")) == (422, "REQUEST_INVALID")


def test_what_has_changed_is_told_anew(client, ids, folder):
    before = compared(client, ids["last"], ids["first"])
    assert compared(client, ids["last"], ids["first"]) == before
    evaluated = {"auc": 0.5}
    (folder / "last" / "evaluation" / "test.json").write_text(json.dumps(evaluated))
    assert compared(client, ids["last"], ids["first"])["runs"][0]["figures"]["auc"]["value"] == 0.5
    write_run(folder / "first", EPOCHS - 1)
    assert compared(client, ids["last"], ids["first"])["runs"][1]["progress"]["epoch"] == EPOCHS - 1


def test_what_is_linked_from_elsewhere_is_not_compared(client, ids, folder, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"auc": 0.123}))
    path = folder / "last" / "evaluation" / "test.json"
    path.unlink()
    path.symlink_to(secret)
    assert compared(client, ids["last"])["runs"][0]["figures"] == {}
