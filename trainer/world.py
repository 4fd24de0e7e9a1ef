"""Ranks and their collectives: the only importer of Horovod and, with mpi_world.py, of mpi4py.

`init()` is called once. It imports TensorFlow before anything that loads libmpi (TensorFlow exports
its own hwloc symbols: the other order ends every rank with a segmentation fault), sets what a launch
needs through the environment, and starts Horovod only where there is more than one rank. Without a
launcher the world has one rank and neither MPI nor Horovod is loaded.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from trainer import binding, failure_file, faults_of_others, launch, mpi_variables
from trainer.errors import CingulumError, WorldError
from trainer.quiet import import_tensorflow

if TYPE_CHECKING:
    from trainer.mpi_world import Links

# Longest time that MPI's own abort may take.
_ABORT_S = 10

Op = Literal["mean", "sum", "max", "min"]


class World:
    """All ranks of this run. This class is the world of one rank; `_HorovodWorld` has more.

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
        return _tensor(tensor)

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
        return _tensor(array)

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


class _HorovodWorld(World):
    """A world of several ranks, over Horovod and MPI: all processes of MPI, or those named."""

    def __init__(self, processes: Sequence[int] | None = None) -> None:
        super().__init__()
        import horovod.tensorflow as hvd

        hvd.init(comm=None if processes is None else list(processes))
        self._hvd = hvd
        self._ops = {"mean": hvd.Average, "sum": hvd.Sum, "max": hvd.Max, "min": hvd.Min}
        self.rank, self.size = hvd.rank(), hvd.size()
        self.local_rank, self.local_size = hvd.local_rank(), hvd.local_size()
        expected = launch.expected_size() if processes is None else len(processes)
        if self.size != expected:
            raise WorldError(
                f"{expected} ranks were launched, but MPI sees {self.size}.",
                cure="Launch with the mpirun of the MPI that Horovod was built with, "
                "or with `srun --mpi=pmix`. `cingulum doctor` shows both.",
            )
        self.hosts = tuple(self.allgather_object(self.host))

    def allreduce(self, tensor: Any, op: Op = "mean", *, name: str | None = None) -> Any:
        return self._hvd.allreduce(_tensor(tensor), op=self._ops[op], name=name)

    def grouped_allreduce(self, tensors: Sequence[Any], op: Op, *, name: str) -> list[Any]:
        return list(self._hvd.grouped_allreduce(list(tensors), op=self._ops[op], name=name))

    def alltoall(self, tensor: Any, *, name: str, splits: Sequence[int] | None = None) -> Any:
        if splits is None:
            return self._hvd.alltoall(tensor, name=name)
        return self._hvd.alltoall(tensor, splits=np.array(splits, np.int32), name=name)[0]

    def broadcast_tensor(self, tensor: Any, *, name: str) -> Any:
        return self._hvd.broadcast(tensor, root_rank=0, name=name)

    def allgather(self, array: Any, *, name: str | None = None) -> Any:
        return self._hvd.allgather(_tensor(array), name=name)

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        array = np.asarray(array)
        # As bytes: Horovod knows fewer types than NumPy (no bfloat16, no uint32), and bytes are exact.
        flat = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        if flat.size == 0:
            return array
        received = self._hvd.broadcast(_tensor(flat), root_rank=0, name="broadcast").numpy()
        return np.frombuffer(received.tobytes(), array.dtype).reshape(array.shape).copy()

    def allgather_object(self, value: Any) -> list[Any]:
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = self.allgather(np.array([text.size], np.int64), name="object_lengths").numpy()
        joined = self.allgather(text, name="objects").numpy().tobytes()
        ends = np.cumsum(lengths)
        return [json.loads(joined[end - n : end]) for end, n in zip(ends, lengths, strict=True)]

    def any(self, flag: bool) -> bool:
        return bool(self.allreduce(np.array([flag], np.int32), "max", name="any").numpy()[0])

    def barrier(self) -> None:
        self.any(False)

    def abort(self, exit_code: int = 1) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        # The launcher forwards our last words while we still live; after the abort it may not.
        time.sleep(0.2)
        # MPI waits for an answer of the launcher, which a host that was cut off never gets. SIGALRM ends the
        # process without asking anyone.
        signal.alarm(_ABORT_S)
        _mpi().COMM_WORLD.Abort(exit_code)
        os._exit(exit_code)

    def start_timeline(self, path: Path) -> None:
        try:
            self._hvd.start_timeline(str(path), mark_cycles=True)  # rank 0 writes, for all
        except ValueError as error:
            raise WorldError(f"There is no timeline: {error}", cure="train.ring.timeline sets it.") from None

    def shutdown(self) -> None:
        # Horovod ends MPI on all ranks as soon as the first one leaves.
        self.barrier()
        self._hvd.shutdown()


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
        from trainer import mpi_world

        _world = mpi_world.join(servers, placement, mode)
    else:
        _world = _HorovodWorld() if several else World()
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


def mpi_settings() -> dict[str, int]:
    """Open MPI's own values, read back after the start, of what `launch` sets (`launch.READ_BACK`).

    Returns:
        Such as `coll_tuned_allreduce_algorithm` (4: ring), `coll_tuned_use_dynamic_rules` and
        `mpi_yield_when_idle` (1: on), `btl_tcp_flags` (9: send, in place); a key is missing where this MPI
        has no such setting.
    """
    return mpi_variables.read(_mpi().__file__, launch.READ_BACK)


def horovods_own_optimizer(optimizer: Any) -> Any:
    """What Horovod's own wrapper makes of a Keras optimizer: for `cingulum doctor`, which shows its trap."""
    import horovod.tensorflow as hvd

    return hvd.DistributedOptimizer(optimizer)


def _end_all_ranks(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """`sys.excepthook`: an error that nothing caught on one rank ends every rank, its message first."""
    world = current()
    if isinstance(error, CingulumError):
        text, exit_code = f"error: {error}", error.exit_code
    elif isinstance(error, KeyboardInterrupt):
        text, exit_code = "interrupted", 130
    elif line := faults_of_others.said_in_a_line(error):
        text, exit_code = line, 1
    else:
        text, exit_code = "".join(traceback.format_exception(kind, error, trace)).rstrip(), 1
    kept = f"{error}" if isinstance(error, CingulumError) else f"{kind.__name__}: {error}"
    failure_file.leave(kept, kind=kind.__name__, exit_code=exit_code, name=world.name)
    report(text)
    world.abort(exit_code)


def report(text: str) -> None:
    """Write to standard error at once, every line marked with rank and host where there are several."""
    world = current()
    mark = f"[{world.name}] " if world.size > 1 or world.links is not None else ""
    sys.stderr.write("".join(f"{mark}{line}\n" for line in text.splitlines()))
    sys.stderr.flush()


def _mpi() -> Any:
    import mpi4py

    # Horovod starts and ends MPI.
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    return MPI


def _tensor(value: Any) -> Any:
    import tensorflow as tf

    return tf.convert_to_tensor(value)
