"""The service's API: what it tells of jobs, their runs and their logs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jobs_to_serve import EPOCHS, HOSTILE, STEPS, add
from served import HOST, client_of, code
from starlette.testclient import TestClient

from cingulum.service.app import create_app
from cingulum.service.callers import AtSocket
from cingulum.service.jobs_now import JobsNow
from jobs.schedulers.base import TaskState
from jobs.store import sharing

# Jobs


def test_the_list_has_what_the_store_and_the_run_folders_tell(client):
    page = client.get("/api/v1/jobs").json()
    assert (page["total"], page["warnings"]) == (4, [])
    trains, hostile, failed, folds = page["jobs"]
    assert (trains["id"], trains["state"], trains["hosts"]) == ("4714", "RUNNING", ["n1", "n2"])
    assert trains["strategy"] == "data"
    assert (trains["best"]["metric"], trains["best"]["value"], trains["best"]["epoch"]) == (
        "val_loss",
        0.4,
        9,
    )
    progress = trains["progress"]
    assert (progress["epoch"], progress["epochs"], progress["steps"]) == (12, EPOCHS, EPOCHS * STEPS)
    # Telemetry is two steps ahead of the last epoch; an epoch takes 10 s.
    assert progress["step"] == 12 * STEPS + 2
    assert progress["seconds_left"] == pytest.approx(10 / STEPS * (8 * STEPS - 2))
    assert (hostile["name"], hostile["reason"], hostile["progress"]) == (HOSTILE, "Priority", None)
    assert (failed["state"], failed["exit_code"], failed["best"]) == ("FAILED", 1, None)
    assert (folds["tasks"], folds["tasks_completed"], folds["state"]) == (3, 1, "RUNNING")


def test_the_list_is_searched_filtered_sorted_and_paged(client):
    def names(query: str) -> list[str]:
        return [job["id"] for job in client.get(f"/api/v1/jobs?{query}").json()["jobs"]]

    assert names("text=N3") == ["4712"]
    assert names("state=RUNNING&state=FAILED") == ["4714", "4712", "4711"]
    assert names("sort=name&order=up&limit=2&offset=1") == ["4712", "4711"]
    for wrong in ("sort=spec", "order=sideways", "state=running", "limit=1000", "offset=-1", "offset=x"):
        assert code(client.get(f"/api/v1/jobs?{wrong}")) == (422, "REQUEST_INVALID")


def test_a_job_tells_its_tasks_changes_command_and_names_of_variables_but_no_values(client):
    job = client.get("/api/v1/jobs/4712").json()
    assert [change["state"] for change in job["changes"]] == ["SUBMITTING", "PENDING", "FAILED"]
    assert job["changes"][-1]["reason"] == job["task_list"][0]["reason"] == "rank 2 @ n3 was lost: <b>no</b>"
    assert job["task_list"][0]["command"][:2] == ["cingulum", "train"]
    assert job["environment"] == ["STUDY"] and "a-private-value" not in json.dumps(job)
    assert client.get(f"/api/v1/jobs/{job['key']}").json() == job


def test_a_run_tells_its_configuration_checkpoints_and_curves(client):
    run = client.get("/api/v1/jobs/4714/run").json()
    assert "epochs: 20" in run["config"] and not run["has_report"]
    assert [(one["step"], one["bytes"]) for one in run["checkpoints"]] == [(12 * STEPS, 2048)]
    curves = client.get("/api/v1/jobs/4714/curves").json()
    assert curves["epochs"]["epoch"] == list(range(1, 13))
    assert curves["epochs"]["val_auc"][:2] == [None, 0.85]
    assert curves["steps"]["step"][0] == 2  # the first was spent on tracing
    assert {len(column) for column in curves["steps"].values()} == {12 * STEPS + 1}


def test_each_fold_has_its_own_run_folder(client):
    assert client.get("/api/v1/jobs/4711_0/run").json()["progress"]["epoch"] == 20
    assert client.get("/api/v1/jobs/4711/run?task=1").json()["progress"]["epoch"] == 10
    assert code(client.get("/api/v1/jobs/4711_2/run")) == (404, "NOT_FOUND")  # has not begun
    assert code(client.get("/api/v1/jobs/4711/run?task=3")) == (404, "NOT_FOUND")


def test_a_damaged_run_folder_tells_less_and_fails_nothing(client, served_jobs):
    folder = Path(served_jobs["trains"].spec.run)
    (folder / "metrics.jsonl").write_text('{"epoch": 1}\n[]\n{"epo')
    (folder / "telemetry" / "rank-00000.jsonl").write_text('nonsense\n{"step": 7}\n{"st')
    job = client.get("/api/v1/jobs/4714").json()
    assert (job["progress"]["part"], job["best"]) == (0.0, None)
    (folder / "config.yaml").write_text("a: [")
    assert client.get("/api/v1/jobs/4714").json()["progress"] is None
    assert client.get("/api/v1/jobs/4714/curves").status_code == 200


def test_what_is_linked_from_elsewhere_is_not_shown(client, served_jobs, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("name: secret\n")
    folder = Path(served_jobs["trains"].spec.run)
    for inside in (
        folder / "config.yaml",
        folder / "report.html",
        Path(served_jobs["trains"].folder) / "out-0.log",
    ):
        inside.unlink(missing_ok=True)
        inside.symlink_to(secret)
    assert client.get("/api/v1/jobs/4714/run").json()["config"] is None
    assert code(client.get("/jobs/4714/report")) == (404, "NOT_FOUND")
    assert code(client.get("/api/v1/jobs/4714/log")) == (404, "NOT_FOUND")


def test_who_may_only_look_at_a_job_is_offered_nothing_to_do_with_it(client, store, monkeypatch):
    monkeypatch.setattr(sharing, "groups", lambda: ("neuro", "brain"))
    store.share(store.get("4714"), ["neuro"], "me")
    own = client.get("/jobs/4714").text
    assert 'id="acts"' in own and 'id="share"' in own and "<option>brain</option>" in own
    monkeypatch.setattr("jobs.store.submitter.user", lambda: "somebody-else")
    other = client_of(store).get("/jobs/4714").text
    assert "trains" in other and not any(text in other for text in ('id="acts"', 'id="share"', "brain"))


def test_another_user_s_job_is_not_there(client, store, served_jobs, monkeypatch):
    monkeypatch.setattr("jobs.store.submitter.user", lambda: "somebody-else")
    other = client_of(store)
    assert other.get("/api/v1/jobs").json()["total"] == 0
    assert code(other.get("/api/v1/jobs/4714")) == (404, "NOT_FOUND")
    described = other.get("/api/v1/openapi.json").json()["paths"]
    about_jobs = [
        (path, method) for path, methods in described.items() for method in methods if "/jobs/{" in path
    ]
    assert len(about_jobs) >= 11
    for path, method in about_jobs:
        if not path.endswith("/events"):  # its events tell only that nothing is there
            address = path.format(identity="4714")
            body = {"groups": ["x"]} if path.endswith("/share") else {"by": 1}
            answer = other.request(method, address, params={"text": "x"}, json=body)
            assert code(answer) == (404, "NOT_FOUND"), (method, path)
    assert store.actions("4714") == []


# Logs


def parts(client, query: str, label: str = "4714") -> dict:
    return client.get(f"/api/v1/jobs/{label}/log?{query}").json()


def test_a_log_is_read_in_parts_that_join_without_a_gap(client, served_jobs):
    path = Path(served_jobs["trains"].folder) / "out-0.log"
    text = "".join(f"{number} zwölf \u2764\U0001f9e0\n" for number in range(300))
    path.write_text(text)
    found, next_ = "", 0
    while next_ < path.stat().st_size:
        part = parts(client, f"offset={next_}&limit=97")
        assert part["offset"] == next_ and part["next"] > next_
        found, next_ = found + part["text"], part["next"]
    assert found == text
    with path.open("a") as file:
        file.write("more\n")
    assert parts(client, f"offset={next_}")["text"] == "more\n"


def test_the_end_of_a_log_begins_with_a_whole_line(client, served_jobs):
    (Path(served_jobs["trains"].folder) / "out-0.log").write_text("first line\nsecond\nthird\n")
    part = parts(client, "offset=-10")
    assert (part["text"], part["offset"]) == ("third\n", 18)
    assert parts(client, "offset=-1000")["text"].startswith("first")


def test_bytes_that_are_no_text_are_shown_as_such(client, served_jobs):
    (Path(served_jobs["trains"].folder) / "out-0.log").write_bytes(b"\xff\xfe\0 <b>\n\xe2\x9d")
    part = parts(client, "offset=0")
    assert part["text"] == "\ufffd\ufffd\0 <b>\n" and part["size"] - part["next"] == 2


def test_of_a_log_of_a_gigabyte_only_the_part_is_read(client, served_jobs):
    path = Path(served_jobs["trains"].folder) / "out-0.log"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, 2)
        file.write(b"\nthe end\n")
    assert parts(client, "offset=-20")["text"] == "the end\n"
    assert code(client.get("/api/v1/jobs/4714/log?limit=2000000")) == (422, "REQUEST_INVALID")


def test_a_log_that_is_not_there_yet_is_said_to_be(client, served_jobs):
    (Path(served_jobs["hostile"].folder) / "out-0.log").unlink()
    assert code(client.get("/api/v1/jobs/4713/log")) == (404, "NOT_FOUND")


# By itself


def test_launchers_are_asked_while_it_runs_and_their_silence_is_told(store, served_jobs, slurm):
    now = JobsNow(store, watched_s=0.01, unwatched_s=0.01)
    with TestClient(create_app(now, AtSocket("me")), base_url=HOST) as client:
        slurm.becomes("4713", "RUNNING")
        while client.get("/api/v1/jobs/4713").json()["state"] != "RUNNING":
            pass
        slurm.refuses = "states"
        while not client.get("/api/v1/jobs").json()["warnings"]:
            pass
        assert "did not answer" in client.get("/api/v1/jobs").json()["warnings"][0]
        slurm.refuses = None
        states, slurm.states = slurm.states, lambda externals: 1 / 0  # a launcher's own fault
        while "ZeroDivisionError" not in "".join(client.get("/api/v1/jobs").json()["warnings"]):
            pass
        slurm.states = states
        while client.get("/api/v1/jobs").json()["warnings"]:
            pass


def test_the_list_needs_few_files_when_nothing_has_changed(store, slurm, served_jobs, client, monkeypatch):
    client.get("/api/v1/jobs")
    monkeypatch.setattr("trainer.config.yaml_reader.read_text", lambda *_, **__: 1 / 0)
    monkeypatch.setattr("trainer.telemetry.json_lines.read", lambda *_: 1 / 0)
    assert client.get("/api/v1/jobs").json()["jobs"][0]["progress"]["epoch"] == 12
    job = add(store, slurm, "new", TaskState(0, "PENDING"))
    assert client.get("/api/v1/jobs").json()["jobs"][0]["id"] == job.label


def test_it_starts_without_tensorflow():
    asks = (
        "import sys, cingulum.service.app, cingulum.service.listening\n"
        "print('tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "False False\n", ran.stderr
