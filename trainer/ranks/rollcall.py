"""Which ranks still answer: asked when a collective hangs, each over its port beside MPI (liveness.py)."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import errno
import socket
from collections.abc import Sequence

from trainer.ranks.liveness import Address, LivenessPort
from trainer.ranks.world import World

ANSWER_S = 2.0
_AT_ONCE = 64
_OUR_OWN = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})


class RollCall:
    """Answers other ranks from its making to `close`, and asks them. Making one is a collective.

    Args:
        world: all ranks. In a world of one rank nothing is opened.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._port: LivenessPort | None = None
        self._addresses: list[Address] = []
        self._answering: set[int] = set()
        if world.size == 1:
            return
        self._port = LivenessPort(world.hosts, world.host)
        everyones = world.allgather_object(dataclasses.asdict(self._port.address))
        self._addresses = [Address(**fields) for fields in everyones]
        # A host that another cannot reach even now (a firewall, a name without an address) is never accused;
        # ranks of one host reach each other.
        heard = world.allgather_object(self._ask(_partner(world.hosts, world.rank)) == "here")
        asked = [world.hosts[_partner(world.hosts, rank)] for rank in range(world.size)]
        deaf = {host for host, answered in zip(asked, heard, strict=True) if not answered}
        self._answering = {r for r, host in enumerate(world.hosts) if host == world.host or host not in deaf}

    def missing(self, within_s: float = 2 * ANSWER_S) -> list[str]:
        """Return ranks that answered at the start and are silent now, such as "rank 2 @ n3".

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

    def _ask(self, rank: int) -> str:
        """Return 'here', 'gone' (no process is there, or its name cannot be looked up), 'silent' or 'unasked'
        (this process lacks what it takes to ask, such as a file descriptor).
        """
        world = self._world
        try:
            # One place only: several would take longer than a rank has for its answer.
            self._addresses[rank].connect(world.rank, world.host, within_s=ANSWER_S, tries=1).close()
        except (socket.gaierror, ConnectionError):
            return "gone"
        except OSError as error:  # timed out, no route to the host, the network is down
            return "unasked" if error.errno in _OUR_OWN else "silent"
        return "here"


def _partner(hosts: Sequence[str], rank: int) -> int:
    """Return the rank that a rank tries to reach at the start: the next one on another host."""
    others = [(rank + step) % len(hosts) for step in range(1, len(hosts))]
    return next((other for other in others if hosts[other] != hosts[rank]), others[0])
