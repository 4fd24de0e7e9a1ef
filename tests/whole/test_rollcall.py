"""Ranks answer each other over connections of their own; who does not is named."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from trainer.ranks.liveness import Address
from trainer.ranks.rollcall import RollCall
from trainer.ranks.world import World


class Threaded(World):
    """Ranks as threads of this process."""

    def __init__(
        self, rank: int, meeting: threading.Barrier, said: list[object], hosts: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.rank, self.size, self.hosts, self.host = rank, meeting.parties, hosts, hosts[rank]
        self._meeting, self._said = meeting, said

    def allgather_object(self, value: object) -> list[object]:
        self._said[self.rank] = json.loads(json.dumps(value))
        self._meeting.wait(20)
        found = list(self._said)
        self._meeting.wait(20)
        return found


def roll_calls(hosts: tuple[str, ...]) -> list[RollCall]:
    meeting, said = threading.Barrier(len(hosts)), [None] * len(hosts)
    made: dict[int, RollCall] = {}

    def make(rank: int) -> None:
        made[rank] = RollCall(Threaded(rank, meeting, said, hosts))

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [made[rank] for rank in range(len(hosts))]


def at(listening: socket.socket) -> Address:
    place, number = listening.getsockname()
    return Address("n0", [place], number, "00")


def connect(address: Address) -> socket.socket:
    return socket.create_connection((address.places[0], address.port), timeout=5)


@pytest.fixture
def three() -> Iterator[list[RollCall]]:
    calls = roll_calls(("localhost",) * 3)
    yield calls
    for call in calls:
        call.close()


def test_nobody_is_missing_while_all_answer(three):
    assert [call.missing() for call in three] == [[], [], []]


def test_a_rank_that_takes_calls_and_says_nothing_is_named(three):
    with socket.create_server(("127.0.0.1", 0)) as mute:  # the kernel of a stopped process still takes calls
        three[0]._addresses[2] = at(mute)
        began = time.monotonic()
        assert three[0].missing() == ["rank 2 @ localhost"]
        assert time.monotonic() - began < 5


def test_a_rank_whose_process_has_ended_is_not_accused(three):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = at(gone)
    three[0]._addresses[1] = address
    assert three[0].missing() == []


def test_a_rank_that_could_never_be_reached_is_not_accused():
    calls = roll_calls(("localhost", "no-such-host.invalid"))
    assert calls[0].missing() == []
    for call in calls:
        call.close()


def test_a_host_behind_a_firewall_is_not_accused_but_a_rank_of_ones_own_is(monkeypatch):
    """Two ranks on each: those of one host reach each other, which says nothing about the other host."""
    plain = socket.create_connection

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        if address[0] == "n2":
            raise TimeoutError
        return plain(("localhost", address[1]), timeout)

    monkeypatch.setattr(socket, "create_connection", connect)
    calls = roll_calls(("n1", "n1", "n2", "n2"))
    assert [call.missing() for call in calls] == [[], [], [], []]
    with socket.create_server(("127.0.0.1", 0)) as mute:
        calls[0]._addresses[1] = at(mute)
        assert calls[0].missing() == ["rank 1 @ n1"]
    for call in calls:
        call.close()


def test_after_the_end_nobody_answers(three):
    three[1].close()
    with pytest.raises(ConnectionRefusedError):
        connect(three[0]._addresses[1])


def test_strangers_who_say_nothing_make_nobody_look_silent(three):
    """Each of them held the answers of a rank up for two seconds."""
    strangers = [connect(three[0]._addresses[2]) for _ in range(20)]
    assert three[0].missing() == []
    for stranger in strangers:
        stranger.close()


def test_ranks_of_one_host_listen_on_its_loopback_alone(three):
    assert {place for one in three[0]._addresses for place in one.places} == {"127.0.0.1"}


def test_a_single_rank_opens_nothing():
    call = RollCall(World())
    assert call.missing() == []
    call.close()
