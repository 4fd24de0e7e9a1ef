"""Answers that last, at a real port: they end when their token is revoked, expires or is changed."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from jobs_to_serve import fill, write_run
from served import OURS, checks, running

from cingulum.service import listening
from cingulum.service.app import create_app
from cingulum.service.callers import WithTokens
from cingulum.service.jobs_now import JobsNow
from cingulum.service.runs_now import RunsNow
from cingulum.service.tokens import TokenFile
from jobs.store.store import Store

END_S = 10.0


class Port:
    """A service at a port."""

    def __init__(self, file: TokenFile, guard, number: int) -> None:
        self.file, self.guard, self.number = file, guard, number
        self.address = f"http://127.0.0.1:{number}"

    def client(self, secret: str | None = None) -> httpx2.Client:
        headers = OURS if secret is None else {**OURS, "Authorization": f"Bearer {secret}"}
        return httpx2.Client(base_url=self.address, headers=headers, timeout=2 * END_S)

    def expires(self, name: str) -> None:
        """Let a token expire at once."""
        self._change(name, expires=time.time())

    def may(self, name: str, may: str) -> None:
        """Let a token allow something else."""
        self._change(name, may=may)

    def _change(self, name: str, **changes: object) -> None:
        tokens = [dataclasses.replace(one, **changes) if one.name == name else one for one in self.file.all()]
        self.file._write(tokens)


@pytest.fixture
def port(slurm, tmp_path) -> Iterator[Port]:
    fill(Store(), slurm, tmp_path / "runs")
    write_run(tmp_path / "by-hand" / "first", 5)
    file = TokenFile(tmp_path / "tokens.json")
    now = JobsNow(Store())
    runs = RunsNow([tmp_path / "by-hand"], now.facts)
    guard = create_app(now, WithTokens("ada", file), runs, checks(), file)
    with listening.at_port(0) as listener, running(guard, listener):
        yield Port(file, guard, listener.getsockname()[1])


def followed(client: httpx2.Client, address: str, begun: threading.Barrier) -> tuple[list[str], float]:
    """The names of all events of a stream, and how long it went on after the first."""
    with client.stream("GET", address) as events:
        lines = events.iter_lines()
        names = [next(lines)]
        begun.wait(60)
        began = time.monotonic()
        for line in lines:
            names += [line] if line.startswith("event: ") else []
            if time.monotonic() - began > END_S:  # a sign of life after 15 s
                break
        return [name.removeprefix("event: ") for name in names], time.monotonic() - began


def every_stream(client: httpx2.Client) -> list[str]:
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    (run,) = client.get("/api/v1/runs").json()["runs"]
    ids = {"jobs": "4714", "runs": run["id"]}
    return [
        path.replace("{identity}", ids.get(path.split("/")[3], "")) + f"?runs={run['id']}"
        for path in paths
        if path.endswith("/events")
    ]


@pytest.mark.parametrize("ending", ["revoked", "expired", "changed"])
def test_every_stream_of_events_ends_with_the_right_to_it(port, ending):
    secret = port.file.add("reader", "write", 1)
    other = port.file.add("other", "read", 1)
    with port.client(secret) as bearer, port.client() as browser, port.client(other) as stays:
        assert browser.post("/api/v1/session", json={"token": secret}).status_code == 204
        streams = every_stream(bearer)
        assert len(streams) >= 6
        begun = threading.Barrier(len(streams) + 3)
        with ThreadPoolExecutor(len(streams) + 2) as pool:
            left = pool.submit(followed, stays, streams[0], begun)
            cut = [pool.submit(followed, bearer, stream, begun) for stream in streams]
            cut.append(pool.submit(followed, browser, streams[0], begun))
            begun.wait(60)
            if ending == "revoked":
                port.file.revoke("reader")
            elif ending == "expired":
                port.expires("reader")
            else:
                port.may("reader", "read")
            for one in cut:
                names, seconds = one.result(2 * END_S)
                assert names[-1] == "refused" and seconds < END_S
            assert not left.done()
            again = bearer.get("/api/v1/session")
            assert again.status_code == (200 if ending == "changed" else 401)
            port.file.revoke("other")
            assert left.result(2 * END_S)[0][-1] == "refused"


def test_a_reader_who_takes_nothing_of_a_download_is_cut_off_with_the_token(port):
    secret = port.file.add("reader", "read", 1)
    ended = threading.Event()

    async def download(scope, receive, send):
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        finally:
            ended.set()

    download.state, port.guard.app = port.guard.app.state, download
    head = f"GET /download HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port.number), timeout=END_S) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
        assert not ended.wait(1)
        port.file.revoke("reader")
        assert ended.wait(END_S)


def test_what_is_written_slowly_does_nothing_once_the_token_is_revoked(port, slurm):
    secret = port.file.add("writer", "write", 1)
    head = (
        f"POST /api/v1/jobs/4714/nice HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n"
        "X-Cingulum: 1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port.number), timeout=END_S) as connection:
        connection.sendall(head.encode() + b'{"by"')
        time.sleep(2.5)
        port.file.revoke("writer")
        connection.sendall(b":10}")
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")
    assert slurm.told == []
