"""Server 0 of asynchronous training: gives out tickets, lets workers go or wait, notices who is gone.

It is the main process of the run: trainer/strategies/async_servers/async_training.py runs the ordinary
loop over what `next_update` returns.
"""

from __future__ import annotations

import heapq
import queue
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer import errors
from trainer.errors import CingulumError, WorldError
from trainer.ranks.links import Links
from trainer.ranks.liveness import LivenessPort
from trainer.ranks.members import TO_SERVERS
from trainer.ranks.messages import Mailbox, ReceivedMessage
from trainer.strategies.async_servers import async_state as state
from trainer.strategies.async_servers.async_server import Shard
from trainer.strategies.async_servers.async_state import Tag
from trainer.strategies.async_servers.staleness import Clocks, Histogram
from trainer.strategies.compiled_update import is_compiled

_LOOK_S = 0.05


@dataclass(frozen=True)
class AppliedUpdate:
    """One applied update.

    Attributes:
        worker: who computed it.
        step: its number in the global order.
        loss: mean weighted loss of its batch.
        sums: the numbers of `Sums`, for the epoch's metrics.
        samples: real ones in its batch.
        staleness: see `staleness`.
    """

    worker: int
    step: int
    loss: float
    sums: tuple[float, ...]
    samples: int
    staleness: int


class Coordinator:
    """See above.

    Args:
        links: of the world.
        port: lifelines to all other processes.
        post: server 0's mailbox.
        bound: of staleness, or None.
        ahead: tickets that a worker holds besides the one it computes.

    Attributes:
        histogram: of the staleness of all updates since the last `take_histogram`.
        stop_asked: whether a worker was told to stop.
        lost_server: whether a server is gone.
        dead: workers that are gone, by their names.
        updates: by worker, of this session.
    """

    def __init__(
        self, links: Links, port: LivenessPort, post: Mailbox, *, bound: int | None, ahead: int
    ) -> None:
        self.histogram = Histogram()
        self.stop_asked = self.lost_server = False
        self.dead: list[str] = []
        self.updates = dict.fromkeys(range(len(links.workers)), 0)
        self._links, self._port, self._post = links, port, post
        self._ahead = ahead
        self._clocks = Clocks(range(len(links.workers)), bound)
        self._pushed: Counter[int] = Counter()
        self._computing: dict[int, int] = {}
        self._waiting: list[int] = []
        self._wanting_tickets: list[int] = []
        self._states: dict[int, np.ndarray] = {}
        self._shard: Shard | None = None
        self._tickets = Tickets(0, 0)

    def begin(self, shard: Shard, start: int, stop: int) -> None:
        """Training goes from step `start` to `stop`; gives workers that have asked already their tickets."""
        self._shard, self._tickets = shard, Tickets(start, stop)
        for process, vector in self._states.items():
            given = state.message([is_compiled(shard.optimizer)], vector)
            self._post.send(process, Tag.STATE, given, channel=TO_SERVERS)
        self._states.clear()
        for worker in self._wanting_tickets:
            if worker in self._clocks.living:
                self._send_tickets(worker)
        self._wanting_tickets.clear()

    def send_staging(self, staging: str) -> None:
        """Send workers the folder in which they begin files of telemetry: that of the lease on the run."""
        self._port.say_all({"staging": staging})

    def give_state(self, server: int, vector: np.ndarray) -> None:
        """Keep what a further server begins with; `begin` sends it first."""
        self._states[self._links.servers[server]] = vector

    def allow(self, limit: int) -> None:
        """Let workers begin the steps below `limit`. At the old limit, all workers were in step."""
        if self._tickets.done == self._tickets.limit:
            self._clocks.restart()
        self._tickets.limit = limit
        self._let_go()

    @property
    def nearest_limit(self) -> int:
        """Where the run can soonest be saved: see `Tickets`."""
        return self._tickets.nearest_limit

    @property
    def is_in_step(self) -> bool:
        """Whether exactly the steps below the limit are done."""
        return self._tickets.done == self._tickets.limit

    def next_update(self, seconds: float) -> AppliedUpdate | None:
        """Serve until an update was applied, or `seconds` seconds have passed.

        Raises:
            WorldError: a server is gone, or no worker is left.
            CingulumError: a worker met an error that another would meet as well.
        """
        deadline = time.monotonic() + seconds
        while True:
            self.look()
            arrived = self._post.next(_LOOK_S)
            if arrived is not None:
                update = self._handle(arrived)
                if update is not None:
                    return update
            if time.monotonic() > deadline:
                return None

    def collect(self) -> dict[int, np.ndarray]:
        """State of every further server, by its number, after all updates that we have applied."""
        further = self._links.servers[1:]
        wanted = np.array([self._pushed[process] for process in self._links.workers], np.int64)
        for process in further:
            self._post.send(process, Tag.COLLECT, wanted.view(np.uint8), channel=TO_SERVERS)
        states: dict[int, np.ndarray] = {}
        while len(states) < len(further):
            self.look()
            arrived = self._post.next(_LOOK_S)
            if arrived is None:
                continue
            if arrived.tag == Tag.STATE:
                states[self._links.servers.index(arrived.source)] = state.values(arrived.array)
            else:
                self._handle(arrived)
        return states

    def take_histogram(self) -> Histogram:
        """Return the histogram, and begin a new one."""
        taken, self.histogram = self.histogram, Histogram()
        return taken

    def look(self) -> None:
        """Handle what came over lifelines; raises as `next_update` does."""
        while True:
            try:
                process, line = self._port.heard.get_nowait()
            except queue.Empty:
                return
            if line is None:
                self._gone(process)
            elif "stop" in line:
                self.stop_asked = True
            elif "error" in line:
                kind, message, cure = line["error"]
                error: CingulumError = getattr(errors, kind)(message, cure=cure)
                raise error

    def _gone(self, process: int) -> None:
        links = self._links
        if process in links.servers:
            self.lost_server = True
            name = links.name_of_server(links.servers.index(process))
            raise WorldError(
                f"{name} is gone: it was killed, or its host or link is down.",
                cure="Run again with --resume; what it held is in the last checkpoint.",
            )
        worker = links.workers.index(process)
        name = links.name_of_worker(worker)
        if name in self.dead:
            return
        self.dead.append(name)
        self._port.cut(process)
        back = self._tickets.gone(worker)
        self._clocks.gone(worker)
        self._computing.pop(worker, None)
        if worker in self._waiting:
            self._waiting.remove(worker)
        for server in links.servers[1:]:
            self._port.say(server, {"gone": process})
        left = len(self._clocks.living)
        sys.stderr.write(
            f"warning: [{name}] is gone; training goes on with {left} worker(s). "
            f"Given to others: {len(back)} step(s).\n"
        )
        sys.stderr.flush()
        if not left:
            raise WorldError(
                f"No worker is left: {', '.join(self.dead)}.",
                cure="Run again with --resume; it goes on from the last checkpoint.",
            )
        self._let_go()

    def _handle(self, arrived: ReceivedMessage) -> AppliedUpdate | None:
        if arrived.source not in self._links.workers:
            return None
        worker = self._links.workers.index(arrived.source)
        if worker not in self._clocks.living:
            return None
        if arrived.tag == Tag.PUSH:
            return self._push(worker, arrived.array)
        if arrived.tag == Tag.ASK and state.header(arrived.array)[0] == 0:
            if self._shard is None:
                self._wanting_tickets.append(worker)
            else:
                self._send_tickets(worker)
        elif arrived.tag == Tag.ASK:
            self._waiting.append(worker)
            self._let_go()
        return None

    def _push(self, worker: int, array: np.ndarray) -> AppliedUpdate:
        if self._shard is None or worker not in self._computing:
            raise RuntimeError(f"worker {worker} sent an update that it was not asked for")
        version, loss, *sums, samples = state.header(array)[:7].tolist()
        staleness = self._shard.version - self._computing.pop(worker)
        if staleness != self._shard.version - int(version):
            raise RuntimeError(f"worker {worker} computed on version {version}, which it was not given")
        self._shard.update(state.values(array))
        self.histogram.add(staleness)
        self._clocks.tick(worker)
        self._pushed[self._links.workers[worker]] += 1
        self.updates[worker] += 1
        step = self._tickets.finish(worker)
        self._let_go()
        return AppliedUpdate(worker, step, loss, tuple(sums), int(samples), staleness)

    def _send_tickets(self, worker: int) -> None:
        new = self._tickets.hand_out(worker, self._ahead)
        self._post.send(self._links.workers[worker], Tag.GO, state.message([-1, 0, *new]))

    def _let_go(self) -> None:
        """Start every waiting worker that may compute now."""
        if self._shard is None:
            return
        for worker in list(self._waiting):
            can = self._tickets.can_begin(worker)
            self._clocks.park(worker, parked=not can and worker not in self._computing)
        for worker in list(self._waiting):
            if worker in self._computing:  # its update is larger than its question, and not complete yet
                continue
            begun = self._tickets.begin(worker) if self._clocks.may_go(worker) else None
            if begun is None:
                continue
            step, own = begun
            new = self._tickets.hand_out(worker, self._ahead)
            self._waiting.remove(worker)
            self._computing[worker] = self._shard.version
            process = self._links.workers[worker]
            self._post.send(process, Tag.GO, state.message([step, 0 if own else 1, *new]))
            self._post.send(process, Tag.TAKE, state.message([self._shard.version], self._shard.weights()))

    def facts(self) -> dict[str, Any]:
        """Return for result.json: updates of each worker in this session, dead workers, and bytes."""
        names = [self._links.name_of_worker(worker) for worker in self.updates]
        sent, received = self._post.traffic()
        return {
            "updates_per_worker": dict(zip(names, self.updates.values(), strict=True)),
            "dead_workers": list(self.dead),
            "bytes_sent": sent,
            "bytes_received": received,
        }


# Who computes which step: numbers of the global order, handed out as workers ask for them. Pure.
#
# A ticket is the number of a step; whoever holds it computes the gradient of that step's global batch.
# Tickets are handed out ahead, so that workers read ahead; a worker may begin one only below `limit`, which
# is the next epoch's end or checkpoint. So every sample is taken once per epoch, and at a limit exactly the
# steps before it are done. Tickets of a worker that died go to whoever asks next.


class Tickets:
    """Tickets from `start` to `stop`, the end of the run.

    Attributes:
        limit: steps from here on may not be begun yet.
        done: updates that were applied; equal to `limit` when nothing below it is left.
    """

    def __init__(self, start: int, stop: int) -> None:
        self.limit = self.done = self._next = start
        self._stop = stop
        self._highest = start - 1
        self._held: dict[int, deque[int]] = {}
        self._begun: dict[int, int] = {}
        self._returned: list[int] = []

    def hand_out(self, worker: int, ahead: int) -> list[int]:
        """Return new tickets, so that this worker holds `ahead` not begun ones, while there are any."""
        held = self._held.setdefault(worker, deque())
        new = list(range(self._next, min(self._next + max(0, ahead - len(held)), self._stop)))
        self._next += len(new)
        held.extend(new)
        return new

    def begin(self, worker: int) -> tuple[int, bool] | None:
        """Return the step that a worker computes now, and whether it held its ticket; None: it waits.

        One that a dead worker left comes first. A worker's own come in the order in which it got them.
        """
        if worker in self._begun:
            raise ValueError(f"worker {worker} computes step {self._begun[worker]} already")
        held = self._held.setdefault(worker, deque())
        if self._returned and self._returned[0] < self.limit:
            step, own = heapq.heappop(self._returned), False
        elif held and held[0] < self.limit:
            step, own = held.popleft(), True
        else:
            return None
        self._begun[worker] = step
        self._highest = max(self._highest, step)
        return step, own

    def can_begin(self, worker: int) -> bool:
        """Return whether `begin` would return a step."""
        held = self._held.get(worker)
        waiting = [queue[0] for queue in (self._returned, held) if queue]
        return bool(waiting) and min(waiting) < self.limit

    def finish(self, worker: int) -> int:
        """Count the worker's update as applied; returns its step."""
        self.done += 1
        return self._begun.pop(worker)

    def gone(self, worker: int) -> list[int]:
        """Take back what a dead worker held or had begun; returns those steps, ascending."""
        back = sorted(
            [*self._held.pop(worker, ()), *([self._begun.pop(worker)] if worker in self._begun else [])]
        )
        for step in back:
            heapq.heappush(self._returned, step)
        return back

    @property
    def nearest_limit(self) -> int:
        """The lowest limit that nothing begun or done lies beyond: where a run can soonest be saved."""
        return self._highest + 1
