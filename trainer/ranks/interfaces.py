"""The address of this host at which the other ranks of a run reach it, so that no other interface listens."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable, Mapping, Sequence

LOOPBACK = "127.0.0.1"
EVERY = ""

# Open MPI's own: the interfaces, or subnets, over which ranks and mpirun's daemons talk (jobs/mpi.py).
_INCLUDED = ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include")
# So many other hosts are looked up; those of one run lie behind the same interface.
_ASKED = 16
# Nothing is sent: for UDP, `connect` only chooses the route.
_DISCARD_PORT = 9


def listening_address(hosts: Iterable[str], host: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the IPv4 address to bind a port to that only processes of this run need to reach.

    Args:
        hosts: names of all processes' hosts.
        host: name of this one.
        environment: where Open MPI's settings are read; default: `os.environ`.

    Returns:
        `LOOPBACK` where all processes are on this host; the address of the first interface or subnet in
        `btl_tcp_if_include` or `oob_tcp_if_include`; else the address from which the system would reach the
        other hosts; `EVERY` where their names are unknown here, or lie behind several interfaces.
    """
    others = sorted(set(hosts) - {host})
    if not others:
        return LOOPBACK
    environment = os.environ if environment is None else environment
    cards = interface_addresses()
    for name in _INCLUDED:
        if found := _included(environment.get(name, ""), cards):
            return found
    return _on_the_way_to(others[:_ASKED])


def interface_addresses() -> dict[str, list[str]]:
    """IPv4 addresses of this host by interface, without the loopback."""
    import psutil

    found = {
        name: [a.address for a in card if a.family == socket.AF_INET and not a.address.startswith("127.")]
        for name, card in psutil.net_if_addrs().items()
    }
    return {name: addresses for name, addresses in found.items() if addresses}


def _included(setting: str, cards: Mapping[str, Sequence[str]]) -> str | None:
    """The first address of what such a setting names: 'eth0,ib0' or '10.0.0.0/24'."""
    for part in filter(None, (word.strip() for word in setting.split(","))):
        if part in cards:
            return cards[part][0]
        if "/" in part:
            try:
                subnet = ipaddress.ip_network(part, strict=False)
            except ValueError:  # Open MPI will say so itself
                continue
            for addresses in cards.values():
                for address in addresses:
                    if ipaddress.ip_address(address) in subnet:
                        return address
    return None


def _on_the_way_to(others: Sequence[str]) -> str:
    addresses: set[str] = set()
    for other in others:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((other, _DISCARD_PORT))
                addresses.add(probe.getsockname()[0])
        except OSError:  # a name without an address, or no route: no reason to ask for the others' as well
            return EVERY
    address = addresses.pop()
    return EVERY if addresses or address.startswith("127.") else address
