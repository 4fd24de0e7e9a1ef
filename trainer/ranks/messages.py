"""Messages between any two processes of a launch, on named channels.

A message is a NumPy array and a tag. A `Mailbox` has a thread of its own that makes all calls of MPI: it
looks for messages (`MPI_Improbe`), gets a buffer for each, and delivers it when it is complete. It never
waits inside MPI, which would take a core from those that compute: between two looks it sleeps, the longer
the less happens.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# Sleep between two looks, from when something has just happened to when nothing has for a while. At 1 Gbit/s
# a link carries 25 kB in the shortest: the kernel's buffers hold that.
_SHORTEST_S = 0.0002
_LONGEST_S = 0.002
_GROWTH = 1.3
_CLOSING_S = 10.0
# MPI counts the bytes of a message in 32 bits.
MOST_BYTES = 2**31 - 1


@dataclass(frozen=True)
class ReceivedMessage:
    """A message that is complete: the process that sent it, its tag, and the buffer that it lies in."""

    source: int
    tag: int
    array: np.ndarray


class Mailbox:
    """Sends and receives messages; made by `Links.mailbox`. Any thread may call its methods.

    Messages of one sender and one tag are delivered in the order in which they were sent.

    Attributes:
        sent: bytes handed to MPI so far, by the receiver's number.
        received: bytes of complete messages so far, by the sender's number.
        failure: what ended the thread, or None.
    """

    def __init__(
        self,
        mpi: Any,
        channels: Mapping[str, Any],
        hears: str,
        says: str,
        listens: bool,
        buffer: Callable[[int, int, int], np.ndarray] | None,
        arrived: Callable[[ReceivedMessage], bool] | None,
        counted: Callable[[int], bool] | None,
    ) -> None:
        self._mpi, self._channels, self._hears = mpi, channels, channels[hears]
        self._process, processes = self._hears.rank, self._hears.size
        self.sent, self.received = [0] * processes, [0] * processes
        self.failure: BaseException | None = None
        self._says, self._listens = says, listens
        self._buffer, self._arrived, self._counted = buffer, arrived, counted
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._delivered: queue.SimpleQueue[ReceivedMessage | BaseException] = queue.SimpleQueue()
        # Of each sender and tag, messages that are arriving: a later one may be complete before an earlier.
        self._arriving: dict[tuple[int, int], deque[_Arriving]] = {}
        self._awaited = 0
        self._counting = threading.Lock()
        self._moving: list[Any] = []
        self._after: list[Callable[[], None]] = []
        self._status = mpi.Status()
        self._turning = threading.Lock()
        self._closing = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mailbox", daemon=True)
        self._thread.start()

    def send(
        self,
        process: int,
        tag: int,
        array: np.ndarray,
        done: Callable[[], None] | None = None,
        *,
        channel: str | None = None,
        wake: bool = True,
    ) -> None:
        """Send an array; returns at once. The array must not change until `done` is called.

        Args:
            process: the receiver's number; this process's own is allowed.
            tag: 0 to 2^31 - 1.
            array: contiguous; its shape and dtype do not travel.
            done: called in the mailbox's thread when the array may be used again.
            channel: default: the one that the mailbox sends on.
            wake: False where the caller calls `turn` next, so that two threads need not take turns.

        Raises:
            ValueError: the array is not contiguous, or has 2 GiB or more.
        """
        if not array.flags.c_contiguous or array.nbytes > MOST_BYTES:
            raise ValueError(
                f"a message of {array.nbytes} bytes: the array must be contiguous and below 2 GiB"
            )
        self._outgoing.put((process, tag, array, done, self._channels[channel or self._says]))
        if wake:
            self._wake.set()

    def wait(self) -> ReceivedMessage:
        """Return the next message, as soon as there is one.

        Raises:
            BaseException: what ended the mailbox.
        """
        return self._take(None)

    def next(self, seconds: float) -> ReceivedMessage | None:
        """Return the next message, or None after `seconds` seconds; raise as `wait` does."""
        try:
            return self._take(seconds)
        except queue.Empty:
            return None

    def _take(self, seconds: float | None) -> ReceivedMessage:
        outcome = self._delivered.get(timeout=seconds)
        if isinstance(outcome, ReceivedMessage):
            return outcome
        self._delivered.put(outcome)  # for whoever asks again
        raise outcome

    def expect(self, messages: int) -> None:
        """Look for `messages` more messages, where the mailbox does not listen all the time."""
        with self._counting:
            self._awaited += messages
        self._wake.set()

    def turn(self) -> bool:
        """Send and receive what can be, in this thread; returns whether anything happened.

        A caller that has nothing else to do than to wait for a message calls it again and again: that is
        the shortest wait there is, and needs no `expect`. Then it calls `leave`.

        Raises:
            BaseException: what ended the mailbox.
        """
        if self.failure is not None:
            raise self.failure
        return self._turn(listens=True)

    def leave(self) -> None:
        """Leave to the mailbox's thread what is still on its way after a `turn`."""
        if self._moving or not self._outgoing.empty():
            self._wake.set()

    def traffic(self) -> tuple[int, int]:
        """Return the bytes sent to other processes, and received from others, so far."""
        own = self._process
        return sum(self.sent) - self.sent[own], sum(self.received) - self.received[own]

    def close(self, within_s: float = _CLOSING_S) -> None:
        """Send what is left to send, within `within_s` seconds, and end the thread."""
        self._closing = True
        self._wake.set()
        self._thread.join(within_s)

    def _run(self) -> None:
        try:
            self._move()
        except BaseException as error:
            self.failure = error
            self._delivered.put(error)

    def _move(self) -> None:
        pause = _SHORTEST_S
        while True:
            if self._turn(self._listens):
                pause = _SHORTEST_S
                continue
            if self._closing and not self._moving and self._outgoing.empty():
                return
            if not self._moving and not self._listens and self._awaited <= 0:
                self._wake.wait()
            else:
                self._wake.wait(pause)
                pause = min(pause * _GROWTH, _LONGEST_S)
            self._wake.clear()

    def _turn(self, listens: bool) -> bool:
        with self._turning:
            moving, after = self._moving, self._after
            busy = self._start_sending(moving, after)
            while (listens or self._awaited > 0) and self._start_receiving(moving, after):
                busy = True
            done = sorted(self._mpi.Request.Testsome(moving) or ()) if moving else ()
            for position in done:
                after[position]()
            for position in reversed(done):
                del moving[position], after[position]
            return busy or bool(done)

    def _start_sending(self, moving: list[Any], after: list[Callable[[], None]]) -> bool:
        busy = False
        while True:
            try:
                process, tag, array, done, comm = self._outgoing.get_nowait()
            except queue.Empty:
                return busy
            moving.append(comm.Isend(_bytes(array), process, tag))
            after.append(_kept(array, done))
            if self._counted is None or self._counted(tag):
                self.sent[process] += array.nbytes
            busy = True

    def _start_receiving(self, moving: list[Any], after: list[Callable[[], None]]) -> bool:
        status = self._status
        message = self._hears.Improbe(status=status)
        if message is None:
            return False
        source, tag, size = status.Get_source(), status.Get_tag(), status.Get_count(self._mpi.BYTE)
        array = np.empty(size, np.uint8) if self._buffer is None else self._buffer(source, tag, size)
        with self._counting:
            self._awaited = max(self._awaited - 1, 0)
        moving.append(message.Irecv(_bytes(array)))
        arriving = _Arriving(ReceivedMessage(source, tag, array), size)
        self._arriving.setdefault((source, tag), deque()).append(arriving)
        after.append(lambda: self._complete(arriving))
        return True

    def _complete(self, arriving: _Arriving) -> None:
        arriving.is_complete = True
        source, tag = arriving.message.source, arriving.message.tag
        line = self._arriving[source, tag]
        while line and line[0].is_complete:
            first = line.popleft()
            if self._counted is None or self._counted(tag):
                self.received[source] += first.size
            if self._arrived is None or not self._arrived(first.message):
                self._delivered.put(first.message)
        if not line:
            del self._arriving[source, tag]


@dataclass
class _Arriving:
    message: ReceivedMessage
    size: int
    is_complete: bool = False


def _kept(array: np.ndarray, done: Callable[[], None] | None) -> Callable[[], None]:
    """Hold the array until it has left."""

    def left(array: np.ndarray = array) -> None:
        if done is not None:
            done()

    return left


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
