"""Ranks and their collectives, and which of them this process is; starting.py finds that out."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from trainer.errors import WorldError
from trainer.ranks.links import Links

# The launcher forwards our last words while we still live; after an abort of MPI it may not.
LAST_WORDS_S = 0.2

# What Horovod says in every collective that was waiting when a rank called `shutdown` or ended by itself.
_LEFT = ("Horovod has been shut down", "HorovodInternalError")

Op = Literal["mean", "sum", "max", "min"]


class World:
    """All ranks of this run. This class is the world of one rank; `HorovodWorld` has more.

    Attributes:
        rank: number of this process, from 0.
        size: number of ranks (the world size).
        local_rank: number of this process among those of its host.
        local_size: number of ranks on this host.
        host: name of this host.
        hosts: name of each rank's host, in rank order.
        is_server: whether this process is a parameter server and no rank.
        links: to all processes of the launch, where they send each other messages: with parameter servers,
            or where the strategy asked for it (`Members.messages`). None in a launch of one process.
    """

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    is_server = False
    links: Links | None = None

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self.hosts: tuple[str, ...] = (self.host,)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files."""
        return self.rank == 0 and not self.is_server

    @property
    def name(self) -> str:
        """Return the name of this process in messages, such as 'rank 1 @ node02' or 'server 0 @ node03'."""
        if self.is_server and self.links is not None:
            return self.links.name_of(self.links.process)
        return self.name_of(self.rank)

    def name_of(self, rank: int) -> str:
        """Return the name of a rank in messages."""
        return f"rank {rank} @ {self.hosts[rank]}"

    def group(self, ranks: Sequence[int]) -> World | None:
        """Return the world of some ranks, numbered from 0 in the order given; a collective of all ranks.

        All ranks call it for the same groups in the same order, also those that are in none of them.

        Args:
            ranks: ascending.

        Returns:
            The group, or None on a rank that is not in it. The group of all ranks is this world.

        Raises:
            ValueError: no such ranks, or not ascending.
            WorldError: the world was started without `Members(groups=True)`.
        """
        if not ranks or list(ranks) != sorted(set(ranks)) or ranks[0] < 0 or ranks[-1] >= self.size:
            raise ValueError(f"a group must be ascending ranks below {self.size}, not {list(ranks)}")
        return self

    def allreduce(
        self, tensor: Any, op: Op = "mean", *, name: str | None = None, unscoped: bool = False
    ) -> Any:
        """Combine a tensor or array of the same shape and dtype over all ranks; returns a tensor.

        `unscoped`: the name is taken as it is, where graphs of ranks are not alike.
        """
        return as_tensor(tensor)

    def grouped_allreduce(self, tensors: Sequence[Any], op: Op, *, name: str) -> list[Any]:
        """Combine several tensors at once: they leave together when the last one is ready."""
        return list(tensors)

    def alltoall(self, tensor: Any, *, name: str, splits: Sequence[int] | None = None) -> Any:
        """Send the r-th part of axis 0 to rank r; returns the parts received, in rank order.

        `splits` are the lengths of the parts; default: all alike.
        """
        return tensor

    def broadcast_tensor(self, tensor: Any, *, name: str) -> Any:
        """Return rank 0's tensor on every rank, also in a compiled step; shape and dtype as everywhere."""
        return tensor

    def allgather(self, array: Any, *, name: str | None = None) -> Any:
        """Concatenate the ranks' tensors along axis 0, whose length may differ; returns a tensor."""
        return as_tensor(array)

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        """Return rank 0's array on every rank. Shape and dtype must be the same everywhere."""
        return np.asarray(array)

    def allgather_object(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order. Values must survive JSON (no pickle is sent)."""
        return [json.loads(json.dumps(value))]

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's value on every rank. It must survive JSON."""
        return self.allgather_object(value)[0]

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on at least one rank: how ranks agree to stop."""
        return bool(flag)

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def abort(self, exit_code: int = 1) -> NoReturn:
        """End this rank and all others at once, after what was printed has been written out."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._end_others(exit_code)
        os._exit(exit_code)

    def _end_others(self, exit_code: int) -> None:
        if self.links is not None:
            time.sleep(LAST_WORDS_S)
            self.links.abort(exit_code)

    def start_timeline(self, path: Path) -> None:
        """Let Horovod write each collective to a file (Chrome trace); HOROVOD_TIMELINE must be DYNAMIC."""

    def shutdown(self) -> None:
        """End Horovod on all ranks; nothing may be reduced afterwards."""


_world: World | None = None


def enter(world: World) -> None:
    """Make a world the one of this process; `starting.init` does."""
    global _world
    _world = world


def is_known() -> bool:
    """Return whether this process is in a world yet."""
    return _world is not None


def current() -> World:
    """Return the world of this process.

    Raises:
        WorldError: `init` was not called.
    """
    if _world is None:
        raise WorldError("The world is not known yet.", cure="Call trainer.init() first.")
    return _world


def named(ranks: Sequence[int]) -> str:
    """Return 'rank 2', or 'ranks 2, 5', of at least one."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def fault_of_another(error: BaseException) -> str | None:
    """Return the message for an error that comes from another rank's end; None for an error of our own."""
    if not any(mark in f"{type(error).__name__}: {error}" for mark in _LEFT):
        return None
    return (
        "error: another rank left the run while this one was waiting for it in a collective. "
        "Its own message, or the launcher's, says why."
    )


def report(text: str) -> None:
    """Write to standard error at once, every line marked with rank and host where there are several."""
    world = current()
    mark = f"[{world.name}] " if world.size > 1 or world.links is not None else ""
    sys.stderr.write("".join(f"{mark}{line}\n" for line in text.splitlines()))
    sys.stderr.flush()


def as_tensor(value: Any) -> Any:
    """Convert a number, array or tensor to a tensor."""
    import tensorflow as tf

    return tf.convert_to_tensor(value)
