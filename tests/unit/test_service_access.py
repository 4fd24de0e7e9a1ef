"""Who may ask the service for what, and what browsers are kept from."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import pytest
from jobs_to_serve import HOSTILE
from served import HOST, OURS, checks, code
from starlette.routing import Route
from starlette.testclient import TestClient
from wording import fails_with

from cingulum.service import tokens
from cingulum.service.app import create_app
from cingulum.service.callers import WithTokens
from cingulum.service.jobs_now import JobsNow
from cingulum.service.tokens import TokenFile
from trainer.errors import InputError
from trainer.report import page


class Door:
    """A service on a port, with a token for each thing that one may."""

    def __init__(self, store, path: Path) -> None:
        self.file = TokenFile(path)
        self.secrets = {may: self.file.add(may, may, 1) for may in ("read", "write", "admin")}
        callers = WithTokens("me", self.file)
        self.guard = create_app(JobsNow(store), callers, looks=checks(), tokens=self.file)

    def client(self, may: str | None = None) -> TestClient:
        headers = OURS if may is None else {**OURS, "Authorization": f"Bearer {self.secrets[may]}"}
        return TestClient(self.guard, base_url=HOST, headers=headers)


@pytest.fixture
def door(store, served_jobs, tmp_path) -> Door:
    return Door(store, tmp_path / "tokens.json")


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
    acts = {("POST", f"/api/v1/jobs/4714/{name}") for name in ("cancel", "requeue", "hold", "nice", "share")}
    assert {*acts, ("POST", "/api/v1/jobs")} < {*writes}
    for method, path in [*writes, ("DELETE", "/api/v1/jobs/4714"), ("PUT", "/")]:
        assert code(door.client("read").request(method, path)) == (403, "READ_ONLY")
    assert store.actions("4714") == []
    assert door.client("read").get("/api/v1/jobs").json()["total"] == 4
    assert door.client("read").get("/api/v1/session").json() == {
        "who": "me (service, token read)",
        "may": "read",
    }


def test_tokens_are_listed_and_revoked_by_who_may_administer(door):
    for may in ("read", "write"):
        assert code(door.client(may).get("/api/v1/tokens")) == (403, "ADMIN_ONLY")
        assert door.client(may).delete("/api/v1/tokens/read").status_code == 403
    admin = door.client("admin")
    listed = admin.get("/api/v1/tokens")
    assert [(one["name"], one["may"], one["valid"]) for one in listed.json()["tokens"]] == [
        (may, may, True) for may in ("read", "write", "admin")
    ]
    kept = [token.sha256 for token in door.file.all()]
    assert not any(secret in listed.text for secret in (*door.secrets.values(), *kept))
    reader = door.client("read")
    assert reader.get("/api/v1/jobs").status_code == 200
    assert admin.delete("/api/v1/tokens/read").status_code == 204
    assert reader.get("/api/v1/jobs").status_code == 401
    assert code(admin.delete("/api/v1/tokens/read")) == (404, "NOT_FOUND")
    assert admin.get("/").status_code == 200 and admin.post("/api/v1/jobs/4714/cancel").status_code == 200


def test_two_processes_that_change_the_tokens_do_not_undo_each_other(tmp_path):
    """A dozen at once, each with a file object of its own, as processes have."""
    path = tmp_path / "tokens.json"
    with ThreadPoolExecutor(12) as many:
        list(many.map(lambda k: TokenFile(path).add(f"t{k}", "read", 1), range(12)))
        assert len(TokenFile(path).all()) == 12
        list(many.map(lambda k: TokenFile(path).revoke(f"t{k}"), range(11)))
    assert [one.name for one in TokenFile(path).all()] == ["t11"]


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
    with fails_with(InputError):
        file.add("mine", "write", 1)
    with fails_with(InputError):
        file.add("../x", "read", 1)
    file.path.chmod(0o644)
    with fails_with(InputError):
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


def test_a_report_may_run_its_own_script_and_do_nothing_else(client, served_jobs):
    (Path(served_jobs["trains"].spec.run) / "report.html").write_text(
        "<script>fetch('/api/v1/jobs')</script>"
    )
    policy = client.get("/jobs/4714/report").headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'; script-src 'sha256-")
    assert "same-origin" not in policy and "unsafe-inline" not in policy.partition("style-src")[0]
    # The hash is that of the script in pages as they are written.
    text = page.template("base.html.j2").render()
    found = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(found) == 1 == text.count("<script")
    hashed = base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{hashed}';" in policy


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


def test_who_still_reads_when_the_service_ends_is_cut_off_without_a_traceback(door):
    async def cancelled(scope, receive, send):
        raise asyncio.CancelledError

    async def ask() -> None:
        scope = {"type": "http", "method": "GET", "path": "/static/page.js"}
        await door.guard(scope | {"headers": [(b"host", b"localhost")]}, None, None)

    cancelled.state, door.guard.app = door.guard.app.state, cancelled
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ask())
    cancelled.state.ending.set()
    asyncio.run(ask())
