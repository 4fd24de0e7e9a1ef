"""Ranks and their collectives; only horovod_world.py and mpi_world.py ask Horovod or MPI anything.

`init()` is called once. It imports TensorFlow before anything that loads libmpi (TensorFlow exports
its own hwloc symbols: the other order ends every rank with a segmentation fault), sets what a launch
needs through the environment, and starts Horovod only where there is more than one rank. Without a
launcher the world has one rank and neither MPI nor Horovod is loaded.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from trainer.errors import CingulumError, WorldError
from trainer.quiet import import_tensorflow
from trainer.ranks import binding, failure_file, launch

if TYPE_CHECKING:
    from trainer.ranks.mpi_world import Links

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
        links: to parameter servers and their workers, where there are such.
    """

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    links: Links | None = None

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self.hosts: tuple[str, ...] = (self.host,)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """Of this process in messages, such as 'rank 1 @ node02'."""
        return self.name_of(self.rank)

    def name_of(self, rank: int) -> str:
        """Of another process of this world in messages."""
        return f"rank {rank} @ {self.hosts[rank]}"

    @property
    def is_server(self) -> bool:
        """Whether this process is a parameter server and no rank."""
        return False

    def allreduce(self, tensor: Any, op: Op = "mean", *, name: str | None = None) -> Any:
        """Combine a tensor or array of the same shape and dtype over all ranks; returns a tensor."""
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
        """Rank 0's tensor, on every rank, also in a compiled step; shape and dtype as everywhere."""
        return tensor

    def allgather(self, array: Any, *, name: str | None = None) -> Any:
        """Concatenate the ranks' tensors along axis 0, whose length may differ; returns a tensor."""
        return as_tensor(array)

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        """Rank 0's array, on every rank. Shape and dtype must be the same everywhere."""
        return np.asarray(array)

    def allgather_object(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order. Values must survive JSON (no pickle crosses the wire)."""
        return [json.loads(json.dumps(value))]

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's value, on every rank. It must survive JSON."""
        return self.allgather_object(value)[0]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on at least one rank: how ranks agree to stop."""
        return bool(flag)

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def abort(self, exit_code: int = 1) -> NoReturn:
        """End this rank and all others at once, after what was printed has been written out."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)

    def start_timeline(self, path: Path) -> None:
        """Let Horovod write each collective to a file (Chrome trace); HOROVOD_TIMELINE must be DYNAMIC."""

    def shutdown(self) -> None:
        """Leave the world in good order; nothing may be reduced afterwards."""


_world: World | None = None


def init(
    threads: int | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    servers: int = 0,
    placement: Literal["separate", "colocated"] = "separate",
    mode: Literal["sync", "async"] = "sync",
) -> World:
    """Find out who takes part; call it before anything is computed. Calling it again changes nothing.

    Args:
        threads: compute threads of this rank. Default: the host's cores divided by its ranks, and for a
            world of one rank whatever TensorFlow chooses.
        environment: what MPI and Horovod shall read at their start (`launch.ring_environment`); it wins over
            variables of the site, which win over our defaults.
        servers: parameter servers; 0 for none.
        placement: `separate`: the last processes serve and are no ranks of the world; `colocated`: the first
            ranks serve as well.
        mode: of the servers. Where it is `async`, every worker is a world of one rank.

    Raises:
        ConfigError: too few processes for so many servers.
        WorldError: the launch does not form one world, or TensorFlow has started with other threads.
    """
    global _world
    if _world is not None:
        return _world
    several = launch.expected_size() > 1
    if several or servers:
        launch.apply_settings(environment)
    if threads is None and (several or servers):
        threads = launch.threads_per_rank(local_size=launch.local_size())
    if threads is not None:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    tf = import_tensorflow()  # before Horovod: see the top of this file

    if threads is not None:
        launch.limit_threads(tf, threads, serves=servers > 0 and placement == "colocated")
        binding.keep_to_own_cores(tf, threads=threads, place=launch.unbound_place())
    if servers:
        from trainer.ranks import mpi_world

        _world = mpi_world.join(servers, placement, mode)
    elif several:
        from trainer.ranks.horovod_world import HorovodWorld

        _world = HorovodWorld()
    else:
        _world = World()
    if several:
        if not _world.is_server:
            launch.pin_gpu(tf, _world.local_rank)
        sys.excepthook = _end_all_ranks
    return _world


def current() -> World:
    """The world that `init` found.

    Raises:
        WorldError: `init` was not called.
    """
    if _world is None:
        raise WorldError("The world is not known yet.", cure="Call trainer.init() first.")
    return _world


def _end_all_ranks(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """`sys.excepthook`: an error that nothing caught on one rank ends every rank, its message first."""
    world = current()
    if isinstance(error, CingulumError):
        text, exit_code = f"error: {error}", error.exit_code
    elif isinstance(error, KeyboardInterrupt):
        text, exit_code = "interrupted", 130
    elif line := fault_of_another(error):
        text, exit_code = line, 1
    else:
        text, exit_code = "".join(traceback.format_exception(kind, error, trace)).rstrip(), 1
    kept = f"{error}" if isinstance(error, CingulumError) else f"{kind.__name__}: {error}"
    failure_file.leave(kept, kind=kind.__name__, exit_code=exit_code, name=world.name)
    report(text)
    world.abort(exit_code)


def fault_of_another(error: BaseException) -> str | None:
    """What to say in place of a traceback where an error comes of another rank's end; None: it is our own."""
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
    """A number, array or tensor as a tensor."""
    import tensorflow as tf

    return tf.convert_to_tensor(value)
