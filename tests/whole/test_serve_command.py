"""`cingulum serve`: where it listens, who can open that, how it ends, and what is said of mistakes."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from jobs_to_serve import write_run

from cingulum.cli import app
from cingulum.service import listening
from cingulum.service.app import create_app
from cingulum.service.callers import AtSocket
from cingulum.service.jobs_now import JobsNow
from jobs.store.store import Store

HALF_SENT = (
    b"POST /api/v1/jobs/4711/share HTTP/1.1\r\nHost: localhost\r\nX-Cingulum: 1\r\n"
    b"Content-Type: application/json\r\nContent-Length: 20\r\n\r\n{"
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CINGULUM_STORE", raising=False)
    return tmp_path / "home"


@pytest.fixture
def said(capsys):
    """Runs a command line that fails by bad input; returns what it says."""

    def run(*words: str) -> str:
        assert app.run(["serve", *words]) == 2
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_at_a_socket_it_serves_the_user_alone_and_ends_when_asked_though_somebody_follows(
    home, said, ending, tmp_path
):
    write_run(tmp_path / "runs" / "demo", 3)
    command = [sys.executable, "-m", "cingulum", "serve", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, text=True, **pipes) as process:
        try:
            path = Path(json.loads(process.stdout.readline())["socket"])
            host = socket.gethostname().partition(".")[0]
            assert path == home / f"serve-{host}.sock" and stat.S_IMODE(path.stat().st_mode) == 0o600
            transport = httpx2.HTTPTransport(uds=str(path))
            with (
                httpx2.Client(transport=transport, base_url="http://localhost", timeout=30) as client,
                socket.socket(socket.AF_UNIX) as half,
            ):
                half.connect(str(path))
                half.sendall(HALF_SENT)
                assert client.get("/api/v1/jobs").json()["total"] == 0
                assert [run["name"] for run in client.get("/api/v1/runs").json()["runs"]] == ["demo"]
                assert "another service listens there" in said()
                with client.stream("GET", "/api/v1/jobs/events") as events:
                    lines = events.iter_lines()
                    assert next(lines) == "event: changed"
                    process.send_signal(ending)
                    list(lines)  # to its end: it is let go, not cut
                assert half.recv(100) == b""  # and nobody waits for the rest
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert not path.exists()
    if ending == signal.SIGINT:
        assert (process.returncode, err) == (130, "interrupted; jobs go on\n")
    else:
        assert (process.returncode, err) == (-signal.SIGTERM, "")


def test_handlers_of_the_process_for_logs_stay_open():
    class Kept(logging.Handler):
        closed = False

        def close(self) -> None:
            self.closed = True
            super().close()

    kept = Kept()
    listening.server(create_app(JobsNow(Store()), AtSocket("ada")))
    assert not kept.closed


def test_the_socket_of_a_service_that_was_killed_is_taken_over(tmp_path):
    path = tmp_path / "serve.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with listening.at_socket(path):
        assert path.is_socket()


def test_a_place_where_it_cannot_listen_is_named(said, tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        assert f"Port {port} of 127.0.0.1 is in use." in said("--port", str(port))
    (tmp_path / "file").write_text("mine")
    assert "is there, and is not a socket" in said("--socket", str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"
    assert "too long for a socket" in said("--socket", str(tmp_path / ("x" * 120)))
    assert "none/serve.sock" in said("--socket", str(tmp_path / "none" / "serve.sock"))
    assert "exclude each other" in said("--socket", "a", "--port", "0")
    assert "none: there is no such folder" in said("--runs", str(tmp_path), "--runs", str(tmp_path / "none"))


def test_a_store_that_is_not_there_is_not_made(said, tmp_path):
    assert "there is no store of jobs" in said("--store", str(tmp_path / "jops.db"))
    assert not (tmp_path / "jops.db").exists()
    (tmp_path / "text.db").write_text("no database " * 100)
    assert app.run(["serve", "--store", str(tmp_path / "text.db")]) == 1


def test_tokens_are_made_listed_and_revoked(said, capsys, home):
    assert app.run(["serve", "--new-token", "notebook", "--days", "1"]) == 0
    secret = capsys.readouterr().out.strip()
    assert len(secret) == 43 and secret not in (home / "tokens.json").read_text()
    assert "already" in said("--new-token", "notebook")
    assert app.run(["serve", "--tokens", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["tokens"]
    assert (one["name"], one["may"], one["valid"]) == ("notebook", "read", True)
    assert app.run(["serve", "--revoke", "notebook"]) == 0
    assert "There is no token 'notebook'" in said("--revoke", "notebook")
    assert "write" in said("--new-token", "x", "--may", "everything")
    (home / "tokens.json").write_text("{")
    (home / "tokens.json").chmod(0o600)
    assert "is damaged" in said("--tokens")


def test_the_address_that_is_printed_signs_in(tmp_path):
    Store()
    environment = {**os.environ, "CINGULUM_STORE": str(tmp_path / "home" / "jobs.db")}
    command = [sys.executable, "-m", "cingulum", "serve", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            told = json.loads(process.stdout.readline())
            with httpx2.Client(base_url=told["address"], timeout=30, headers={"X-Cingulum": "1"}) as client:
                assert client.get("/").status_code == 401
                signed_in = client.post("/api/v1/session", json={"token": told["token"]})
                assert signed_in.status_code == 204
                assert client.get("/api/v1/session").json()["may"] == "admin"
                assert client.get("/").status_code == 200
        finally:
            process.terminate()
            process.wait(30)
