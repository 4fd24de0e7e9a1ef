"""Connections beside MPI that tell who is gone."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import sys
import time

import pytest

from trainer.errors import WorldError
from trainer.strategies.async_servers import lifelines
from trainer.strategies.async_servers.lifelines import Hub, Lifeline

OTHER = """
import json, sys, time
from trainer.strategies.async_servers.lifelines import Lifeline
Lifeline(json.loads(sys.argv[1]), 7, print, 60)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def hub():
    made = Hub([3], silence_s=20)
    yield made
    made.close()


def test_both_sides_hear_each_other_and_the_end(hub):
    heard = queue.SimpleQueue()
    line = Lifeline(hub.address, 3, heard.put, 20)
    assert hub.wait_for_all() == []
    line.say({"stop": True})
    assert hub.heard.get(timeout=10) == (3, {"stop": True})
    hub.say_all({"end": 75})
    assert heard.get(timeout=10) == {"end": 75}
    hub.cut(3)
    assert heard.get(timeout=10) is None
    line.close()


def test_a_process_that_is_killed_is_noticed():
    hub = Hub([7], silence_s=60)
    words = [sys.executable, "-c", OTHER, json.dumps(hub.address)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "up\n" and hub.wait_for_all() == []
        other.kill()
        assert hub.heard.get(timeout=10) == (7, None)
    hub.close()


def test_one_who_says_nothing_is_given_up(hub, monkeypatch):
    monkeypatch.setattr(lifelines, "BEAT_S", 60.0)
    hub._silence_s = 0.2
    Lifeline(hub.address, 3, print, 20)
    assert hub.heard.get(timeout=10) == (3, None)


@pytest.mark.parametrize(
    "line", [b"5\n", '{"secret": "é", "process": 3}\n'.encode(), b"\xff" * 1000, b"GET / "]
)
def test_a_line_of_a_stranger_keeps_no_process_out(hub, line):
    """The first two ended the thread that lets processes in, the last one held it up for five seconds."""
    with socket.create_connection(("127.0.0.1", hub.address["port"])) as stranger:
        stranger.sendall(line)
        began = time.monotonic()
        Lifeline(hub.address, 3, print, 20).close()
        assert hub.wait_for_all(5) == [] and time.monotonic() - began < 2


def test_a_process_that_comes_again_is_heard_and_its_first_connection_is_no_death():
    hub = Hub([3, 4], silence_s=20)
    first = Lifeline(hub.address, 3, print, 20)
    second = Lifeline(hub.address, 3, print, 20)
    Lifeline(hub.address, 4, print, 20)
    assert hub.wait_for_all() == []
    second.say({"stop": True})
    assert hub.heard.get(timeout=10) == (3, {"stop": True})
    first.close()
    hub.close()


def test_the_port_is_closed_when_all_are_there(hub):
    line = Lifeline(hub.address, 3, print, 20)
    assert hub.wait_for_all() == []
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", hub.address["port"]), timeout=5)
    line.close()


def test_a_server_that_cannot_be_reached_is_told(monkeypatch):
    monkeypatch.setattr(lifelines, "MEET_S", 0.0)
    address = {"hosts": ["localhost"], "port": 1, "secret": ""}
    with pytest.raises(WorldError, match="port 1"):
        Lifeline(address, 3, print, 1)
