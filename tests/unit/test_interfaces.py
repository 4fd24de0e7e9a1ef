"""At which address a port of a run is opened."""

from __future__ import annotations

import pytest

from trainer.ranks import liveness
from trainer.ranks.liveness import EVERY, LOOPBACK, listening_address

CARDS = {"eth0": ["10.0.0.5"], "docker0": ["172.17.0.1"], "ib0": ["192.168.7.5"]}
BTL, OOB = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"


@pytest.fixture
def cards(monkeypatch):
    monkeypatch.setattr(liveness, "interface_addresses", lambda: CARDS)


def test_ranks_of_one_host_use_its_loopback():
    assert listening_address(["n1", "n1"], "n1", {BTL: "eth0"}) == LOOPBACK


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({BTL: "ib0,eth0", OOB: "eth0"}, "192.168.7.5"),
        ({OOB: "eth0"}, "10.0.0.5"),
        ({BTL: "10.0.0.0/24"}, "10.0.0.5"),
        ({BTL: "nonsense/99,lost0", OOB: " eth0 "}, "10.0.0.5"),
    ],
)
def test_what_open_mpi_is_told_holds_here_too(cards, environment, expected):
    assert listening_address(["n1", "no-such.invalid"], "n1", environment) == expected


def test_else_it_is_the_address_on_the_way_to_the_other_hosts(monkeypatch):
    """Names are numbers here: the route is the system's own. No packet is sent."""
    ways = {"198.51.100.1": "10.0.0.5", "198.51.100.2": "10.0.0.5", "203.0.113.1": "192.168.7.5"}

    class Probe:
        def __init__(self, *kind):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def connect(self, place):
            if place[0] not in ways:
                raise OSError("Name or service not known")
            self.mine = ways[place[0]]

        def getsockname(self):
            return self.mine, 4711

    monkeypatch.setattr(liveness.socket, "socket", Probe)
    assert listening_address(["n1", "198.51.100.1", "198.51.100.2"], "n1", {}) == "10.0.0.5"
    assert listening_address(["n1", "198.51.100.1", "203.0.113.1"], "n1", {}) == EVERY
    assert listening_address(["n1", "unknown"], "n1", {}) == EVERY


def test_an_address_of_the_loopback_is_no_way_to_another_host():
    assert listening_address(["n1", "localhost"], "n1", {}) == EVERY
