"""Which ranks still answer: asked over connections of our own when a collective hangs.

MPI cannot say who is missing: all ranks that are left wait for each other. So every rank opens a port, tells
the others its number at the start, and a thread answers whoever knows the run's secret
(trainer/ranks/guarded_port.py: its proof is the answer). A stopped process, a host without power and a cut
link do not answer, and are named by those who ask.
"""

from __future__ import annotations

import concurrent.futures
import secrets
import socket
from collections.abc import Sequence

from trainer.ranks.guarded_port import SECRET_BYTES, GuardedPort, enter
from trainer.ranks.interfaces import EVERY, listening_address
from trainer.ranks.world import World

ANSWER_S = 2.0
_AT_ONCE = 64


class RollCall:
    """Answers other ranks from its making to `close`, and asks them. Making one is a collective.

    Args:
        world: all ranks. In a world of one rank nothing is opened.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._port: GuardedPort | None = None
        self._places: list[tuple[str, int]] = []
        self._answering: set[int] = set()
        if world.size == 1:
            return
        self._secret = bytes.fromhex(world.broadcast_object(secrets.token_hex(SECRET_BYTES)))
        address = listening_address(world.hosts, world.host)
        self._port = GuardedPort(address, self._secret, _hang_up, name="rollcall")
        places = world.allgather_object([address, self._port.port])
        self._places = [(self._name_of(rank, given), port) for rank, (given, port) in enumerate(places)]
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
        if self._port is not None:
            self._port.close()

    def _name_of(self, rank: int, address: str) -> str:
        if address != EVERY:
            return address
        world = self._world
        return "localhost" if world.hosts[rank] == world.host else world.hosts[rank]

    def _ask(self, rank: int) -> str:
        """'here', 'gone' (no process is there, or its name cannot be looked up) or 'silent'."""
        try:
            enter(self._places[rank], self._secret, self._world.rank, within_s=ANSWER_S).close()
        except (socket.gaierror, ConnectionError):
            return "gone"
        except OSError:  # timed out, no route to the host, the network is down
            return "silent"
        return "here"


def _hang_up(connection: socket.socket, rank: int) -> None:
    connection.close()


def _partner(hosts: Sequence[str], rank: int) -> int:
    """Whom a rank tries to reach at the start: the next one on another host; firewalls lie between hosts."""
    others = [(rank + step) % len(hosts) for step in range(1, len(hosts))]
    return next((other for other in others if hosts[other] != hosts[rank]), others[0])
