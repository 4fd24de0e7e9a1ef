"""Which ranks still answer: asked over connections of our own when a collective hangs.

MPI cannot say who is missing: all ranks that are left wait for each other. So every rank opens a port, tells
the others its number at the start, and a thread answers whoever knows the run's secret. A stopped process, a
host without power and a cut link do not answer, and are named by those who ask.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Sequence

from trainer.world import World

ANSWER_S = 2.0
_SECRET_BYTES = 16
_AT_ONCE = 64
_AGAIN_S = 0.1


class RollCall:
    """Answers other ranks from its making to `close`, and asks them. Making one is a collective.

    Args:
        world: all ranks. In a world of one rank nothing is opened.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._listening: socket.socket | None = None
        self._closed = threading.Event()
        self._ports: list[int] = []
        self._answering: set[int] = set()
        if world.size == 1:
            return
        self._secret = bytes.fromhex(world.broadcast_object(secrets.token_hex(_SECRET_BYTES)))
        self._listening = socket.create_server(("", 0), backlog=_AT_ONCE)
        self._ports = world.allgather_object(self._listening.getsockname()[1])
        threading.Thread(target=self._answer, args=(self._listening,), name="rollcall", daemon=True).start()
        # A host that another cannot reach even now (a firewall, a name without an address) is never accused;
        # ranks of one host reach each other.
        heard = world.allgather_object(self._ask(_partner(world.hosts, world.rank)) == "here")
        asked = [world.hosts[_partner(world.hosts, rank)] for rank in range(world.size)]
        deaf = {host for host, answered in zip(asked, heard, strict=True) if not answered}
        self._answering = {r for r, host in enumerate(world.hosts) if host == world.host or host not in deaf}

    def missing(self, within_s: float = 2 * ANSWER_S) -> list[str]:
        """Ranks that answered at the start and are silent now, such as "rank 2 @ n3"; within `within_s`.

        A rank whose process has ended refuses the connection at once. It is not named: it may have ended
        because it noticed the same fault, and the launcher knows how a process ended.
        """
        others = sorted(self._answering - {self._world.rank})
        pool = concurrent.futures.ThreadPoolExecutor(_AT_ONCE)
        asked = {rank: pool.submit(self._ask, rank) for rank in others}
        concurrent.futures.wait(asked.values(), timeout=within_s)
        pool.shutdown(wait=False, cancel_futures=True)
        silent = [rank for rank, answer in asked.items() if answer.done() and answer.result() == "silent"]
        return [self._world.name_of(rank) for rank in silent]

    def close(self) -> None:
        """Answer no longer."""
        self._closed.set()
        if self._listening is not None:
            # Closing it would not wake the thread, which would take one more call. It closes it itself.
            with contextlib.suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)

    def _answer(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                if self._closed.wait(_AGAIN_S):
                    listening.close()
                    return
                continue  # such as too many open files: the next one is answered
            with connection:
                try:
                    connection.settimeout(ANSWER_S)
                    if hmac.compare_digest(connection.recv(_SECRET_BYTES, socket.MSG_WAITALL), self._secret):
                        connection.sendall(b"here")
                except OSError:  # who asked has gone, or says nothing
                    continue

    def _ask(self, rank: int) -> str:
        """'here', 'gone' (no process is there, or its name cannot be looked up) or 'silent'."""
        world = self._world
        host = "localhost" if world.hosts[rank] == world.host else world.hosts[rank]
        deadline = time.monotonic() + ANSWER_S
        try:
            with socket.create_connection((host, self._ports[rank]), timeout=ANSWER_S) as connection:
                connection.settimeout(max(0.1, deadline - time.monotonic()))
                connection.sendall(self._secret)
                return "here" if connection.recv(4, socket.MSG_WAITALL) == b"here" else "gone"
        except (socket.gaierror, ConnectionError):
            return "gone"
        except OSError:  # timed out, no route to the host, the network is down
            return "silent"


def _partner(hosts: Sequence[str], rank: int) -> int:
    """Whom a rank tries to reach at the start: the next one on another host; firewalls lie between hosts."""
    others = [(rank + step) % len(hosts) for step in range(1, len(hosts))]
    return next((other for other in others if hosts[other] != hosts[rank]), others[0])
