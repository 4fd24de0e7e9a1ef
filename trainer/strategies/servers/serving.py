"""Who serves: a process of its own, or a thread beside a worker."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trainer.errors import CingulumError
from trainer.ranks import world as worlds
from trainer.ranks.links import Links
from trainer.ranks.members import TO_SERVERS, TO_WORKERS
from trainer.ranks.mpi_world import Everyone
from trainer.ranks.rollcall import RollCall
from trainer.ranks.stopping import StopRequest
from trainer.ranks.world import World
from trainer.strategies.servers import tags
from trainer.strategies.servers.client import order_without_answer
from trainer.strategies.servers.job import ServerJob
from trainer.strategies.servers.server_state import BundleState, clip_scale
from trainer.telemetry.intervals import Interval, spent

_GOODBYE_S = 10.0
# Bundles of which both ways to update are timed: compiling each takes some tenths of a second.
_TRIED = 4


def serve(world: World) -> int:
    """Serve until worker 0 ends the servers; for a process with `world.is_server`.

    Ctrl-C, SIGUSR2 and SIGTERM are left to the workers, which end the servers when they have saved.

    Returns:
        the workers' exit code.
    """
    with StopRequest() as stop, stop.by_interrupt(answers=False):
        return _serve(world)


class ServingSession:
    """The servers' lifetime on a worker; see `serving`. `exit_code` is what servers end with."""

    exit_code = 0


@contextlib.contextmanager
def serving(world: World) -> Iterator[ServingSession]:
    """Return a context in which a worker has servers: its own thread where it is colocated with one.

    At the end, worker 0 ends all servers. An error that ends the whole world ends the servers with it.
    """
    links = world.links
    session = ServingSession()
    thread = None
    if links is not None and links.server is not None:
        thread = threading.Thread(target=_serve, args=(world,), name="server", daemon=True)
        thread.start()
    try:
        yield session
    except CingulumError as error:
        session.exit_code = error.exit_code
        raise
    except BaseException:
        session.exit_code = 1
        raise
    finally:
        if links is not None:
            if world.is_main:
                order_without_answer(links, {"do": "end", "exit_code": session.exit_code}, _GOODBYE_S)
            if thread is not None:
                thread.join(_GOODBYE_S)


def everyone(world: World) -> World:
    """Return the processes to health-check: workers, and separate servers, which join; a collective."""
    links = world.links
    if links is None or set(links.servers) <= set(links.workers):
        return world
    if world.is_main:
        order_without_answer(links, {"do": "roll call"}, _GOODBYE_S)
    return Everyone(links)


def _serve(world: World) -> int:
    links = world.links
    if links is None or links.server is None:
        raise RuntimeError("this process is no server")
    try:
        return Server(links).run()
    except BaseException:
        name = links.name_of_server(links.server)
        text = traceback.format_exc().rstrip()
        sys.stderr.write("".join(f"[{name}] {line}\n" for line in text.splitlines()))
        worlds.current().abort(1)


# A synchronous server: answers a bundle with new weights as soon as all gradients of it have come.


class Server:
    """One server; `run` does what worker 0 orders until it says that it is the end.

    Orders are JSON objects: `{"do": "job", "job": ...}` forgets what was held and prepares for a job; one
    `STATE` message per bundle follows. `state` asks for the same messages; `roll call` lets this process
    answer who asks whether it is still there; `try` asks for a `Trial` of its largest bundles, and
    `{"do": "compile", "compiled": bool}` decides; `times` asks for rows of `ServerTimes`, `bytes` for what
    was sent and received; `{"do": "end", "exit_code": n}`.

    Args:
        links: of the world.
    """

    def __init__(self, links: Links) -> None:
        number = links.server
        if number is None:
            raise RuntimeError("this process is no server")
        self._links, self._number = links, number
        self._ranks = {process: rank for rank, process in enumerate(links.workers)}
        self._numbers = {process: server for server, process in enumerate(links.servers)}
        self._bundles: dict[int, _Gathering] = {}
        self._norms: dict[int, float] = {}
        self._job: ServerJob | None = None
        self._due_states: set[int] = set()
        self._rollcall: RollCall | None = None
        self._times = ServerTimes()
        self._answered = 0
        self.mailbox = links.mailbox(
            TO_SERVERS, says=TO_WORKERS, buffer=self._buffer, counted=tags.is_counted
        )

    def run(self) -> int:
        """Serve; returns the exit code that worker 0 sends."""
        try:
            while True:
                message = self.mailbox.wait()
                kind, number = tags.parts(message.tag)
                if kind == tags.GRADIENTS:
                    self._take_gradient(number, self._ranks[message.source])
                elif kind == tags.NORM:
                    self._take_norm(self._numbers[message.source], float(message.array[0]))
                elif kind == tags.STATE:
                    self._take_state(number, message.array)
                else:
                    order = json.loads(message.array.tobytes())
                    if order["do"] == "end":
                        return int(order["exit_code"])
                    self._obey(order)
        finally:
            self.mailbox.close()
            if self._rollcall is not None:
                self._rollcall.close()

    def _buffer(self, source: int, tag: int, size: int) -> np.ndarray:
        kind, number = tags.parts(tag)
        if kind == tags.GRADIENTS:
            # A worker sends the next gradient of a bundle when it has the weights that this one led to.
            return self._bundles[number].received[self._ranks[source]]
        return np.empty(1, np.float64) if kind == tags.NORM else np.empty(size, np.uint8)

    def _obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "job":
            try:
                self._prepare(ServerJob.from_json(order["job"]))
            except CingulumError as error:
                self._reply({"error": [type(error).__name__, error.message, error.cure]})
            else:
                self._reply({"done": "job"})
                self._tell_if_filled()
        elif order["do"] == "state":
            for number in sorted(self._bundles):
                self._say(tags.of(tags.STATE, number), self._bundles[number].state.state())
        elif order["do"] == "roll call":
            if self._rollcall is not None:
                self._rollcall.close()
            self._rollcall = RollCall(Everyone(self._links))
        elif order["do"] == "try":
            largest = sorted((b.state for b in self._bundles.values()), key=lambda state: -state.bundle.size)
            tried = [state.trial() for state in largest[:_TRIED]]
            fault = next((one.fault for one in tried if one.fault), "")
            self._reply(
                {"trial": [sum(one.plain_s for one in tried), sum(one.compiled_s for one in tried), fault]}
            )
        elif order["do"] == "compile":
            for bundle in self._bundles.values():
                bundle.state.compile(order["compiled"])
            self._reply({"done": "compile"})
        elif order["do"] == "times":
            self._reply({"rows": self._times.take()})
        elif order["do"] == "bytes":
            self._reply(dict(zip(("sent", "received"), self.mailbox.traffic(), strict=True)))

    def _prepare(self, job: ServerJob) -> None:
        self._job = job
        mine = [bundle for bundle in job.bundles() if bundle.server == self._number]
        self._bundles = {b.number: _Gathering(BundleState(b, job), job.workers) for b in mine}
        self._due_states = set(self._bundles)

    def _take_state(self, number: int, array: np.ndarray) -> None:
        self._bundles[number].state.set_state(array)
        self._due_states.discard(number)
        self._tell_if_filled()

    def _tell_if_filled(self) -> None:
        if not self._due_states:
            first = next(iter(self._bundles.values()), None)
            self._times = ServerTimes(first.state.updates if first else 0)
            self._reply({"done": "state"})

    def _take_gradient(self, number: int, rank: int) -> None:
        bundle = self._bundles[number]
        self._times.received()
        bundle.add(rank)
        if not bundle.is_complete or self._job is None:
            return
        if self._job.global_clip_norm is None:
            self._answer(number, 1.0)
        elif all(other.is_complete for other in self._bundles.values()):
            self._tell_norm(sum(other.squared_norm() for other in self._bundles.values()))

    def _tell_norm(self, squared: float) -> None:
        for process in self._links.servers:
            self.mailbox.send(process, tags.of(tags.NORM), np.array([squared]), channel=TO_SERVERS)

    def _take_norm(self, server: int, squared: float) -> None:
        self._norms[server] = squared
        if self._job is None or len(self._norms) < self._servers_with_weights():
            return
        # In the order of servers, so that all come to the same sum.
        total = sum(self._norms[server] for server in sorted(self._norms))
        self._norms.clear()
        scale = clip_scale(total, self._job.global_clip_norm)
        for number in sorted(self._bundles):
            self._answer(number, scale)

    def _servers_with_weights(self) -> int:
        return len({bundle.server for bundle in self._job.bundles()}) if self._job else 0

    def _answer(self, number: int, scale: float) -> None:
        bundle = self._bundles[number]
        began = time.monotonic()
        weights = bundle.state.apply(bundle.take_mean(), scale)
        self._times.updated(time.monotonic() - began)
        self._answered += 1
        if self._answered == len(self._bundles):
            self._answered = 0
            self._times.answered()
        for process in self._links.workers:
            self.mailbox.send(process, tags.of(tags.WEIGHTS, number), weights, self._times.left)

    def _reply(self, value: dict[str, Any]) -> None:
        self._say(tags.of(tags.REPLY), np.frombuffer(json.dumps(value).encode(), np.uint8))

    def _say(self, tag: int, array: np.ndarray) -> None:
        self.mailbox.send(self._links.workers[0], tag, array)


class _Gathering:
    """One bundle and the workers' gradients of it, summed in the order of ranks so that it is repeatable."""

    def __init__(self, state: BundleState, workers: int) -> None:
        self.state = state
        self.received = [np.zeros(state.bundle.size, state.dtype) for _ in range(workers)]
        self._waiting: set[int] = set()
        self._summed = 0
        self._sum = np.zeros(state.bundle.size, state.dtype)

    def add(self, rank: int) -> None:
        """Add the gradient of a rank, which is in `received`."""
        self._waiting.add(rank)
        while self._summed in self._waiting:
            self._waiting.remove(self._summed)
            if self._summed == 0:
                np.copyto(self._sum, self.received[0])
            else:
                np.add(self._sum, self.received[self._summed], out=self._sum)
            self._summed += 1
            if self.is_complete:
                self._sum /= len(self.received)

    @property
    def is_complete(self) -> bool:
        """Whether all gradients are in the mean."""
        return self._summed == len(self.received)

    def squared_norm(self) -> float:
        """Return the squared norm of the mean gradient."""
        mean = self._sum.astype(np.float32, copy=False)
        return float(np.dot(mean, mean))

    def take_mean(self) -> np.ndarray:
        """Return the mean gradient `(size,)`, and begin anew."""
        self._summed = 0
        return self._sum


# Where a synchronous server's time goes, update by update.


_DIGITS = 6


class ServerTimes:
    """Times one server's updates; all but `left` are called by one thread.

    Args:
        step: updates done before.
        clock: seconds.
    """

    def __init__(self, step: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._step, self._clock = step, clock
        self._rows: list[dict[str, Any]] = []
        self._free = clock()
        self._begun: float | None = None
        self._answered: float | None = None
        self._left = 0.0
        self._updates: list[Interval] = []

    def received(self) -> None:
        """Note that a gradient has come; the first one after an answered update begins the next."""
        if self._answered is not None:
            self._close()
        if self._begun is None:
            self._begun = self._clock()

    def updated(self, seconds: float) -> None:
        """Note how long it took to apply the update to one bundle, until now."""
        now = self._clock()
        self._updates.append(Interval("update", now - seconds, now))

    def answered(self) -> None:
        """Note that all bundles of this update have been answered."""
        self._answered = self._clock()

    def left(self) -> None:
        """Note that an answer has left completely; from any thread."""
        self._left = self._clock()

    def take(self) -> list[dict[str, Any]]:
        """Return rows of the updates since the last call.

        Each has `step`, and in seconds `wait` (until the first gradient came), `receive` (until the last
        bundle was answered, without updates), `update`, and `send` (until the last answer had left).
        """
        if self._answered is not None:
            self._close()
        rows, self._rows = self._rows, []
        return rows

    def _close(self) -> None:
        begun, answered = self._begun, self._answered
        if begun is None or answered is None:
            return
        self._step += 1
        left = max(answered, self._left)
        done = spent(
            [
                Interval("wait", self._free, begun),
                Interval("receive", begun, answered),
                *self._updates,
                Interval("send", answered, left),
            ]
        ).seconds
        parts = {name: round(done.get(name, 0.0), _DIGITS) for name in ("receive", "update", "send", "wait")}
        self._rows.append({"step": self._step, **parts})
        self._free, self._begun, self._answered, self._updates = left, None, None, []
