"""The service's API: what it tells of jobs, and who may ask."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path

import pytest
from jobs_to_serve import EPOCHS, HOSTILE, STEPS, add, fill
from pretended_slurm import Pretended
from starlette.routing import Route
from starlette.testclient import TestClient

from cingulum.service import tokens
from cingulum.service.app import create_app
from cingulum.service.callers import AtSocket, WithTokens
from cingulum.service.jobs_now import JobsNow
from cingulum.service.tokens import TokenFile
from jobs.launchers import registry
from jobs.launchers.base import TaskState
from trainer.errors import InputError

HOST = "http://127.0.0.1:8642"
OURS = {"X-Cingulum": "1"}


@pytest.fixture
def slurm(monkeypatch) -> Pretended:
    launcher = Pretended()
    monkeypatch.setattr(registry, "named", lambda name: launcher)
    return launcher


@pytest.fixture
def jobs(store, slurm, tmp_path):
    return fill(store, slurm, tmp_path / "runs")


@pytest.fixture
def client(store, jobs) -> TestClient:
    """The user's own client; launchers are not asked by themselves."""
    return TestClient(create_app(JobsNow(store, fresh_s=0), AtSocket("me")), base_url=HOST, headers=OURS)


class Door:
    """A service on a port, with a token that may read and one that may write."""

    def __init__(self, store, path: Path) -> None:
        self.file = TokenFile(path)
        self.secrets = {may: self.file.add(may, may, 1) for may in ("read", "write")}
        self.guard = create_app(JobsNow(store), WithTokens("me", self.file))

    def client(self, may: str | None = None) -> TestClient:
        headers = OURS if may is None else {**OURS, "Authorization": f"Bearer {self.secrets[may]}"}
        return TestClient(self.guard, base_url=HOST, headers=headers)


@pytest.fixture
def door(store, jobs, tmp_path) -> Door:
    return Door(store, tmp_path / "tokens.json")


def code(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


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


def test_a_damaged_run_folder_tells_less_and_fails_nothing(client, jobs):
    folder = Path(jobs["trains"].spec.run)
    (folder / "metrics.jsonl").write_text('{"epoch": 1}\n[]\n{"epo')
    (folder / "telemetry" / "rank-00000.jsonl").write_text('nonsense\n{"step": 7}\n{"st')
    job = client.get("/api/v1/jobs/4714").json()
    assert (job["progress"]["part"], job["best"]) == (0.0, None)
    (folder / "config.yaml").write_text("a: [")
    assert client.get("/api/v1/jobs/4714").json()["progress"] is None
    assert client.get("/api/v1/jobs/4714/curves").status_code == 200


def test_what_is_linked_from_elsewhere_is_not_shown(client, jobs, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("name: secret\n")
    folder = Path(jobs["trains"].spec.run)
    for inside in (folder / "config.yaml", folder / "report.html", Path(jobs["trains"].folder) / "out-0.log"):
        inside.unlink(missing_ok=True)
        inside.symlink_to(secret)
    assert client.get("/api/v1/jobs/4714/run").json()["config"] is None
    assert code(client.get("/jobs/4714/report")) == (404, "NOT_FOUND")
    assert code(client.get("/api/v1/jobs/4714/log")) == (404, "NOT_FOUND")


def test_another_user_s_job_is_not_there(client, store, jobs, monkeypatch):
    monkeypatch.setattr("jobs.submitter.user", lambda: "somebody-else")
    other = TestClient(create_app(JobsNow(store), AtSocket("other")), base_url=HOST, headers=OURS)
    assert other.get("/api/v1/jobs").json()["total"] == 0
    assert code(other.get("/api/v1/jobs/4714")) == (404, "NOT_FOUND")
    assert code(other.post("/api/v1/jobs/4714/cancel")) == (404, "NOT_FOUND")


# Logs


def parts(client, query: str, label: str = "4714") -> dict:
    return client.get(f"/api/v1/jobs/{label}/log?{query}").json()


def test_a_log_is_read_in_parts_that_join_without_a_gap(client, jobs):
    path = Path(jobs["trains"].folder) / "out-0.log"
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


def test_the_end_of_a_log_begins_with_a_whole_line(client, jobs):
    (Path(jobs["trains"].folder) / "out-0.log").write_text("first line\nsecond\nthird\n")
    part = parts(client, "offset=-10")
    assert (part["text"], part["offset"]) == ("third\n", 18)
    assert parts(client, "offset=-1000")["text"].startswith("first")


def test_bytes_that_are_no_text_are_shown_as_such(client, jobs):
    (Path(jobs["trains"].folder) / "out-0.log").write_bytes(b"\xff\xfe\0 <b>\n\xe2\x9d")
    part = parts(client, "offset=0")
    assert part["text"] == "\ufffd\ufffd\0 <b>\n" and part["size"] - part["next"] == 2


def test_of_a_log_of_a_gigabyte_only_the_part_is_read(client, jobs):
    path = Path(jobs["trains"].folder) / "out-0.log"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, 2)
        file.write(b"\nthe end\n")
    assert parts(client, "offset=-20")["text"] == "the end\n"
    assert code(client.get("/api/v1/jobs/4714/log?limit=2000000")) == (422, "REQUEST_INVALID")


def test_a_log_that_is_not_there_yet_is_said_to_be(client, jobs):
    (Path(jobs["hostile"].folder) / "out-0.log").unlink()
    assert code(client.get("/api/v1/jobs/4713/log")) == (404, "NOT_FOUND")


# Who may


def flat(routes) -> list:
    """Those of included routers, too."""
    inner = [(route, getattr(route, "original_router", None)) for route in routes]
    return [one for route, router in inner for one in ([route] if router is None else flat(router.routes))]


def addresses(guard) -> list[tuple[str, str]]:
    """Every method and address that the application answers, those of included routers too."""
    found = []
    for route in flat(guard.app.routes):
        assert isinstance(route, Route), f"{route} is not looked at"
        path = route.path.replace("{identity}", "4714").replace("{name}", "page.js")
        found += [(method, path) for method in route.methods or ()]
    return found


def test_no_route_is_open_to_who_has_no_token(door):
    found = addresses(door.guard)
    assert len(found) >= 14
    for method, path in [*found, ("GET", "/docs"), ("GET", "/no/such/address"), ("PUT", "/")]:
        answer = door.client().request(method, path)
        if path.startswith("/static/") and method == "GET":
            assert answer.status_code == 200
        elif (method, path) == ("POST", "/api/v1/session"):
            assert answer.status_code == 422
        else:
            assert answer.status_code == 401, (method, path)
            assert HOSTILE not in answer.text and "4714" not in answer.text


def test_nothing_but_reading_is_allowed_by_a_token_that_reads(door, store):
    writes = [(method, path) for method, path in addresses(door.guard) if method not in ("GET", "HEAD")]
    writes = [one for one in writes if one != ("POST", "/api/v1/session")]
    assert writes == [("POST", "/api/v1/jobs/{}/cancel".format("4714"))]
    for method, path in [*writes, ("DELETE", "/api/v1/jobs/4714"), ("PUT", "/")]:
        assert code(door.client("read").request(method, path)) == (403, "READ_ONLY")
    assert store.actions("4714") == []
    assert door.client("read").get("/api/v1/jobs").json()["total"] == 4
    assert door.client("read").get("/api/v1/session").json() == {
        "who": "me (service, token read)",
        "may": "read",
    }


def test_a_job_is_cancelled_by_who_may_write_and_its_history_says_who(door, store, slurm):
    answer = door.client("write").post("/api/v1/jobs/4714/cancel")
    assert (answer.status_code, answer.json()["state"]) == (200, "CANCELLED")
    assert [(one["action"], one["who"], one["task"]) for one in answer.json()["actions"]] == [
        ("cancel", "me (service, token write)", None)
    ]
    assert slurm.told == [("cancel", "4714", None)]
    again = door.client("write").post("/api/v1/jobs/4714/cancel")  # it has ended: nothing happens
    assert (again.status_code, len(again.json()["actions"]), len(slurm.told)) == (200, 1, 1)
    assert door.client("write").post("/api/v1/jobs/4711_1/cancel").status_code == 200
    assert slurm.told[-1] == ("cancel", "4711", 1)


def test_a_launcher_that_does_not_answer_stops_nothing_but_what_needs_it(client, slurm):
    slurm.refuses = "states"
    assert client.get("/api/v1/jobs").status_code == 200
    slurm.cancel = lambda external, task: (_ for _ in ()).throw(InputError("no"))
    assert code(client.post("/api/v1/jobs/4714/cancel")) == (400, "INPUT_UNUSABLE")


def test_a_session_of_a_browser_ends_with_its_token(door):
    browser = TestClient(door.guard, base_url=HOST, headers=OURS)
    assert code(browser.post("/api/v1/session", json={"token": "x" * 43})) == (401, "NOT_SIGNED_IN")
    answer = browser.post("/api/v1/session", json={"token": door.secrets["write"]})
    cookie = answer.headers["set-cookie"].lower()
    assert answer.status_code == 204 and "httponly" in cookie and "samesite=strict" in cookie
    assert door.secrets["write"].lower() not in cookie
    assert browser.get("/api/v1/session").json()["may"] == "write"
    door.file.revoke("write")
    assert browser.get("/api/v1/session").status_code == 401
    assert door.client("write").get("/").status_code == 401


def test_tokens_that_cannot_be_read_let_nobody_in_and_tell_nobody_why(door):
    door.file.path.chmod(0o644)
    for answer in (door.client("write").get("/"), door.client().post("/api/v1/session", json={"token": "x"})):
        assert code(answer) == (500, "TOKENS_UNREADABLE") and "tokens.json" not in answer.text


def test_a_token_is_kept_as_a_hash_and_expires(tmp_path):
    file = TokenFile(tmp_path / "tokens.json")
    secret = file.add("mine", "read", 1)
    assert secret not in file.path.read_text() and file.path.stat().st_mode & 0o777 == 0o600
    (kept,) = file.all()
    assert tokens.matching([kept], secret) == kept
    assert tokens.matching([dataclasses.replace(kept, expires=0.0)], secret) is None
    with pytest.raises(InputError, match="already"):
        file.add("mine", "write", 1)
    with pytest.raises(InputError, match="cannot be the name"):
        file.add("../x", "read", 1)
    file.path.chmod(0o644)
    with pytest.raises(InputError, match="not private"):
        TokenFile(file.path).all()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil.example", ""])
def test_a_foreign_name_that_points_here_is_refused(client, host):
    for path in ("/", "/api/v1/jobs", "/static/page.js"):
        assert code(client.get(path, headers={"Host": host})) == (421, "HOST_UNKNOWN")


def test_another_page_s_request_changes_nothing(client, slurm):
    post = "/api/v1/jobs/4714/cancel"
    bare = TestClient(client.app, base_url=HOST)
    assert code(bare.post(post)) == (403, "NOT_FROM_HERE")
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9000", "https://127.0.0.1:8642"):
        assert code(client.post(post, headers={"Origin": origin})) == (403, "NOT_FROM_HERE")
    asked = bare.options(
        post, headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    )
    assert asked.status_code == 403 and not any("access-control" in name for name in asked.headers)
    assert slurm.told == []
    assert client.post(post, headers={"Origin": HOST}).status_code == 200


@pytest.mark.parametrize(
    "identity",
    ["%2e%2e", "%252e%252e", "..%2f..%2fetc%2fpasswd", "4714;x", "4714%5c..", "4714%00", "x" * 65],
)
def test_an_id_is_never_a_path(client, identity):
    for path in (f"/api/v1/jobs/{identity}/log", f"/jobs/{identity}/report", f"/static/{identity}"):
        answer = client.get(path)
        assert answer.status_code in (404, 422) and "root:" not in answer.text


def test_every_answer_forbids_scripts_but_our_own(client, door):
    for answer in (client.get("/"), client.get("/api/v1/jobs"), client.get("/none"), door.client().get("/")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    for path in ("/", "/jobs/4713"):
        page = client.get(path).text
        assert "<script>" not in page and "onerror=" not in page.replace("&lt;img src=x onerror=", "")
        assert " style=" not in page and "http://" not in page and "https://" not in page
    assert "&lt;script&gt;alert(2)" in client.get("/jobs/4713").text


def test_a_report_may_show_itself_and_do_nothing(client, jobs):
    (Path(jobs["trains"].spec.run) / "report.html").write_text("<script>fetch('/api/v1/jobs')</script>")
    policy = client.get("/jobs/4714/report").headers["content-security-policy"]
    assert policy.startswith("sandbox;") and "script" not in policy and "default-src 'none'" in policy


def test_a_body_without_end_is_cut(door):
    long = TestClient(door.guard, base_url=HOST, headers=OURS).post("/api/v1/session", content=b"x" * 100_000)
    assert code(long) == (413, HTTPStatus(413).name)


def test_what_goes_wrong_is_told_with_a_code(client, store, monkeypatch):
    assert code(client.get("/api/v1/jobs/4799")) == (404, "NOT_FOUND")
    assert code(client.get("/api/v1/nothing")) == (404, "NOT_FOUND")
    assert code(client.put("/api/v1/jobs")) == (405, "METHOD_NOT_ALLOWED")
    monkeypatch.setattr(store, "page", lambda wanted: 1 / 0)
    quiet = TestClient(client.app, base_url=HOST, raise_server_exceptions=False)
    assert code(quiet.get("/api/v1/jobs")) == (500, "INTERNAL")


def test_the_api_describes_itself(client):
    described = client.get("/api/v1/openapi.json").json()
    assert {"/api/v1/jobs", "/api/v1/jobs/{identity}/log", "/api/v1/session"} <= set(described["paths"])
    assert "Failed" in json.dumps(described["paths"]["/api/v1/jobs"]["get"]["responses"]["default"])


# By itself


def test_launchers_are_asked_while_it_runs_and_their_silence_is_told(store, jobs, slurm):
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


def test_the_list_needs_few_files_when_nothing_has_changed(store, slurm, jobs, client, monkeypatch):
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
