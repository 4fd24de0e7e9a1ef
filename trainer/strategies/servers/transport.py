"""Messages between workers and servers, moved by a thread of their own.

A message is a one-dimensional array and a tag: see `Tag`. The thread makes all
calls of MPI: it looks for messages (`MPI_Improbe`), asks the `Mailbox`'s owner for a buffer, and tells it
when the message is complete. It never waits inside MPI, which would take a core from those that compute:
between two looks it sleeps, the longer the less happens.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from trainer.ranks.mpi_world import Links

# Sleep between two looks, from when something has just happened to when nothing has for a while. At 1 Gbit/s
# a link carries 25 kB in the shortest: the kernel's buffers hold that.
_SHORTEST_S = 0.0002
_LONGEST_S = 0.002
_GROWTH = 1.3
_CLOSING_S = 10.0


class Tag:
    """Kinds of messages. A tag is a kind and the number of a bundle: `tag = Tag.of(Tag.WEIGHTS, 3)`."""

    ORDER = 1  # worker 0 -> server: uint8, JSON: what to do next
    REPLY = 2  # server -> worker 0: uint8, JSON
    NORM = 3  # server -> server: float64, (1,)
    STATE = 4  # uint8: everything a server holds of a bundle, in either direction
    GRADIENTS = 5  # worker -> server: a bundle's gradients
    WEIGHTS = 6  # server -> worker: a bundle's weights
    FREE = 7  # from here on: of the asynchronous strategy

    @staticmethod
    def of(kind: int, number: int = 0) -> int:
        """The tag of a kind of message about bundle `number`."""
        return kind << 16 | number

    @staticmethod
    def parts(tag: int) -> tuple[int, int]:
        """Kind and number of a tag."""
        return tag >> 16, tag & 0xFFFF


class Mailbox:
    """Sends and receives for one worker or one server of this process.

    Args:
        links: of the world.
        serves: whether this is a server's, which hears what workers say; else the other way round.
        buffer: called in the mailbox's thread with source, tag and bytes of a message that has begun to
            arrive; gives the array to put it into.
        arrived: called in the mailbox's thread with source, tag and that array, once it is complete. Must
            return quickly.
        failed: called in the mailbox's thread with what went wrong, which ends the thread.

    Attributes:
        sent: bytes of gradients and weights (and of `Tag.FREE`) sent to other processes so far.
        received: the same, received from other processes.
    """

    def __init__(
        self,
        links: Links,
        *,
        serves: bool,
        buffer: Callable[[int, int, int], np.ndarray],
        arrived: Callable[[int, int, np.ndarray], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.sent = 0
        self.received = 0
        self._links = links
        self._buffer, self._arrived, self._failed = buffer, arrived, failed
        self._hears = links.to_servers if serves else links.to_workers
        self._says = links.to_workers if serves else links.to_servers
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._awaited = 0
        self._counting = threading.Lock()
        self._closing = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mailbox", daemon=True)
        self._listens = serves
        self._thread.start()

    def send(
        self,
        process: int,
        tag: int,
        array: np.ndarray,
        done: Callable[[], None] | None = None,
        *,
        to_server: bool = False,
    ) -> None:
        """Send an array, which must not change until `done` is called (in the mailbox's thread).

        Args:
            process: of MPI's world.
            tag: see `Tag`.
            array: one-dimensional, contiguous.
            done: called when the array may be used again.
            to_server: of a server: the receiver is a server, too.
        """
        self._outgoing.put((process, tag, array, done, to_server))
        self._wake.set()

    def expect(self, messages: int) -> None:
        """Look for so many messages; a worker's mailbox looks for none that was not announced."""
        with self._counting:
            self._awaited += messages
        self._wake.set()

    def close(self) -> None:
        """Send what is left to send (10 s at most) and end the thread."""
        self._closing = True
        self._wake.set()
        self._thread.join(_CLOSING_S)

    def _run(self) -> None:
        try:
            self._move()
        except BaseException as error:
            self._failed(error)

    def _move(self) -> None:
        moving: list[Any] = []
        after: list[Callable[[], None]] = []
        pause = _SHORTEST_S
        status = self._links.MPI.Status()
        Testsome = self._links.MPI.Request.Testsome
        while True:
            busy = self._start_sending(moving, after)
            while (self._listens or self._awaited > 0) and self._start_receiving(status, moving, after):
                busy = True
            done = sorted(Testsome(moving) or ()) if moving else ()
            for position in done:
                after[position]()
            for position in reversed(done):
                del moving[position], after[position]
            busy = busy or bool(done)
            if self._closing and not moving and self._outgoing.empty():
                return
            if busy:
                pause = _SHORTEST_S
                continue
            if not moving and not self._listens and self._awaited <= 0:
                self._wake.wait()
            else:
                self._wake.wait(pause)
                pause = min(pause * _GROWTH, _LONGEST_S)
            self._wake.clear()

    def _start_sending(self, moving: list[Any], after: list[Callable[[], None]]) -> bool:
        busy = False
        while True:
            try:
                process, tag, array, done, to_server = self._outgoing.get_nowait()
            except queue.Empty:
                return busy
            comm = self._links.to_servers if to_server else self._says
            moving.append(comm.Isend(_bytes(array), process, tag))
            after.append(_kept(array, done))
            if self._counts(process, tag):
                self.sent += array.nbytes
            busy = True

    def _start_receiving(self, status: Any, moving: list[Any], after: list[Callable[[], None]]) -> bool:
        message = self._hears.Improbe(status=status)
        if message is None:
            return False
        source, tag = status.Get_source(), status.Get_tag()
        size = status.Get_count(self._links.MPI.BYTE)
        array = self._buffer(source, tag, size)
        with self._counting:
            self._awaited -= 1
        moving.append(message.Irecv(_bytes(array)))

        def complete() -> None:
            if self._counts(source, tag):
                self.received += size
            self._arrived(source, tag, array)

        after.append(complete)
        return True

    def _counts(self, process: int, tag: int) -> bool:
        return process != self._links.process and Tag.parts(tag)[0] >= Tag.GRADIENTS


def _kept(array: np.ndarray, done: Callable[[], None] | None) -> Callable[[], None]:
    """Holds the array until it has left."""

    def left(array: np.ndarray = array) -> None:
        if done is not None:
            done()

    return left


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8)
