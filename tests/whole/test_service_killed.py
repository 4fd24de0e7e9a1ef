"""kill -9 of the service, and of its client, in the middle of a submission: nothing twice, nothing lost."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import pytest
import yaml

from jobs.store.store import Store

CONFIG = yaml.safe_dump({"name": "mine", "data": {"shards": "shards"}, "train": {"global_batch": 12}})
PROGRAM = Path(__file__).parents[1] / "helpers" / "service_on_stand_in.py"
ASK = {"json": {"config": CONFIG, "then": "report"}}


class Service:
    """A service in a process of its own, over a cluster that is a file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.socket = folder, folder / "cluster", folder / "serve.sock"
        (folder / "shards").mkdir()
        (folder / "shards" / "index.json").write_text("{}")
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        root = str(PROGRAM.parents[2])
        environment = {**os.environ, "PYTHONPATH": f"{PROGRAM.parent}:{root}"}
        words = [sys.executable, str(PROGRAM), str(self.file), str(self.socket)]
        self.process = subprocess.Popen(
            words, cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "listening\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self.process.stdout.close()

    def client(self, timeout: float = 60) -> httpx2.Client:
        return httpx2.Client(
            transport=httpx2.HTTPTransport(uds=str(self.socket)),
            base_url="http://localhost",
            headers={"X-Cingulum": "1", "Idempotency-Key": "a-key-of-mine"},
            timeout=timeout,
        )

    def is_called(self) -> bool:
        """Return whether the cluster has been called, as its processes tell."""
        tokens = [job.token for job in Store().list()]
        found = b""
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended
                found += line.read_bytes()
        return bool(tokens) and tokens[0].encode() in found

    def jobs_in_cluster(self) -> list[str]:
        return self.file.read_text().split() if self.file.exists() else []


@pytest.fixture
def service(tmp_path, monkeypatch):
    monkeypatch.setenv("CINGULUM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("CINGULUM_STORE", raising=False)
    made = Service(tmp_path)
    made.start()
    yield made
    made.kill()


def until(there) -> None:
    end = time.monotonic() + 30
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_service_that_is_killed_while_the_cluster_takes_a_job_submits_it_once(service, tmp_path):
    hold = tmp_path / "cluster.hold"
    hold.touch()

    def ask() -> None:
        with service.client() as client, contextlib.suppress(httpx2.HTTPError):
            client.post("/api/v1/jobs", **ASK)

    asking = threading.Thread(target=ask)
    asking.start()
    until(
        lambda: [job.state for job in Store().list()] == ["SUBMITTING"]
    )  # sbatch has been called, or will be
    until(lambda: (tmp_path / "home" / "jobs" / Store().list()[0].token / "job").is_file())
    time.sleep(0.3)
    service.kill()
    asking.join(30)
    hold.unlink()  # what was called goes on without its caller
    until(lambda: len(service.jobs_in_cluster()) == 1)
    service.start()
    with service.client() as client:
        first = client.post("/api/v1/jobs", **ASK)
        assert (first.status_code, [job["id"] for job in first.json()["jobs"]]) == (201, ["1", "2"])
        assert client.post("/api/v1/jobs", **ASK).json() == first.json()
        actions = client.get("/api/v1/jobs/1").json()["actions"]
    assert [one["action"] for one in actions] == ["submit"]
    assert len(service.jobs_in_cluster()) == len(set(service.jobs_in_cluster())) == 2
    assert [job.token for job in reversed(Store().list())] == service.jobs_in_cluster()


def test_a_client_that_gives_up_and_asks_again_gets_the_jobs_that_it_asked_for(service, tmp_path):
    hold = tmp_path / "cluster.hold"
    hold.touch()
    with service.client(timeout=1) as client, pytest.raises(httpx2.TimeoutException):
        client.post("/api/v1/jobs", **ASK)
    until(lambda: service.is_called())
    with service.client() as client:
        # The first request is still at work: the job is there, and its second one cannot be yet.
        answer = client.post("/api/v1/jobs", **ASK)
        assert answer.status_code == 400 and "is being submitted" in answer.json()["error"]["message"]
        hold.unlink()
        until(lambda: len(service.jobs_in_cluster()) == 2)
        until(lambda: all(job.external for job in Store().list()))
        assert [job["id"] for job in client.post("/api/v1/jobs", **ASK).json()["jobs"]] == ["1", "2"]
    assert len(service.jobs_in_cluster()) == 2
