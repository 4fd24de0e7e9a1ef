"""Tensors sent between ranks from inside a compiled step.

Two ways that do the same: an operation of our own (`exchange_op.cc`, compiled by `make setup`), and Python
called from the graph, where that was not compiled. All ranks of a run use the same one: `open_exchange`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import os
import re
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainer.errors import WorldError
from trainer.ranks.links import Links
from trainer.ranks.members import MESSAGES
from trainer.ranks.messages import MOST_BYTES, ReceivedMessage
from trainer.ranks.world import World, named, report

# A message that is waited for is looked for without a pause for so long, then with pauses.
_AT_ONCE_S = 0.005
_PAUSE_S = 0.0002
# A rank that computes for longer between two messages hangs; `exchange_op.cc` has the same limit.
_LIMIT_S = 3600.0
# Arrivals that are kept until they are read; `exchange_op.cc` keeps as many.
MOST_ARRIVALS = 16384
_LATE = re.compile(r"no message within \d+ s from process [\d, ]+")


class Parcel(NamedTuple):
    """One message: the rank at its other end, its tag, its length and TensorFlow's type."""

    rank: int
    tag: int
    elements: int
    dtype: Any


class MessageCount(NamedTuple):
    """Bytes and messages of one direction."""

    bytes: int
    messages: int


class RankExchange(ABC):
    """Sends and receives between this rank and all others. Not for servers."""

    @abstractmethod
    def move(
        self, values: Sequence[Any], leaving: Sequence[Parcel], arriving: Sequence[Parcel]
    ) -> tuple[list[Any], Any]:
        """Send tensors, and return those that are waited for; eagerly, or while a step is traced.

        Messages of one sender and one tag are received in the order in which they are sent.

        Args:
            values: `(n,)` each, as many as `leaving`.
            leaving: where they go.
            arriving: what is to come, and from where.

        Returns:
            Tensors `(n,)`, and what later calls must be made to wait for with `tf.control_dependencies`.
        """

    @abstractmethod
    def sent(self, rank: int) -> MessageCount:
        """Return what was sent to a rank so far."""

    @abstractmethod
    def received(self, rank: int) -> MessageCount:
        """Return what was received from a rank so far."""

    @abstractmethod
    def arrivals(self) -> np.ndarray:
        """Return the newest messages that came since the last call, `MOST_ARRIVALS` at most.

        Returns:
            float64 `(n, 4)`: when it was asked for and when it was there, seconds of the wall clock; the rank
            that sent it; bytes. A rank that asks for messages does nothing until all are there.
        """

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Send what is left to send."""


def open_exchange(world: World) -> RankExchange:
    """Return the faster of the two ways that all ranks have; a collective.

    Raises:
        RuntimeError: the world was started without `Members(messages=True)`.
    """
    if world.links is None:
        raise RuntimeError("this world was started without messages")
    library = compiled()
    names = world.allgather_object(file().name if library is not None else None)
    if library is not None and set(names) == {file().name}:
        return Compiled(world.links, library)
    if world.is_main and os.environ.get("CINGULUM_EXCHANGE") != "python":
        lacking = named([rank for rank, name in enumerate(names) if name is None] or range(world.size))
        report(
            "warning: messages between ranks go through Python, which is slower: the compiled operation is "
            f"missing, or not the same, on {lacking}. On each host: python -m trainer.ranks.compile_exchange"
        )
    return Interpreted(world.links)


@contextlib.contextmanager
def naming_who_is_late(world: World) -> Iterator[None]:
    """Return a context for compiled steps in which a message that does not come is an error of ours.

    Raises:
        WorldError: names the ranks that were waited for.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        late = _LATE.search(error.message or "")
        if late is None:
            raise
        raise WorldError(
            f"{world.name}: {late[0].replace('process', 'rank')}.",
            cure="Is its host overloaded, or the process stopped? Resume from the last checkpoint.",
        ) from None


def file() -> Path:
    """Return where the compiled operation lies: one for each source and version of TensorFlow."""
    import tensorflow as tf

    source = Path(__file__).with_name("exchange_op.cc")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12] if source.is_file() else "none"
    return Path(__file__).with_name(f"exchange_op-{digest}-{tf.__version__}.so")


def compiled() -> Any:
    """Return TensorFlow's module of the compiled operation; None where there is none that it can load."""
    import tensorflow as tf

    if os.environ.get("CINGULUM_EXCHANGE") == "python" or not file().is_file():
        return None
    try:
        return tf.load_op_library(str(file()))
    except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError, OSError):
        return None


def _with_ranks(rows: np.ndarray, processes: Sequence[int]) -> np.ndarray:
    """The rows, with ranks in place of processes."""
    ranks = np.zeros(max(processes) + 1)
    ranks[list(processes)] = range(len(processes))
    rows[:, 2] = ranks[rows[:, 2].astype(int)]
    return rows


class Compiled(RankExchange):
    """The operation of our own; see `open_exchange`."""

    def __init__(self, links: Links, library: Any) -> None:
        self._processes, self._address = links.workers, links.address(MESSAGES)
        # On other hosts.
        self._far = [one for one in links.workers if links.hosts[one] != links.hosts[links.process]]
        self._operation = library.cingulum_exchange
        self._counts = ctypes.CDLL(str(file()))
        for name in ("sent", "received", "sent_messages", "received_messages", "arrivals", "early"):
            getattr(self._counts, f"cingulum_{name}").restype = ctypes.c_uint64
        self._rows = np.empty((MOST_ARRIVALS, 4))
        # The thread must not look for messages while MPI is finalised.
        atexit.register(self._counts.cingulum_stop_listening)

    def move(
        self, values: Sequence[Any], leaving: Sequence[Parcel], arriving: Sequence[Parcel]
    ) -> tuple[list[Any], Any]:
        """Move as `RankExchange.move` says.

        Raises:
            ValueError: a message has 2 GiB or more.
        """
        largest = max(one.elements * one.dtype.size for one in (*leaving, *arriving))
        if largest > MOST_BYTES:
            raise ValueError(f"a message of {largest} bytes: MPI takes less than 2 GiB")
        outputs = self._operation(
            values=list(values),
            receive_types=[one.dtype for one in arriving],
            comm=self._address,
            targets=[self._processes[one.rank] for one in leaving],
            target_tags=[one.tag for one in leaving],
            sources=[self._processes[one.rank] for one in arriving],
            source_tags=[one.tag for one in arriving],
            sizes=[one.elements for one in arriving],
            far=self._far,
        )
        return (list(outputs), outputs[0]) if arriving else ([], outputs)

    def sent(self, rank: int) -> MessageCount:
        """Return what was sent to a rank so far."""
        process = self._processes[rank]
        return MessageCount(self._counts.cingulum_sent(process), self._counts.cingulum_sent_messages(process))

    def received(self, rank: int) -> MessageCount:
        """Return what was received from a rank so far."""
        process = self._processes[rank]
        return MessageCount(
            self._counts.cingulum_received(process), self._counts.cingulum_received_messages(process)
        )

    def arrivals(self) -> np.ndarray:
        """Return what came since the last call; see `RankExchange.arrivals`."""
        count = self._counts.cingulum_arrivals(self._rows.ctypes.data_as(ctypes.c_void_p))
        return _with_ranks(self._rows[:count].copy(), self._processes)

    def early(self) -> int:
        """Return how many bytes are there that were not asked for yet."""
        return int(self._counts.cingulum_early())

    def close(self) -> None:
        """Leave the messages that come from now on to others."""
        self._counts.cingulum_stop_listening()


class Interpreted(RankExchange):
    """Python called from the graph, and a mailbox that the waiting thread drives; see `open_exchange`."""

    def __init__(self, links: Links) -> None:
        self._there: dict[tuple[int, int], deque[np.ndarray]] = {}
        self._processes = links.workers
        self._sent, self._received = Counter[int](), Counter[int]()
        self._arrivals: deque[tuple[float, float, int, int]] = deque(maxlen=MOST_ARRIVALS)
        self.mailbox = links.mailbox(MESSAGES, listens=False, arrived=self._arrived)

    def move(
        self, values: Sequence[Any], leaving: Sequence[Parcel], arriving: Sequence[Parcel]
    ) -> tuple[list[Any], Any]:
        """Move as `RankExchange.move` says."""
        import tensorflow as tf

        done = np.int32(0)
        kinds = [one.dtype.as_numpy_dtype for one in arriving]

        def call(*arrays: np.ndarray) -> list[Any]:
            for one, array in zip(leaving, arrays, strict=True):
                self._sent[self._processes[one.rank]] += 1
                # TensorFlow may use the memory again as soon as this call returns.
                self.mailbox.send(self._processes[one.rank], one.tag, np.array(array), wake=False)
            messages = [array.view(kind) for array, kind in zip(self._take(arriving), kinds, strict=True)]
            return [*messages, done]

        outputs = tf.numpy_function(call, list(values), [*(one.dtype for one in arriving), tf.int32])
        # Eagerly, one tensor is no list.
        outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
        whole = zip(outputs[:-1], arriving, strict=True)
        return [tf.ensure_shape(tensor, [one.elements]) for tensor, one in whole], outputs[-1]

    def _arrived(self, message: ReceivedMessage) -> bool:
        self._received[message.source] += 1
        self._there.setdefault((message.source, message.tag), deque()).append(message.array)
        return True

    def _take(self, arriving: Sequence[Parcel]) -> list[np.ndarray]:
        """Return the next message, uint8 `(bytes,)`, of each sender and tag; wait until all are there."""
        began, asked_at = time.monotonic(), time.time()
        self.mailbox.turn()
        messages: list[np.ndarray] = []
        for one in arriving:
            key = self._processes[one.rank], one.tag
            while not self._there.get(key):
                if not self.mailbox.turn():
                    waited = time.monotonic() - began
                    if waited > _LIMIT_S:
                        raise TimeoutError(f"no message within {_LIMIT_S:.0f} s from process {key[0]}")
                    if waited < _AT_ONCE_S:
                        os.sched_yield()
                    else:
                        time.sleep(_PAUSE_S)
            messages.append(self._there[key].popleft())
            self._arrivals.append((asked_at, time.time(), key[0], messages[-1].nbytes))
        self.mailbox.leave()
        return messages

    def sent(self, rank: int) -> MessageCount:
        """Return what was sent to a rank so far."""
        process = self._processes[rank]
        return MessageCount(self.mailbox.sent[process], self._sent[process])

    def received(self, rank: int) -> MessageCount:
        """Return what was received from a rank so far."""
        process = self._processes[rank]
        return MessageCount(self.mailbox.received[process], self._received[process])

    def arrivals(self) -> np.ndarray:
        """Return what came since the last call; see `RankExchange.arrivals`."""
        rows = np.array(self._arrivals, float).reshape(-1, 4)
        self._arrivals.clear()
        return _with_ranks(rows, self._processes)

    def close(self) -> None:
        """Send what is left to send, and end the mailbox's thread."""
        self.mailbox.close()
