"""One job or run as the service tells it: what belongs to it, where its time goes, its placement, its log."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from jobs_to_serve import add, write_run
from made_up_run import make_divided
from served import client_of, code

from cingulum.service import detail, time_spent
from jobs.schedulers.base import TaskState


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def client(store, served_jobs, folder):
    return client_of(store, folder, folder / "folds")


def run_id(client, name: str) -> str:
    (run,) = [one for one in client.get("/api/v1/runs").json()["runs"] if one["name"] == name]
    return run["id"]


# What belongs together


def test_a_job_and_its_run_know_of_each_other(client, store, slurm, folder):
    trains = run_id(client, "trains")
    assert client.get("/api/v1/jobs/4714/related").json()["run"] == f"/runs/{trains}"
    told = client.get(f"/api/v1/runs/{trains}/related").json()
    assert [(job["id"], job["state"], job["page"]) for job in told["jobs"]] == [
        ("4714", "RUNNING", "/jobs/new-4")
    ]
    add(store, slurm, "again", TaskState(0, "PENDING"), kind="evaluate", run=folder / "trains")
    about = client.get(f"/api/v1/runs/{trains}/related").json()["jobs"]
    assert [(job["name"], job["kind"]) for job in about] == [("again", "evaluate"), ("trains", "train")]
    assert [job["name"] for job in client.get("/api/v1/jobs/4714/related").json()["jobs"]] == ["again"]
    assert client.get("/api/v1/jobs/4713/related").json() == {
        "run": None,
        "jobs": [],
        "before": [],
        "then": [],
    }


def test_a_fold_and_its_task_know_of_each_other(client):
    fold = run_id(client, "fold-1-seed-0")
    (job,) = client.get(f"/api/v1/runs/{fold}/related").json()["jobs"]
    assert (job["id"], job["page"], job["state"]) == ("4711_1", "/jobs/new-1_1", "RUNNING")
    assert client.get(job["page"]).status_code == 200
    assert client.get("/api/v1/jobs/4711_1/related").json()["run"] == f"/runs/{fold}"
    assert client.get("/api/v1/jobs/4711_2/related").json()["run"] is None  # not begun


def test_a_run_of_the_same_name_elsewhere_is_another(client, store, slurm, folder, tmp_path):
    add(store, slurm, "elsewhere", TaskState(0, "PENDING"), run=write_run(tmp_path / "other" / "trains", 3))
    told = client.get(f"/api/v1/runs/{run_id(client, 'trains')}/related").json()
    assert [job["name"] for job in told["jobs"]] == ["trains"]
    assert client.get("/api/v1/jobs/4715/related").json()["run"] is None


def test_jobs_of_a_chain_name_those_before_and_after(client, store, slurm, monkeypatch):
    from jobs import spec

    real = spec.JobSpec
    monkeypatch.setattr("jobs_to_serve.JobSpec", lambda **given: real(after=("4714",), **given))
    add(store, slurm, "then", TaskState(0, "PENDING"))
    assert [job["name"] for job in client.get("/api/v1/jobs/4715/related").json()["before"]] == ["trains"]
    assert [job["id"] for job in client.get("/api/v1/jobs/4714/related").json()["then"]] == ["4715"]
    assert client.get("/api/v1/jobs/4713/related").json()["then"] == []


# Time and placement


def test_time_is_told_as_cingulum_diagnose_tells_it(client, folder, capsys):
    from cingulum.cli import app

    make_divided(folder / "divided", 3)
    asked = f"/api/v1/runs/{run_id(client, 'divided')}/time"
    told = client.get(asked).json()
    assert app.run(["diagnose", str(folder / "divided"), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert {name: told[name] for name in ("bound", "summary", "evidence", "gains")} == {
        name: verdict[name] for name in ("bound", "summary", "evidence", "gains")
    }
    assert (told["ranks"][0]["rank"], told["ranks"][0]["host"], told["slowest_rank"]) == (2, "node-1", 2)
    assert told["slowest_ratio"] == pytest.approx(0.209 / 0.153, rel=1e-3)
    assert sum(told["ranks"][0]["parts"].values()) == pytest.approx(told["ranks"][0]["own"] + 0.03)
    assert [(host["host"], host["ranks"]) for host in told["hosts"]] == [("node-0", 2), ("node-1", 2)]
    assert told["hosts"][0]["sent_per_step"] == pytest.approx(52e6 / 6)
    assert told["proposals"]


def test_of_long_telemetry_the_newest_steps_are_read(client, folder, monkeypatch):
    make_divided(folder / "long", 3)
    path = folder / "long" / "telemetry" / "rank-00000.jsonl"
    line = path.read_text().splitlines()[-1]
    slow = json.dumps({**json.loads(line), "seconds": 1000.0, "forward": 999.0})
    path.write_text(f"{slow}\n" * 300 + f"{line}\n" * 300)
    monkeypatch.setattr(time_spent, "_FEWEST", 20_000)
    monkeypatch.setattr(time_spent, "_MOST_BYTES", 1)
    told = client.get(f"/api/v1/runs/{run_id(client, 'long')}/time").json()
    assert max(one["own"] for one in told["ranks"]) < 1


def test_who_holds_what_is_drawn_as_in_the_report(client, folder):
    make_divided(folder / "divided", 3)
    told = client.get(f"/api/v1/runs/{run_id(client, 'divided')}/placement").json()
    placed = told["placement"]
    assert placed["rows"][0]["parts"] == [
        {"rank": 0, "share": 0.5}, {"rank": 1, "share": 0.3}, {"rank": 2, "share": 0.2}
    ]  # fmt: skip
    assert "cut along depth" in placed["rows"][0]["how"] and placed["rows_left_out"] == 20
    assert len(placed["ranks"]) == 3 == len(placed["matrix"]) and len(told["rank_header"]) == 9
    (folder / "divided" / "plan.json").write_text('{"drawing": {}}')
    assert code(client.get(f"/api/v1/runs/{run_id(client, 'divided')}/placement")) == (404, "NOT_FOUND")


def test_what_is_not_there_is_said_to_be_missing(client, folder, tmp_path):
    for kind, identity in (("jobs", "4714"), ("runs", run_id(client, "trains"))):
        assert code(client.get(f"/api/v1/{kind}/{identity}/placement")) == (404, "NOT_FOUND")
        assert code(client.get(f"/api/v1/{kind}/{identity}/time")) == (400, "RUN_UNUSABLE")
    secret = make_divided(tmp_path / "secret", 3)
    for name in ("plan.json", "telemetry/rank-00000.jsonl"):
        (folder / "trains" / name).unlink(missing_ok=True)
        (folder / "trains" / name).symlink_to(secret / name)
    assert code(client.get("/api/v1/jobs/4714/placement")) == (404, "NOT_FOUND")
    assert code(client.get("/api/v1/runs/{}/time".format(run_id(client, "trains")))) == (404, "NOT_FOUND")


# Search in logs


def found(client, query: str) -> dict:
    return client.get(f"/api/v1/jobs/4714/log/search?{query}").json()


def log_of(served_jobs) -> Path:
    return Path(served_jobs["trains"].folder) / "out-0.log"


def test_lines_are_found_in_any_case_and_paged_through(client, served_jobs):
    text = "".join(f"{number} zwölf {'Error' if number % 10 == 3 else 'ok'}\n" for number in range(100))
    log_of(served_jobs).write_text(text)
    first = found(client, "text=eRROR&limit=4")
    assert [one["text"] for one in first["matches"]] == [f"{n} zwölf Error" for n in (3, 13, 23, 33)]
    assert not first["done"]
    for one in first["matches"]:
        assert text.encode()[one["offset"] :].startswith(one["text"].encode())
    rest = found(client, f"text=error&offset={first['next']}")
    assert [one["text"][:2] for one in rest["matches"]] == ["43", "53", "63", "73", "83", "93"]
    assert rest["done"] and rest["next"] == rest["size"] == len(text.encode())
    assert found(client, "text=zw%C3%B6lf&limit=1")["matches"][0]["text"] == "0 zwölf ok"
    assert found(client, "text=never") == {**rest, "matches": []}
    assert found(client, "text=.*")["matches"] == []  # what is typed is text


def test_what_lies_across_pieces_is_found_once_and_long_lines_are_cut(client, served_jobs, monkeypatch):
    monkeypatch.setattr(detail, "_PIECE", 64)
    lines = [f"line {number} {'needle' if number % 3 == 0 else '-' * (number % 50)}" for number in range(200)]
    log_of(served_jobs).write_text("\n".join(lines))
    matches = found(client, "text=needle&limit=200")["matches"]
    assert [one["text"] for one in matches] == [line for line in lines if "needle" in line]
    log_of(served_jobs).write_bytes(b"x" * 61 + b"needle" + b"y" * 1000 + b"\xff\nshort needle\n")
    matches = found(client, "text=needle")["matches"]
    assert len(matches) == 2 and "needle" in matches[0]["text"] and len(matches[0]["text"]) <= 400
    assert matches[1]["text"] == "short needle"


def test_a_gigabyte_is_searched_in_parts_of_bounded_time(client, served_jobs, monkeypatch):
    with log_of(served_jobs).open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, 2)
        file.write(b"\nthe end\n")
    monkeypatch.setattr(detail, "ENOUGH_S", 0.0)
    told = found(client, "text=end")
    assert (told["matches"], told["done"], told["next"]) == ([], False, (1 << 20) - 2)
    monkeypatch.setattr(detail, "ENOUGH_S", 60.0)
    assert found(client, f"text=end&offset={(1 << 30) - 5000}")["matches"][0]["text"] == "the end"


def test_a_search_of_nothing_or_elsewhere_is_refused(client, served_jobs, tmp_path):
    assert code(client.get("/api/v1/jobs/4714/log/search?text=")) == (422, "REQUEST_INVALID")
    log_of(served_jobs).unlink()
    assert code(client.get("/api/v1/jobs/4714/log/search?text=x")) == (404, "NOT_FOUND")
    (tmp_path / "secret").write_text("secret")
    log_of(served_jobs).symlink_to(tmp_path / "secret")
    answer = client.get("/api/v1/jobs/4714/log/search?text=secret")
    assert code(answer) == (404, "NOT_FOUND") and not re.search("secret", answer.text)
