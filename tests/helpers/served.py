"""The service under test: its address, the header of its own pages, and how it tells errors."""

from __future__ import annotations

from starlette.testclient import TestClient

from cingulum.service.app import create_app
from cingulum.service.callers import AtSocket
from cingulum.service.jobs_now import JobsNow
from jobs.store import Store

HOST = "http://127.0.0.1:8642"
OURS = {"X-Cingulum": "1"}


def client_of(store: Store) -> TestClient:
    """Return the user's own client; launchers are not asked by themselves."""
    return TestClient(create_app(JobsNow(store, fresh_s=0), AtSocket("me")), base_url=HOST, headers=OURS)


def code(answer) -> tuple[int, str]:
    """Return the status of an answer that is an error, and its code."""
    return answer.status_code, answer.json()["error"]["code"]
