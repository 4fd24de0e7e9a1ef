"""Requests that are sent in part, and answers that nobody reads, at real sockets: they end, nobody waits."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from served import checks, running

from cingulum.service import listening, patience
from cingulum.service.app import create_app
from cingulum.service.callers import WithTokens
from cingulum.service.jobs_now import JobsNow
from cingulum.service.tokens import TokenFile
from jobs.store.store import Store

# Long enough that a busy machine sends within it what two hundred connections have to send.
LIMIT_S = 3.0
BODY = b'{"token": "no such token"}'
HEAD = (
    b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nX-Cingulum: 1\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
)


@pytest.fixture
def address(slurm, tmp_path, monkeypatch) -> Iterator[tuple[str, int]]:
    """Of a service at a port, with short limits."""
    monkeypatch.setattr(patience, "HEAD_S", LIMIT_S)
    monkeypatch.setattr(patience, "PART_S", LIMIT_S)
    monkeypatch.setattr(patience, "BODY_S", 4 * LIMIT_S)
    callers = WithTokens("me", TokenFile(tmp_path / "tokens.json"))
    with (
        listening.at_port(0) as listener,
        running(create_app(JobsNow(Store()), callers, looks=checks()), listener),
    ):
        yield listener.getsockname()


@contextlib.contextmanager
def connected(address: tuple[str, int], count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(socket.create_connection(address, timeout=10)) for _ in range(count)]


def answer(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    pieces = []
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


def asked(address: tuple[str, int]) -> float:
    """Seconds that a whole request takes."""
    began = time.monotonic()
    with connected(address, 1) as (connection,):
        connection.sendall(b"GET /static/page.js HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 200 ")
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (b"", b""),
        (b"GET / HT", b"The head of the request"),
        (HEAD + BODY[:5], b"The body of the request"),
        (HEAD.replace(b"POST", b"GET") + BODY[:5], b"NOT_SIGNED_IN"),  # answered, though not all was read
    ],
)
def test_two_hundred_requests_sent_in_part_end_and_keep_nobody_waiting(address, part, said, capfd):
    began = time.monotonic()
    with connected(address, 200) as connections:
        for connection in connections:
            connection.sendall(part)
        assert asked(address) < LIMIT_S
        answers = {answer(connection) for connection in connections}
    assert LIMIT_S <= time.monotonic() - began < LIMIT_S + 6
    assert all(said in one and bool(one) == bool(said) for one in answers)
    if said.startswith(b"The"):
        (error,) = {one.partition(b"\r\n\r\n")[2] for one in answers}
        assert json.loads(error)["error"]["code"] == "TOO_SLOW"
        assert all(one.startswith(b"HTTP/1.1 408 ") for one in answers)
    assert capfd.readouterr().err == ""


def test_a_body_that_comes_slowly_is_taken_and_one_that_trickles_on_is_not(address):
    with connected(address, 2) as (slow, trickling):
        slow.sendall(HEAD)
        trickling.sendall(HEAD.replace(b": %d\r\n\r\n" % len(BODY), b": 60000\r\n\r\n"))
        began = time.monotonic()
        for at in range(0, len(BODY), 4):  # longer than one part may take
            time.sleep(LIMIT_S / 4)
            slow.sendall(BODY[at : at + 4])
            trickling.sendall(b" ")
        assert time.monotonic() - began > LIMIT_S
        assert slow.recv(65536).startswith(b"HTTP/1.1 401 ")
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 8 * LIMIT_S:
                trickling.sendall(b" ")
                time.sleep(LIMIT_S / 4)
        assert time.monotonic() - began < 6 * LIMIT_S


def test_a_head_that_trickles_is_given_up(address):
    began = time.monotonic()
    with connected(address, 1) as (connection,), contextlib.suppress(ConnectionError):
        connection.sendall(HEAD[:30])
        while time.monotonic() - began < 6 * LIMIT_S:
            connection.sendall(b"x")
            time.sleep(LIMIT_S / 4)
    assert time.monotonic() - began < 3 * LIMIT_S


def test_more_connections_than_can_be_kept_cost_the_one_awaited_longest(address, monkeypatch):
    monkeypatch.setattr(patience, "MOST_CONNECTIONS", 20)
    monkeypatch.setattr(patience, "HEAD_S", 60)
    with connected(address, 25) as connections:
        assert asked(address) < LIMIT_S
        gone = [answer(connection) for connection in connections[:5]]
        assert gone == [b""] * 5
        connections[-1].sendall(
            b"GET /static/page.js HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        assert answer(connections[-1]).startswith(b"HTTP/1.1 200 ")


def test_an_answer_that_nobody_reads_is_cut_off(slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(patience, "READER_S", LIMIT_S)
    guard = create_app(JobsNow(Store()), WithTokens("me", TokenFile(tmp_path / "tokens.json")))
    ended = threading.Event()

    async def endless(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(200):
                await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
            ended.set()

    endless.state, guard.app = guard.app.state, endless
    with (
        listening.at_port(0) as listener,
        running(guard, listener),
        connected(listener.getsockname(), 1) as (connection,),
    ):
        connection.sendall(b"GET /static/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not ended.wait(LIMIT_S / 2)  # it waits for the reader
        assert ended.wait(4 * LIMIT_S)  # who has gone by now: what is sent further goes nowhere
