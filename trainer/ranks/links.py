"""The processes of a launch: their numbers, names and hosts, and the way to send them messages."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trainer.errors import WorldError
from trainer.ranks import meeting
from trainer.ranks.members import Mode
from trainer.ranks.messages import Mailbox, ReceivedMessage

# Longest time that MPI's own abort may take.
_ABORT_S = 10


class Links:
    """The processes of a launch, and mailboxes between them. Processes are numbered as launched, from 0.

    Args:
        mpi: the module mpi4py.MPI, started.
        comm: of all processes.
        channels: communicator of each channel, by its name.
        hosts: name of each process's host.
        workers: process of each worker, in the order of their ranks.
        servers: process of each server; empty without parameter servers.
        mode: of the servers: sync or async.

    Attributes:
        process: number of this process.
    """

    def __init__(
        self,
        mpi: Any,
        comm: Any,
        channels: Mapping[str, Any],
        *,
        hosts: tuple[str, ...],
        workers: tuple[int, ...],
        servers: tuple[int, ...] = (),
        mode: Mode = "sync",
    ) -> None:
        self._mpi, self._comm, self._channels = mpi, comm, channels
        self.process = int(comm.rank)
        self.hosts, self.workers, self.servers, self.mode = hosts, workers, servers, mode

    @property
    def server(self) -> int | None:
        """Number of the server that this process is or holds, or None."""
        return self.servers.index(self.process) if self.process in self.servers else None

    @property
    def one_host(self) -> bool:
        """Whether all processes share a host."""
        return len(set(self.hosts)) == 1

    def name_of_server(self, number: int) -> str:
        """Return a name such as 'server 0 @ node03'."""
        return f"server {number} @ {self.hosts[self.servers[number]]}"

    def name_of_worker(self, number: int) -> str:
        """Return a name such as 'rank 1 @ node02'."""
        return f"rank {number} @ {self.hosts[self.workers[number]]}"

    def name_of(self, process: int) -> str:
        """Return the worker's name, or the server's for a process that only serves."""
        if process in self.workers:
            return self.name_of_worker(self.workers.index(process))
        return self.name_of_server(self.servers.index(process))

    def separate_servers(self) -> list[str]:
        """Return lines, read by jobs/supervisor/blame.py: "rank 2 as launched is server 0 @ node03"."""
        return [
            f"rank {process} as launched is {self.name_of_server(number)}"
            for number, process in enumerate(self.servers)
            if process not in self.workers
        ]

    def mailbox(
        self,
        channel: str,
        *,
        says: str | None = None,
        listens: bool = True,
        buffer: Callable[[int, int, int], np.ndarray] | None = None,
        arrived: Callable[[ReceivedMessage], bool] | None = None,
        counted: Callable[[int], bool] | None = None,
    ) -> Mailbox:
        """Open a mailbox; no collective. At most one mailbox of a process hears a channel at a time.

        Args:
            channel: that it hears; one of `Members.channels`.
            says: channel that it sends on; default: the same.
            listens: look for messages all the time; else only for those announced by `Mailbox.expect`.
            buffer: called in the mailbox's thread with source, tag and bytes of a message that has begun to
                arrive; returns the contiguous array to put it into. Default: a new uint8 array.
            arrived: called in the mailbox's thread with a complete message; returns whether it is done with.
                If not, and by default, `Mailbox.wait` or `next` returns it. Must return quickly.
            counted: whether messages with a tag count in `sent` and `received`; default: all do.
        """
        return Mailbox(self._mpi, self._channels, channel, says or channel, listens, buffer, arrived, counted)

    def address(self, channel: str) -> int:
        """Return where MPI's handle of a channel lies in memory, for compiled code; no mailbox may hear."""
        return int(self._mpi._addressof(self._channels[channel]))

    def allgather_object(self, value: Any) -> list[Any]:
        """Return every process's value, which must survive JSON, by its number; a collective of all."""
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = np.zeros(len(self.hosts), np.int64)
        self._comm.Allgather(np.array([text.size], np.int64), lengths)
        joined = np.zeros(int(lengths.sum()), np.uint8)
        self._comm.Allgatherv(text, [joined, lengths])
        ends = np.cumsum(lengths)
        return [json.loads(joined[end - n : end].tobytes()) for end, n in zip(ends, lengths, strict=True)]

    def announce(self, value: Any) -> None:
        """Send a value, which must survive JSON, to all other processes; returns at once."""
        others = (process for process in range(len(self.hosts)) if process != self.process)
        meeting.tell(self._comm, others, value)

    def announced(self, process: int, what: str, within_s: float) -> Any:
        """Return what another process has announced, waiting for it no longer than `within_s` seconds.

        Args:
            process: its number.
            what: name of the value in messages.
            within_s: seconds to wait.

        Raises:
            WorldError: it has announced nothing by then.
        """
        values = meeting.hear(self._mpi, self._comm, [process], within_s)
        if not values:
            raise WorldError(
                f"{self.name_of(process)} (process {process}) has not sent {what} within {within_s:.0f} s.",
                cure=meeting.CURE,
            )
        return values[process]

    def abort(self, exit_code: int) -> None:
        """End all processes of the launch."""
        abort(self._mpi, exit_code)


def abort(mpi: Any, exit_code: int) -> None:
    """Let MPI end all processes of the launch."""
    # MPI waits for an answer of the launcher, which a host that was cut off never gets. SIGALRM ends the
    # process without asking anyone.
    signal.alarm(_ABORT_S)
    mpi.COMM_WORLD.Abort(exit_code)
