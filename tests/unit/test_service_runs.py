"""Runs that nobody submitted, as the service tells them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
from jobs_to_serve import EPOCHS, HOSTILE, add, write_run
from served import client_of, code

from cingulum.service import runs_now
from jobs.schedulers.base import TaskState
from trainer.leases import claims, lease_taking

NAME = HOSTILE.replace("/", "")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Three runs, the last of which was started last."""
    folder = tmp_path / "by-hand"
    for number, name in enumerate((NAME, "stopped", "done")):
        config = write_run(folder / name, EPOCHS - number) / "config.yaml"
        os.utime(config, (1e9 + number, 1e9 + number))
    (folder / "done" / "result.json").write_text("{}")
    (folder / "no-run").mkdir()
    return folder


@pytest.fixture
def client(store, folder):
    return client_of(store, folder)


def listed(client, query: str = "") -> list[dict]:
    return client.get(f"/api/v1/runs?{query}").json()["runs"]


def names(client, query: str = "") -> list[str]:
    return [run["name"] for run in listed(client, query)]


def test_runs_are_listed_by_their_last_start_with_what_their_folders_tell(client):
    page = client.get("/api/v1/runs").json()
    assert (page["total"], page["warnings"]) == (3, [])
    done, stopped, hostile = page["runs"]
    assert [run["name"] for run in page["runs"]] == ["done", "stopped", NAME]
    assert (done["state"], done["progress"]["part"], done["strategy"]) == ("COMPLETED", 1.0, "data")
    assert (stopped["state"], stopped["progress"]["epoch"]) == ("STOPPED", EPOCHS - 1)
    assert (stopped["progress"]["seconds_left"], stopped["best"]["epoch"]) == (None, 9)
    assert hostile["started"] == "2001-09-09T01:46:40+00:00" < hostile["changed"]


def test_the_list_is_searched_filtered_sorted_and_paged(client):
    assert names(client, "text=STOP") == ["stopped"]
    assert names(client, "state=STOPPED") == ["stopped", NAME]
    assert names(client, "sort=name&order=up&offset=1&limit=1") == ["done"]
    for wrong in ("sort=strategy", "state=PENDING", "limit=1000", "offset=-1"):
        assert code(client.get(f"/api/v1/runs?{wrong}")) == (422, "REQUEST_INVALID")


def test_a_run_tells_what_the_run_of_a_job_does(client, store, slurm, folder):
    job = add(store, slurm, "job", TaskState(0, "FAILED", 1), run=folder / "stopped")
    of_job = client.get(f"/api/v1/jobs/{job.key}/run").json()
    run = client.get(f"/api/v1/runs/{listed(client)[1]['id']}").json()
    assert {key: run[key] for key in of_job} == of_job and "epochs: 20" in run["config"]
    curves = client.get(f"/api/v1/runs/{run['id']}/curves").json()
    assert curves == client.get(f"/api/v1/jobs/{job.key}/curves").json() and curves["epochs"]["epoch"]


def test_a_report_may_run_its_own_script_and_do_nothing_else(client, folder):
    at = f"/runs/{listed(client)[0]['id']}"
    assert code(client.get(f"{at}/report")) == (404, "NOT_FOUND")
    (folder / "done" / "report.html").write_text("<script>fetch('/api/v1/runs')</script>")
    assert client.get(f"/api/v1{at}").json()["has_report"]
    policy = client.get(f"{at}/report").headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'; script-src 'sha256-")


def test_a_run_is_running_while_its_owner_lives(client, folder, monkeypatch):
    with lease_taking.take(folder / "stopped", claims.myself({})) as lease:
        run = listed(client, "state=RUNNING")[0]
        assert (run["name"], run["progress"]["seconds_left"]) == (
            "stopped",
            pytest.approx(10.0 * 3 / 5, abs=6),
        )
        # From elsewhere its heartbeat alone is seen.
        monkeypatch.setattr(claims, "_boot", lambda: "another")
        beat = Path(lease.staging) / claims.HEARTBEAT
        while not beat.is_file():
            pass
        assert names(client, "state=RUNNING") == ["stopped"]
        monkeypatch.setattr(claims, "SILENT_S", -1.0)
        assert names(client, "state=RUNNING") == []
    monkeypatch.undo()
    assert names(client, "state=RUNNING") == []


def test_an_owner_that_was_killed_trains_no_more(folder, client):
    run = folder / "stopped"
    lease = lease_taking.take(run, dataclasses.replace(claims.myself({}), began=1))
    assert claims.has_staging(str(run), lease.owner) and names(client, "state=RUNNING") == []
    lease.release()


def test_what_lies_elsewhere_is_not_shown(client, folder, tmp_path):
    secret = write_run(tmp_path / "secret", 3)
    (folder / "link").symlink_to(secret)
    (folder / "loop").symlink_to("loop")
    (folder / "again").symlink_to(folder / "done")
    assert sorted(names(client)) == sorted(["done", "stopped", NAME])
    (secret / "report.html").write_text("secret")
    stopped = listed(client)[1]["id"]
    for name in ("config.yaml", "report.html"):
        (folder / "stopped" / name).unlink(missing_ok=True)
        (folder / "stopped" / name).symlink_to(secret / name)
    assert client.get(f"/api/v1/runs/{stopped}").json()["config"] is None
    assert code(client.get(f"/runs/{stopped}/report")) == (404, "NOT_FOUND")


def test_a_damaged_run_folder_tells_less_and_hides_no_other(client, folder):
    run = folder / "stopped"
    (run / "metrics.jsonl").write_text("[]\n{")
    (run / ".writers").write_text("a file")
    (folder / "done" / "config.yaml").write_text("a: [")
    (folder / "done" / ".writers").mkdir()
    (folder / "done" / "result.json").unlink()
    (folder / "done" / ".writers" / "00000001.json").write_text("{")
    made = os.fsencode(folder) + b"/caf\xe9"
    shutil.copytree(os.fsencode(run), made)
    found = {run["name"]: run for run in listed(client)}
    assert set(found) == {"done", "stopped", NAME, "caf\ufffd"}
    assert (found["done"]["progress"], found["done"]["state"]) == (None, "STOPPED")
    assert found["stopped"]["best"] is None
    for run in found.values():
        assert client.get(f"/api/v1/runs/{run['id']}").status_code == 200
        assert client.get(f"/runs/{run['id']}").status_code == 200


def test_an_id_stays_and_is_no_path(client, folder):
    run = listed(client)[0]
    (folder / "done" / "metrics.jsonl").write_text("")
    assert client.get(f"/api/v1/runs/{run['id']}").json()["name"] == "done"
    for identity in ("done", "..", "%2e%2e", "%252e%252e", "..%2fdone", "done;x", "done%5c..", "x" * 65):
        for path in (f"/api/v1/runs/{identity}/curves", f"/runs/{identity}/report"):
            assert client.get(path).status_code in (404, 422)
    shutil.rmtree(folder / "done")
    assert code(client.get(f"/api/v1/runs/{run['id']}")) == (404, "NOT_FOUND")


def test_names_stay_text(client):
    run = listed(client, "sort=name&order=up")[0]
    assert run["name"] == NAME
    page = client.get(f"/runs/{run['id']}").text
    assert "<img src=x" not in page and "&lt;img src=x" in page


def test_the_newest_of_very_many_runs_are_kept_and_a_folder_may_be_missing(
    store, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(runs_now, "MOST", 2)
    page = client_of(store, tmp_path / "not-yet", folder).get("/api/v1/runs").json()
    assert [run["name"] for run in page["runs"]] == ["done", "stopped"]
    assert page["warnings"] == ["The newest 2 of 3 runs are shown."]
    unusable = client_of(store, folder / "done" / "config.yaml").get("/api/v1/runs").json()
    assert "cannot be looked at" in unusable["warnings"][0]


def test_a_list_moves_with_any_run_and_needs_few_files_when_none_has_changed(folder, store, monkeypatch):
    client = client_of(store, folder)
    before = listed(client)
    monkeypatch.setattr("trainer.config.yaml_reader.read_text", lambda *_, **__: 1 / 0)
    monkeypatch.setattr("trainer.telemetry.json_lines.read", lambda *_: 1 / 0)
    assert listed(client) == before
    (folder / "stopped" / "result.json").write_text(json.dumps({}))
    assert [run["state"] for run in listed(client)] == ["COMPLETED", "COMPLETED", "STOPPED"]
