"""Which processes of a run still answer: asked when a collective hangs, or heard all the time.

MPI cannot say who is missing: all that are left wait for each other. So a process that can be asked has a
port beside MPI (`LivenessPort`), whose `Address` the others get at the start. Whoever calls proves first
that it belongs to the run (trainer/ranks/guarded_port.py), and so does the port. A caller that hangs up
then has its answer: that is a roll call. One that stays is a lifeline, on which lines of JSON go both ways:
`{}` at once and every second, and what a process has to say outside its work (a request to stop, an error,
the end).

The kernel closes the connections of a process that was killed, at once. A host without power, a cut link
and a stopped process say nothing: they do not answer a roll call, and a lifeline gives them up after
`silence_s`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.errors import WorldError
from trainer.ranks.guarded_port import SECRET_BYTES, GuardedPort, enter

BEAT_S = 1.0
# However impatient a run is otherwise, a process may miss so many beats before it is given up.
LEAST_BEATS = 5
# A connection that fails so often in a row, without an end, is over.
_MOST_ERRORS = 5
MEET_S = 60.0
# One try to connect a lifeline; two are made at least.
_TRY_S = 10.0

# The other process and what it said; None: it is gone.
Said = tuple[int, dict[str, Any] | None]


@dataclass(frozen=True)
class Address:
    """Where a process can be asked. JSON with `dataclasses.asdict`.

    Attributes:
        host: name of its host.
        places: names and addresses of the host at which the port is reached, the best first.
        port: its number.
        secret: that callers must know, hexadecimal.
    """

    host: str
    places: Sequence[str]
    port: int
    secret: str

    def connect(self, process: int, host: str, *, within_s: float, tries: int | None = None) -> socket.socket:
        """Connect and prove each other; returns the connection.

        Args:
            process: number of the caller.
            host: name of the caller's host.
            within_s: for each place.
            tries: places to try; default: all.

        Raises:
            OSError: of the last place that was tried: see `guarded_port.enter`.
        """
        places = list(self.places)
        if places[0] == host:  # where the port listens on every interface
            places.insert(0, "localhost")
        problem: OSError = OSError("no address")
        for place in places[:tries]:
            try:
                return enter((place, self.port), bytes.fromhex(self.secret), process, within_s=within_s)
            except OSError as error:
                problem = error
        raise problem


class _Line:
    """One lifeline: beats, hears lines, and notices its end. `heard` is called from its threads.

    With `opened`, the other side may be a roll call: `opened` is called at its first line, and without any
    line its end means nothing.
    """

    def __init__(
        self,
        connection: socket.socket,
        other: int,
        heard: Callable[[Said], None],
        silence_s: float,
        opened: Callable[[_Line], None] | None = None,
    ) -> None:
        self._connection, self._other, self._heard, self._opened = connection, other, heard, opened
        self._sending = threading.Lock()
        self._ended = threading.Event()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(silence_s)
        self.say({})
        for work in (self._hear, self._beat):
            threading.Thread(target=work, name=f"lifeline-{other}", daemon=True).start()

    def say(self, what: dict[str, Any]) -> None:
        """Send a line; to a process that is gone, nothing."""
        with contextlib.suppress(OSError), self._sending:
            self._connection.sendall(json.dumps(what).encode() + b"\n")

    def close(self) -> None:
        """Report nothing from now on, and let the other side notice."""
        self._ended.set()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            self.say({})

    def _hear(self) -> None:
        errors = 0
        with contextlib.suppress(OSError), self._connection.makefile("rb") as lines:
            while errors < _MOST_ERRORS:
                try:
                    line = lines.readline()
                except TimeoutError:  # silent for too long
                    break
                except OSError:  # a connection that is over says so by its end, the next time
                    errors += 1
                    continue
                if not line:
                    break
                errors = 0
                self._take(line)
        if not self._ended.is_set():
            self._ended.set()
            if self._opened is None:
                self._heard((self._other, None))
        with contextlib.suppress(OSError):
            self._connection.close()

    def _take(self, line: bytes) -> None:
        if self._opened is not None:
            self._opened(self)
            self._opened = None
        try:
            message = json.loads(line)
        except ValueError:  # cut by a send that failed; it shows that the process is there
            return
        if message:
            self._heard((self._other, message))


class LivenessPort:
    """This process's port for roll calls and lifelines, open from its making to `close`.

    Args:
        hosts: names of all processes' hosts; only they need to reach the port.
        host: name of this one.
        lines_from: numbers of the processes that have a lifeline here. The port is closed when all have
            connected; without any it answers roll calls.
        silence_s: after so long without a line, a process is given up; it ends when it notices.

    Attributes:
        address: what callers need.
        heard: `Said` on lifelines, as it comes.
    """

    def __init__(
        self, hosts: Collection[str], host: str, *, lines_from: Collection[int] = (), silence_s: float = 0.0
    ) -> None:
        self.heard: queue.SimpleQueue[Said] = queue.SimpleQueue()
        self._silence_s = silence_s
        self._lines: dict[int, _Line] = {}
        self._newest: dict[int, int] = {}
        self._numbers = itertools.count()
        self._others, self._awaited = frozenset(lines_from), set(lines_from)
        self._opening, self._all_here = threading.Lock(), threading.Event()
        listen_at = listening_address(hosts, host)
        secret = secrets.token_bytes(SECRET_BYTES)
        self._port = GuardedPort(listen_at, secret, self._entered, name="liveness")
        every = [host, *(address for found in interface_addresses().values() for address in found)]
        places = every if listen_at == EVERY else [listen_at]
        self.address = Address(host, places, self._port.port, secret.hex())

    def wait_for_all(self, within_s: float = MEET_S) -> list[int]:
        """Wait for all lifelines; returns the processes that did not connect in time."""
        self._all_here.wait(within_s)
        return sorted(self._awaited)

    def say(self, process: int, what: dict[str, Any]) -> None:
        """Send a line to one process."""
        if process in self._lines:
            self._lines[process].say(what)

    def say_all(self, what: dict[str, Any]) -> None:
        """Send a line to every process that has a lifeline."""
        for line in list(self._lines.values()):
            line.say(what)

    def cut(self, process: int) -> None:
        """Give a process up: it ends itself when it notices, should it still be there."""
        if process in self._lines:
            self._lines[process].close()

    def close(self) -> None:
        """Close the port and all lifelines."""
        self._port.close()
        for line in list(self._lines.values()):
            line.close()

    def _entered(self, connection: socket.socket, process: int) -> None:
        if process not in self._others:  # a roll call: the proof was the answer
            connection.close()
            return

        number = next(self._numbers)

        def opened(line: _Line) -> None:
            with self._opening:
                # A process whose first try was answered too late comes again: its last connection counts.
                if process in self._lines and number < self._newest[process]:
                    line.close()
                    return
                if process in self._lines:
                    self._lines[process].close()
                self._lines[process], self._newest[process] = line, number
                self._awaited.discard(process)
                if not self._awaited:
                    self._port.close()
                    self._all_here.set()

        _Line(connection, process, self.heard.put, self._silence_s, opened)


class Lifeline:
    """A connection that stays, to the port of another process.

    Args:
        address: of the port.
        process: our number.
        heard: called from a thread with each line of the other process; None: it is gone.
        silence_s: as for `LivenessPort`.
        name: of the other process in messages.

    Raises:
        WorldError: the port cannot be reached.
    """

    def __init__(
        self,
        address: Address,
        process: int,
        heard: Callable[[dict[str, Any] | None], None],
        silence_s: float,
        name: str,
    ) -> None:
        deadline = time.monotonic() + MEET_S / 2
        while True:
            try:
                connection = address.connect(process, socket.gethostname(), within_s=_TRY_S)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise WorldError(
                        f"{name} cannot be reached at port {address.port} of {address.host} ({error}).",
                        cure="Hosts of one run must reach each other's ports: is there a firewall between "
                        "them?",
                    ) from None
            time.sleep(BEAT_S / 2)
        self._line = _Line(connection, 0, lambda said: heard(said[1]), silence_s)

    def say(self, what: dict[str, Any]) -> None:
        """Send a line."""
        self._line.say(what)

    def close(self) -> None:
        """Leave."""
        self._line.close()


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
