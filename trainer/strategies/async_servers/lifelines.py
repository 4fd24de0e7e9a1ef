"""Who is still there: a TCP connection from every process to server 0, beside MPI.

MPI cannot say that a process is gone: a message to it is never delivered, and nobody is told. The kernel
closes the connections of a process that was killed, at once. A host without power, a cut link and a stopped
process say nothing, and are given up after `silence_s`. Lines of JSON go both ways: a sign of life every
second, and what a process has to say outside its work (a request to stop, an error, the end). First of all
each side proves that it belongs to the run: trainer/ranks/guarded_port.py.
"""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from trainer.errors import WorldError
from trainer.ranks.guarded_port import SECRET_BYTES, GuardedPort, enter
from trainer.ranks.interfaces import EVERY, LOOPBACK, interface_addresses

BEAT_S = 1.0
MEET_S = 60.0
# One try to connect; two are made at least.
_TRY_S = 10.0

# What `Hub` and `Lifeline` tell: the other process and what it said; None: it is gone.
Said = tuple[int, dict[str, Any] | None]


class _Line:
    """One connection: beats, hears lines, and notices its end. `told` is called from its threads."""

    def __init__(
        self, connection: socket.socket, other: int, told: Callable[[Said], None], silence_s: float
    ) -> None:
        self._connection, self._other, self._told = connection, other, told
        self._sending = threading.Lock()
        self._ended = threading.Event()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(silence_s)
        for work in (self._hear, self._beat):
            threading.Thread(target=work, name=f"lifeline-{other}", daemon=True).start()

    def say(self, what: dict[str, Any]) -> None:
        """Send a line; to one who is gone, nothing."""
        with contextlib.suppress(OSError), self._sending:
            self._connection.sendall(json.dumps(what).encode() + b"\n")

    def close(self) -> None:
        """Tell no more, and let the other side notice."""
        self._ended.set()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            self.say({})

    def _hear(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._connection.makefile("rb") as lines:
            for line in lines:
                said = json.loads(line)
                if said:
                    self._told((self._other, said))
        if not self._ended.is_set():
            self._ended.set()
            self._told((self._other, None))
        with contextlib.suppress(OSError):
            self._connection.close()


class Hub:
    """Server 0's end of all lifelines. Its port is closed when every process has connected.

    Args:
        others: numbers of all other processes.
        silence_s: without a sign for so long, a process is given up; it ends when it notices.
        listen_at: address of this host at which they reach it (`interfaces.listening_address`).

    Attributes:
        address: what `Lifeline` needs: names and addresses of this host, port and secret; JSON.
        heard: `Said` of the others, as it comes.
    """

    def __init__(self, others: Sequence[int], silence_s: float, listen_at: str = LOOPBACK) -> None:
        self.heard: queue.SimpleQueue[Said] = queue.SimpleQueue()
        self._silence_s = silence_s
        self._lines: dict[int, _Line] = {}
        self._others, self._awaited = set(others), set(others)
        self._all_here = threading.Event()
        secret = secrets.token_bytes(SECRET_BYTES)
        self._port = GuardedPort(listen_at, secret, self._connected, name="lifelines")
        self.address = {
            "hosts": [socket.gethostname(), *_addresses()] if listen_at == EVERY else [listen_at],
            "port": self._port.port,
            "secret": secret.hex(),
        }

    def wait_for_all(self, within_s: float = MEET_S) -> list[int]:
        """Wait until every process has connected; returns those that have not come in time."""
        self._all_here.wait(within_s)
        return sorted(self._awaited)

    def say(self, process: int, what: dict[str, Any]) -> None:
        """Tell one process something."""
        if process in self._lines:
            self._lines[process].say(what)

    def say_all(self, what: dict[str, Any]) -> None:
        """Tell every process something."""
        for line in list(self._lines.values()):
            line.say(what)

    def cut(self, process: int) -> None:
        """Give a process up: it ends itself when it notices, should it still be there."""
        if process in self._lines:
            self._lines[process].close()

    def close(self) -> None:
        """Leave."""
        self._port.close()
        for line in list(self._lines.values()):
            line.close()

    def _connected(self, connection: socket.socket, process: int) -> None:
        if process not in self._others:
            connection.close()
            return
        # A process whose first try was answered too late comes again, and hears its last connection only.
        if process in self._lines:
            self._lines.pop(process).close()
        self._lines[process] = _Line(connection, process, self.heard.put, self._silence_s)
        self._awaited.discard(process)
        if not self._awaited:
            self._port.close()
            self._all_here.set()


class Lifeline:
    """Another process's connection to server 0.

    Args:
        address: of `Hub`.
        process: our number.
        told: called from a thread with what server 0 says; None: it is gone.
        silence_s: as for `Hub`.

    Raises:
        WorldError: server 0 cannot be reached.
    """

    def __init__(
        self,
        address: dict[str, Any],
        process: int,
        told: Callable[[dict[str, Any] | None], None],
        silence_s: float,
    ) -> None:
        connection = _connected(address, process)
        self._line = _Line(connection, 0, lambda said: told(said[1]), silence_s)

    def say(self, what: dict[str, Any]) -> None:
        """Tell server 0 something."""
        self._line.say(what)

    def close(self) -> None:
        """Leave."""
        self._line.close()


def _connected(address: dict[str, Any], process: int) -> socket.socket:
    hosts, secret = list(address["hosts"]), bytes.fromhex(address["secret"])
    if hosts[0] == socket.gethostname():
        hosts.insert(0, "localhost")
    deadline, problem = time.monotonic() + MEET_S / 2, "no address"
    while True:
        for host in hosts:
            try:
                return enter((host, address["port"]), secret, process, within_s=_TRY_S)
            except OSError as error:
                problem = f"{host}: {error}"
        if time.monotonic() > deadline:
            raise WorldError(
                f"Server 0 cannot be reached at port {address['port']} ({problem}).",
                cure="Hosts of one run must reach each other's ports: is there a firewall between them?",
            )
        time.sleep(BEAT_S / 2)


def _addresses() -> list[str]:
    return [address for found in interface_addresses().values() for address in found]
