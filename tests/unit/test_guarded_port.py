"""A port that only processes of a run pass: what strangers send, and do not send, harms nobody."""

from __future__ import annotations

import hmac
import queue
import random
import socket
import struct
import threading
import time

import pytest

from trainer.ranks import guarded_port
from trainer.ranks.guarded_port import GuardedPort, NotOurs, enter

SECRET = bytes(range(32))


@pytest.fixture
def guarded(monkeypatch):
    monkeypatch.setattr(guarded_port, "PATIENCE_S", 0.5)
    entered = queue.SimpleQueue()
    port = GuardedPort("127.0.0.1", SECRET, lambda *found: entered.put(found), name="guarded")
    yield port, entered
    port.close()


def connect(port):
    return socket.create_connection(("127.0.0.1", port.port), timeout=5)


def gets_in(port, entered, number=7, within_s=5.0):
    """Whether a real process still does; returns the seconds it took."""
    began = time.monotonic()
    with enter(("127.0.0.1", port.port), SECRET, number, within_s=within_s) as ours:
        theirs, told = entered.get(timeout=5)
        with theirs:
            theirs.sendall(b"hello")
            assert told == number and ours.recv(5, socket.MSG_WAITALL) == b"hello"
    return time.monotonic() - began


def proof(nonce, number=7, secret=SECRET):
    """What a caller answers, written down once more."""
    said = b"\1" * 32 + struct.pack(">I", number)
    return said + hmac.new(secret, b"cingulum caller\0" + nonce + said, "sha256").digest()


def test_a_process_of_the_run_gets_in_and_what_it_says_next_is_left_for_others(guarded):
    port, entered = guarded
    with connect(port) as ours:
        ours.sendall(proof(ours.recv(32, socket.MSG_WAITALL), 7) + b"first line\n")
        theirs, number = entered.get(timeout=5)
        with theirs:
            assert number == 7 and theirs.recv(100) == b"first line\n"


def test_another_secret_gets_nowhere_on_either_side(guarded):
    port, entered = guarded
    with pytest.raises(OSError):
        enter(("127.0.0.1", port.port), b"0" * 32, 7, within_s=5)
    assert entered.empty()
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def answer():
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(b"n" * 32)
                connection.recv(100)
                connection.sendall(b"0" * 32)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NotOurs):
            enter(impostor.getsockname(), SECRET, 7, within_s=5)
        thread.join(5)


def test_what_was_recorded_opens_nothing_later(guarded):
    port, entered = guarded
    with connect(port) as ours:
        recorded = proof(ours.recv(32, socket.MSG_WAITALL))
        ours.sendall(recorded)
        entered.get(timeout=5)[0].close()
    with connect(port) as replay:
        replay.recv(32, socket.MSG_WAITALL)
        replay.sendall(recorded)
        assert replay.recv(1) == b""
    assert entered.empty()


def test_an_answer_that_is_the_question_opens_nothing(guarded):
    """The two sides' codes have different labels: a server's own code is none for a caller."""
    port, entered = guarded
    with connect(port) as ours, connect(port) as other:
        nonce = ours.recv(32, socket.MSG_WAITALL)
        other.sendall(proof(other.recv(32, socket.MSG_WAITALL)))
        code = other.recv(32, socket.MSG_WAITALL)
        entered.get(timeout=5)[0].close()
        ours.sendall(nonce + struct.pack(">I", 7) + code)
        assert ours.recv(1) == b"" and entered.empty()


def test_a_hundred_who_say_nothing_or_half_of_it_keep_nobody_waiting(guarded, monkeypatch):
    monkeypatch.setattr(guarded_port, "PATIENCE_S", 2.0)
    port, entered = guarded
    idle = [connect(port) for _ in range(100)]
    for number, connection in enumerate(idle):
        connection.sendall(b"x" * (number % 67))
    assert gets_in(port, entered) < 1.5
    assert idle[0].recv(100) != b""  # its nonce; then, after the time limit, the end
    began = time.monotonic()
    for connection in idle:
        while connection.recv(100):
            pass
        connection.close()
    assert time.monotonic() - began < 10


def test_more_than_can_be_kept_drop_the_oldest_of_them(guarded, monkeypatch):
    monkeypatch.setattr(guarded_port, "MOST", 5)
    monkeypatch.setattr(guarded_port, "PATIENCE_S", 60.0)
    port, entered = guarded
    idle = [connect(port) for _ in range(20)]
    assert gets_in(port, entered) < 10
    for connection in idle:
        connection.close()


def test_a_caller_that_hangs_up_at_once_is_forgotten(guarded):
    port, entered = guarded
    for _ in range(50):
        connection = connect(port)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        connection.close()
    assert gets_in(port, entered) < 2


def test_no_bytes_whatever_let_a_stranger_in_or_keep_a_process_out(guarded):
    """Seeded: noise, a valid beginning and noise, one bit changed, lengths as other protocols write them."""
    port, entered = guarded
    draw = random.Random(17)
    for trial in range(400):
        with connect(port) as stranger:
            good = bytearray(proof(stranger.recv(32, socket.MSG_WAITALL), draw.randrange(9)))
            if trial % 4 == 0:
                sent = draw.randbytes(draw.randrange(1, 300))
            elif trial % 4 == 1:
                sent = bytes(good[: draw.randrange(len(good))]) + draw.randbytes(draw.randrange(1, 90))
            elif trial % 4 == 2:
                good[draw.randrange(len(good))] ^= 1 << draw.randrange(8)
                sent = bytes(good)
            else:
                sent = struct.pack(
                    ">Q", draw.getrandbits(63)
                ) + b'{"secret": "\xc3\xa9"}\n5\n' * draw.randrange(9)
            stranger.sendall(sent)
    assert gets_in(port, entered) < 2
    assert entered.empty()


def test_nothing_listens_after_the_end(guarded):
    port, _ = guarded
    port.close()
    with pytest.raises(ConnectionRefusedError):
        connect(port)


def test_a_process_with_too_many_open_files_lets_the_next_one_in(guarded, monkeypatch):
    port, entered = guarded
    scarce = [OSError(24, "Too many open files")] * 3
    plain = socket.socket.accept

    def accept(listening):
        if scarce:
            raise scarce.pop()
        return plain(listening)

    monkeypatch.setattr(socket.socket, "accept", accept)
    assert gets_in(port, entered) < 3 and not scarce


def test_a_server_that_says_nothing_is_given_up_in_time():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            enter(mute.getsockname(), SECRET, 7, within_s=0.3)
        assert time.monotonic() - began < 2
