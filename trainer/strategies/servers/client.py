"""A worker's side: gradients leave bundle by bundle, weights come back bundle by bundle."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainer import errors
from trainer.ranks.links import Links
from trainer.ranks.members import TO_SERVERS, TO_WORKERS
from trainer.ranks.messages import ReceivedMessage
from trainer.strategies.compiled_update import Trial
from trainer.strategies.servers import tags
from trainer.strategies.servers.job import ServerJob, keras_dtype
from trainer.strategies.servers.layout import Bundle, ServerPiece
from trainer.strategies.servers.server_state import packed
from trainer.strategies.slots import Slots

_LOOK_S = 1.0
# What may be under way to a server without an answer: so many messages, and at least so many bytes.
_AHEAD = 4
_AHEAD_BYTES = 2**18


class Client:
    """Exchanges gradients for weights, and state with the servers.

    Args:
        links: of the world.
        job: what the servers do.
    """

    def __init__(self, links: Links, job: ServerJob) -> None:
        self.job = job
        self.bundles = job.bundles()
        self._links = links
        self._weights = [np.zeros(b.size, self.dtype_of(b)) for b in self.bundles]
        self._gradients = [np.zeros(b.size, self.dtype_of(b)) for b in self.bundles]
        self._missing: set[int] = set()
        self._turns = _turns(job, self.bundles, [array.nbytes for array in self._gradients])
        self._changed = threading.Condition()
        self.mailbox = links.mailbox(
            TO_WORKERS,
            says=TO_SERVERS,
            listens=False,
            buffer=self._buffer,
            arrived=self._arrived,
            counted=tags.is_counted,
        )

    def dtype_of(self, bundle: Bundle) -> np.dtype[Any]:
        """Type of a bundle's numbers."""
        return keras_dtype(self.job.variables[bundle.pieces[0].variable].dtype)

    def push(self, number: int, gradient: np.ndarray) -> None:
        """Send this worker's gradient `(size,)` of a bundle when it is its turn; returns at once."""
        # The weights that the last one led to are here, so it has left.
        np.copyto(self._gradients[number], gradient)
        with self._changed:
            self._missing.add(number)
            self._send(self._turns[self.bundles[number].server].computed(number))

    def _send(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.mailbox.expect(1)
            process = self._links.servers[self.bundles[number].server]
            self.mailbox.send(process, tags.of(tags.GRADIENTS, number), self._gradients[number])

    def pull(self) -> list[np.ndarray]:
        """Wait for the new weights of all bundles that were pushed; returns those of all, `(size,)` each."""
        with self._changed:
            while self._missing:
                if self.mailbox.failure is not None:
                    raise self.mailbox.failure
                self._changed.wait(_LOOK_S)
        return self._weights

    def waits_for(self) -> list[int]:
        """Return the servers that have not answered yet."""
        with self._changed:
            return sorted({self.bundles[number].server for number in self._missing})

    def put(self, variables: Sequence[Any], slots: Slots) -> None:
        """Worker 0: tell the servers their job and give them weights and optimizer state.

        Raises:
            CingulumError: what a server said about the job.
        """
        for reply in self._ask({"do": "job", "job": self.job.json()}):
            if "error" in reply:
                kind, message, cure = reply["error"]
                raise getattr(errors, kind)(message, cure=cure)
        common = [np.asarray(v.value) for v in slots.common]
        # The servers' count stands at whole updates; what has been accumulated since is the workers'.
        common[0] = common[0] - common[0] % self.job.accumulation
        last = b"".join(array.tobytes() for array in common)
        arrays = [[np.asarray(v.value) for v in (w, *of)] for w, of in zip(variables, slots.of, strict=True)]
        for bundle in self.bundles:
            parts = [_part(array, p) for p in bundle.pieces for array in arrays[p.variable]]
            state = np.frombuffer(b"".join(part.tobytes() for part in parts) + last, np.uint8)
            self.mailbox.send(self._links.servers[bundle.server], tags.of(tags.STATE, bundle.number), state)
        self._replies()

    def fetch(self, variables: Sequence[Any], slots: Slots) -> None:
        """Worker 0: take over weights and optimizer state from the servers."""
        arrays = [
            [np.array(np.asarray(v.value)) for v in (w, *of)]
            for w, of in zip(variables, slots.of, strict=True)
        ]
        self._order({"do": "state"})
        self.mailbox.expect(len(self.bundles))
        common = packed(slots.common)
        for _ in self.bundles:
            number, state = self._next()
            offset = 0
            for piece in self.bundles[number].pieces:
                for array in arrays[piece.variable]:
                    part = _part(array, piece)
                    part[:] = np.frombuffer(state[offset : offset + part.nbytes].tobytes(), array.dtype)
                    offset += part.nbytes
            if number == 0:
                common = state[offset:]
        for variable, of, values in zip(variables, slots.of, arrays, strict=True):
            for ours, value in zip((variable, *of), values, strict=True):
                ours.assign(value)
        self._take_common(common, slots)

    def trial(self) -> Trial:
        """Worker 0: the slowest server's times of both ways to update its largest bundles."""
        tried = [Trial(*reply["trial"]) for reply in self._ask({"do": "try"})]
        fault = next((one.fault for one in tried if one.fault), "")
        return Trial(max(one.plain_s for one in tried), max(one.compiled_s for one in tried), fault)

    def compile(self, compiled: bool) -> None:
        """Worker 0: let XLA compile the servers' updates, or not."""
        self._ask({"do": "compile", "compiled": compiled})

    def times_of_servers(self) -> list[list[dict[str, Any]]]:
        """Worker 0: rows of `ServerTimes` of each server since the last call."""
        return [reply["rows"] for reply in self._ask({"do": "times"})]

    def close(self) -> None:
        """Close the mailbox; the servers go on."""
        self.mailbox.close()

    def _take_common(self, common: np.ndarray, slots: Slots) -> None:
        offset = 0
        for position, variable in enumerate(slots.common):
            dtype = keras_dtype(variable.dtype)
            value = np.frombuffer(common[offset : offset + dtype.itemsize].tobytes(), dtype)[0]
            offset += dtype.itemsize
            if position:  # the first is the number of iterations, which the worker counts itself
                variable.assign(value)

    def _ask(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        self._order(order)
        return self._replies()

    def _order(self, order: dict[str, Any]) -> None:
        text = np.frombuffer(json.dumps(order).encode(), np.uint8)
        for process in self._links.servers:
            self.mailbox.send(process, tags.of(tags.ORDER), text)

    def _replies(self) -> list[dict[str, Any]]:
        self.mailbox.expect(len(self._links.servers))
        found = dict(self._next() for _ in self._links.servers)
        return [json.loads(found[server].tobytes()) for server in sorted(found)]

    def _next(self) -> tuple[int, np.ndarray]:
        """Return the server of a reply, or the bundle of a state, and its bytes."""
        message = self.mailbox.wait()
        kind, number = tags.parts(message.tag)
        return number if kind == tags.STATE else self._links.servers.index(message.source), message.array

    def _buffer(self, source: int, tag: int, size: int) -> np.ndarray:
        kind, number = tags.parts(tag)
        return self._weights[number] if kind == tags.WEIGHTS else np.empty(size, np.uint8)

    def _arrived(self, message: ReceivedMessage) -> bool:
        kind, number = tags.parts(message.tag)
        if kind != tags.WEIGHTS:
            return False
        with self._changed:
            self._missing.discard(number)
            self._send(self._turns[self.bundles[number].server].answered(number))
            if not self._missing:
                self._changed.notify_all()
        return True


def _turns(job: ServerJob, bundles: Sequence[Bundle], sizes: Sequence[int]) -> dict[int, Turns]:
    """Of each server that has bundles."""
    # To clip by the norm of all gradients, servers need all before they answer any.
    ahead = None if job.global_clip_norm is not None else max(_AHEAD * job.piece_bytes, _AHEAD_BYTES)
    of_servers: dict[int, dict[int, int]] = {}
    for bundle, size in zip(bundles, sizes, strict=True):
        of_servers.setdefault(bundle.server, {})[bundle.number] = size
    return {server: Turns(mine, ahead) for server, mine in of_servers.items()}


def order_without_answer(links: Links, order: dict[str, Any], within_s: float) -> None:
    """Send an order to all servers where no client is left or has ever been."""
    text = np.frombuffer(json.dumps(order).encode(), np.uint8)
    mailbox = links.mailbox(TO_WORKERS, says=TO_SERVERS, listens=False)
    for process in links.servers:
        mailbox.send(process, tags.of(tags.ORDER), text)
    mailbox.close(within_s)
    if mailbox.failure is not None:
        raise mailbox.failure


def _part(array: np.ndarray, piece: ServerPiece) -> np.ndarray:
    """A view of a piece's elements: all, where it is not cut (a slot may have another shape)."""
    flat = array.reshape(-1)
    return flat if piece.start == 0 and piece.stop >= flat.size else flat[piece.start : piece.stop]


# In which order a worker's bundles leave for one server, and how far ahead of its answers. Pure.


class Turns:
    """Bundles leave in the order of their numbers, whatever the order in which their gradients are computed.

    A server answers a bundle when it has it of all workers. If each sent in an order of its own, or one far
    ahead of another on a link that they share, the answers would come late, and would no longer cross the
    link while gradients do. So all take the same order, and none has more bytes under way than `ahead`. With
    one order for all, the first bundle that is not answered may always leave: none waits for ever.

    Args:
        sizes: bytes of each bundle of the server, by number.
        ahead: bytes that may be unanswered, though always one bundle; None: any number, for a server that
            answers none before it has all.
    """

    def __init__(self, sizes: Mapping[int, int], ahead: int | None) -> None:
        self._sizes = dict(sorted(sizes.items()))
        self._order = list(self._sizes)
        self._ahead = ahead
        self._ready: set[int] = set()
        self._next = 0
        self._under_way = 0

    def computed(self, number: int) -> list[int]:
        """Note that a bundle's gradient is computed; returns the bundles that leave now."""
        self._ready.add(number)
        return self._leaving()

    def answered(self, number: int) -> list[int]:
        """Note that a bundle's weights are here; returns the bundles that leave now."""
        self._under_way -= self._sizes[number]
        return self._leaving()

    def _leaving(self) -> list[int]:
        leaving = []
        while (number := self._order[self._next]) in self._ready and self._fits(number):
            self._ready.remove(number)
            self._under_way += self._sizes[number]
            self._next = (self._next + 1) % len(self._order)
            leaving.append(number)
        return leaving

    def _fits(self, number: int) -> bool:
        return (
            self._ahead is None or not self._under_way or self._under_way + self._sizes[number] <= self._ahead
        )
