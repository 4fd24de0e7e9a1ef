"""Connections beside MPI that tell who is gone."""

from __future__ import annotations

import dataclasses
import errno
import json
import queue
import selectors
import socket
import subprocess
import sys
import time

import pytest
from wording import fails_with

from trainer.errors import WorldError
from trainer.ranks import liveness, rollcall
from trainer.ranks.liveness import Address, Lifeline, LivenessPort
from trainer.ranks.world import World
from trainer.strategies.async_servers import asynchronous

OTHER = """
import json, sys, time
from trainer.ranks.liveness import Address, Lifeline
Lifeline(Address(**json.loads(sys.argv[1])), 7, print, 60, "server 0")
print("up", flush=True)
time.sleep(60)
"""


def port_for(*others: int, silence_s: float = 20) -> LivenessPort:
    host = socket.gethostname()
    return LivenessPort([host], host, lines_from=others, silence_s=silence_s)


@pytest.fixture
def port():
    made = port_for(3)
    yield made
    made.close()


def test_both_sides_hear_each_other_and_the_end(port):
    heard = queue.SimpleQueue()
    line = Lifeline(port.address, 3, heard.put, 20, "server 0")
    assert port.wait_for_all() == []
    line.say({"stop": True})
    assert port.heard.get(timeout=10) == (3, {"stop": True})
    port.say_all({"end": 75})
    assert heard.get(timeout=10) == {"end": 75}
    port.cut(3)
    assert heard.get(timeout=10) is None
    line.close()


def test_a_process_that_is_killed_is_noticed():
    port = port_for(7, silence_s=60)
    words = [sys.executable, "-c", OTHER, json.dumps(dataclasses.asdict(port.address))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "up\n" and port.wait_for_all() == []
        other.kill()
        assert port.heard.get(timeout=10) == (7, None)
    port.close()


def test_one_who_says_nothing_is_given_up(port, monkeypatch):
    monkeypatch.setattr(liveness, "BEAT_S", 60.0)
    port._silence_s = 0.2
    Lifeline(port.address, 3, print, 20, "server 0")
    assert port.heard.get(timeout=10) == (3, None)


@pytest.mark.parametrize(
    "line", [b"5\n", '{"secret": "é", "process": 3}\n'.encode(), b"\xff" * 1000, b"GET / "]
)
def test_a_line_of_a_stranger_keeps_no_process_out(port, line):
    """The first two ended the thread that lets processes in, the last one held it up for five seconds."""
    with socket.create_connection(("127.0.0.1", port.address.port)) as stranger:
        stranger.sendall(line)
        began = time.monotonic()
        Lifeline(port.address, 3, print, 20, "server 0").close()
        assert port.wait_for_all(5) == [] and time.monotonic() - began < 2


def test_a_process_that_comes_again_is_heard_and_its_first_connection_is_no_death():
    port = port_for(3, 4)
    first = Lifeline(port.address, 3, print, 20, "server 0")
    second = Lifeline(port.address, 3, print, 20, "server 0")
    Lifeline(port.address, 4, print, 20, "server 0")
    assert port.wait_for_all() == []
    second.say({"stop": True})
    assert port.heard.get(timeout=10) == (3, {"stop": True})
    first.close()
    port.close()


def test_the_port_is_closed_when_all_are_there(port):
    line = Lifeline(port.address, 3, print, 20, "server 0")
    assert port.wait_for_all() == []
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port.address.port), timeout=5)
    line.close()


def test_a_server_that_cannot_be_reached_is_told(monkeypatch):
    monkeypatch.setattr(liveness, "MEET_S", 0.0)
    address = Address("n1", ["localhost"], 1, "")
    with fails_with(WorldError):
        Lifeline(address, 3, print, 1, "server 0 @ n1")


def test_a_caller_that_hangs_up_is_a_roll_call_and_no_death(port):
    """It may be asked of a process that expects a lifeline of the same caller."""
    for _ in range(2):
        port.address.connect(3, "", within_s=5).close()
    line = Lifeline(port.address, 3, print, 20, "server 0")
    assert port.wait_for_all() == []
    line.say({"stop": True})
    assert port.heard.get(timeout=10) == (3, {"stop": True})
    line.close()
    assert port.heard.get(timeout=10) == (3, None)


class Faulty:
    """A connection whose reads fail as often as `failures` says."""

    def __init__(self, connection: socket.socket, failures: list[OSError]) -> None:
        self._connection, self._failures = connection, failures

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def makefile(self, mode: str) -> object:
        plain, failures = self._connection.makefile(mode), self._failures

        class Lines:
            def __enter__(self) -> Lines:
                return self

            def __exit__(self, *error: object) -> None:
                plain.close()

            def readline(self) -> bytes:
                if failures:
                    raise failures.pop()
                return plain.readline()

        return Lines()


def test_one_error_of_a_connection_is_no_death():
    ours, theirs = socket.socketpair()
    heard = queue.SimpleQueue()
    failures = [OSError(errno.ENOBUFS, "No buffer space available"), OSError(errno.EHOSTUNREACH, "No route")]
    line = liveness._Line(NoDelay(Faulty(theirs, failures)), 3, heard.put, 20)
    ours.sendall(b'{"half": {"a": 1}\n{"stop": true}\n')
    assert heard.get(timeout=10) == (3, {"stop": True}) and not failures
    ours.close()
    assert heard.get(timeout=10) == (3, None)
    line.close()


class NoDelay:
    """A socket of this host only, which knows no option of TCP."""

    def __init__(self, connection: Faulty) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def setsockopt(self, *option: int) -> None:
        pass


def test_a_port_lives_on_when_a_caller_cannot_be_watched(port, monkeypatch):
    plain, failures = selectors.DefaultSelector.register, [errno.ENOSPC, errno.ENOMEM]

    def register(self, connection, events):
        if failures:
            raise OSError(failures.pop(), "too much is watched")
        return plain(self, connection, events)

    monkeypatch.setattr(selectors.DefaultSelector, "register", register)
    line = Lifeline(port.address, 3, print, 20, "server 0")
    assert port.wait_for_all(10) == [] and not failures
    line.close()


def test_a_process_is_given_up_after_five_beats_at_least_whatever_the_time_limit():
    assert asynchronous.silence(0.1) >= 5 * liveness.BEAT_S
    assert asynchronous.silence(300.0) == asynchronous.SILENCE_S


@pytest.mark.parametrize(
    ("number", "answer"),
    [(errno.EMFILE, "unasked"), (errno.EHOSTUNREACH, "silent"), (errno.ETIMEDOUT, "silent")],
)
def test_a_rank_that_lacks_what_it_takes_to_ask_accuses_nobody(monkeypatch, number, answer):
    def connect(*arguments, **options):
        raise OSError(number, "")

    monkeypatch.setattr(Address, "connect", connect)
    call = rollcall.RollCall(World())
    call._addresses = [Address("n1", ["n1"], 1, "")]
    assert call._ask(0) == answer
