"""The service under test: its address, the header of its own pages, and how it tells errors."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.testclient import TestClient

from cingulum.cli import app as cli
from cingulum.cli.submission_check import ServiceChecks
from cingulum.service import listening
from cingulum.service.app import create_app
from cingulum.service.callers import AtSocket
from cingulum.service.guard import GuardedApp
from cingulum.service.jobs_now import JobsNow
from cingulum.service.patience import Patient
from cingulum.service.runs_now import RunsNow
from jobs.store.store import Store

HOST = "http://127.0.0.1:8642"
OURS = {"X-Cingulum": "1"}


def checks() -> ServiceChecks:
    """What `cingulum serve` gives a service to submit with."""
    return ServiceChecks(cli.command_line())


def client_of(store: Store, *runs: Path) -> TestClient:
    """Return the user's own client, with folders of runs; launchers are not asked by themselves."""
    now = JobsNow(store, fresh_s=0)
    app = create_app(now, AtSocket("me"), RunsNow(runs, now.facts, fresh_s=0), checks())
    return TestClient(app, base_url=HOST, headers=OURS)


def code(answer) -> tuple[int, str]:
    """Return the status of an answer that is an error, and its code."""
    return answer.status_code, answer.json()["error"]["code"]


@contextmanager
def running(
    guard: GuardedApp, listener: socket.socket, http: type[asyncio.Protocol] = Patient
) -> Iterator[None]:
    """Answer at a listener in a thread until the end, also of a test that fails."""
    server = listening.server(guard, http)
    # A daemon: a server that does not end fails the test, and does not keep pytest from ending.
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.handle_exit(signal.SIGINT, None)
        thread.join(30)
    assert not thread.is_alive()
