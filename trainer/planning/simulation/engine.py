"""Task lists of ranks, played event by event on links that messages share. Pure.

A rank does its tasks one after the other; sending and receiving, too, take it the seconds of handling a
bundle. A bundle waits until the bundle before it, of the same two ranks, is there; then it takes the latency
of its way, and its bytes pass every link of the way at a rate that it shares fairly with all that passes at
that moment (`sharing`). Receiving waits until the bundle is there. Where no link is shared by two pairs of
ranks this is the model of `placement.costs`, to rounding.
"""

from __future__ import annotations

import collections
import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trainer.planning.placement.tasks import (
    Compute,
    Differentiate,
    Message,
    Receive,
    Recompute,
    Send,
    Task,
    TaskLists,
    UpdateOwned,
)
from trainer.planning.simulation.fabric import Fabric, Resource

Work = Compute | Recompute | Differentiate | UpdateOwned
# Seconds of a task on a rank.
Seconds = Callable[[int, Task], float]
Bundle = tuple[Message, ...]


@dataclass(frozen=True)
class Span:
    """What a rank does for some time: a task that computes, or, with its Receive, waiting for a bundle."""

    rank: int
    task: Work | Receive
    start: float
    end: float


@dataclass(frozen=True)
class BundleTransfer:
    """A bundle on its way.

    Attributes:
        source: rank that sends it.
        target: rank that receives it.
        bytes: of it.
        sent: when its rank handed it over.
        start: when it set out; later than `sent` where another bundle of these two ranks was on its way.
        end: when it had arrived.
    """

    source: int
    target: int
    bytes: int
    sent: float
    start: float
    end: float


@dataclass(frozen=True)
class Load:
    """What a shared link did: bytes that passed it, and the seconds in which any did."""

    bytes: float
    busy_s: float


@dataclass(frozen=True)
class Played:
    """What happened.

    Attributes:
        step_s: until the last rank has finished.
        half_s: until the last rank has finished the first half of its tasks, if that was asked for.
        busy_s: of each rank, computing.
        spans: of all ranks, in the order in which they began.
        transfers: in the order in which they arrived.
        loads: of each link that something passed.
    """

    step_s: float
    busy_s: tuple[float, ...]
    spans: tuple[Span, ...]
    transfers: tuple[BundleTransfer, ...]
    loads: dict[Resource, Load]
    half_s: float = 0.0

    @property
    def waiting_s(self) -> tuple[float, ...]:
        """Of each rank, the step without what it computes."""
        return tuple(self.step_s - one for one in self.busy_s)


def play(
    lists: TaskLists,
    seconds: Seconds,
    fabric: Fabric,
    ranks: int,
    *,
    slowdown: Mapping[int, float] | None = None,
    halves: bool = False,
) -> Played:
    """Play the lists of all ranks.

    Args:
        lists: the tasks of every rank; `checking.check` found nothing wrong.
        seconds: such as `durations.Durations(...).of`.
        fabric: of the links between ranks.
        ranks: that train; those without tasks wait.
        slowdown: by what computing takes longer on a rank; default: 1.
        halves: note when all have done the first half of their tasks.

    Raises:
        ValueError: ranks would wait for each other for ever.
    """
    engine = _Engine(lists, seconds, fabric, ranks, slowdown or {}, halves)
    return engine.run()


@dataclass
class _Flow:
    """A bundle of which bytes are under way; `left` of them at the moment `since`."""

    bundle: Bundle
    sent: float
    start: float
    bytes: int
    resources: tuple[Resource, ...]
    left: float
    since: float = 0.0
    rate: float = 0.0
    version: int = 0


@dataclass
class _RankState:
    """Where a rank is in its list."""

    at: int = 0
    waits_for: Bundle | None = None
    since: float = 0.0


@dataclass
class _Busy:
    """Of a link."""

    flows: list[_Flow] = field(default_factory=list)
    bytes: float = 0.0
    seconds: float = 0.0
    since: float = 0.0


class _Engine:
    def __init__(
        self,
        lists: TaskLists,
        seconds: Seconds,
        fabric: Fabric,
        ranks: int,
        slowdown: Mapping[int, float],
        halves: bool,
    ) -> None:
        self._lists, self._seconds, self._fabric, self._slowdown = lists, seconds, fabric, slowdown
        self._ranks = {rank: _RankState() for rank in lists}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._busy = [0.0] * ranks
        self._ends = [0.0] * ranks
        self._halves: dict[int, float] = {}
        self._half = {rank: len(tasks) // 2 for rank, tasks in lists.items()} if halves else {}
        # Bundles of two ranks that wait for the one before them; there is a queue while one is under way.
        self._queues: dict[tuple[int, int], collections.deque[tuple[Bundle, float]]] = {}
        self._arrived: set[Bundle] = set()
        self._links: dict[Resource, _Busy] = collections.defaultdict(_Busy)
        # Flows that have begun or ended since rates were given.
        self._changed: list[_Flow] = []
        self._spans: list[Span] = []
        self._transfers: list[BundleTransfer] = []

    def run(self) -> Played:
        for rank in self._lists:
            self._at(0.0, self._go_on, rank)
        while self._events:
            now, _, happens, arguments = heapq.heappop(self._events)
            happens(now, *arguments)
            # Of all that begins and ends at one moment, flows get their rates once.
            if self._changed and not (self._events and self._events[0][0] == now):
                self._share(now)
        if any(one.at < len(self._lists[rank]) for rank, one in self._ranks.items()):
            raise ValueError("ranks wait for each other for ever")
        loads = {resource: Load(one.bytes, one.seconds) for resource, one in self._links.items()}
        self._spans.sort(key=lambda span: span.start)
        half_s = max(self._halves.values(), default=0.0)
        happened = tuple(self._busy), tuple(self._spans), tuple(self._transfers), loads
        return Played(max(self._ends), *happened, half_s)

    def _at(self, moment: float, happens: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), happens, arguments))

    def _go_on(self, now: float, rank: int) -> None:
        """Do a rank's next task, and come back when it has taken its time; or wait."""
        tasks, state = self._lists[rank], self._ranks[rank]
        if state.at == self._half.get(rank):
            self._halves.setdefault(rank, now)
        if state.at < len(tasks):
            task = tasks[state.at]
            if isinstance(task, Receive):
                if task.messages not in self._arrived:
                    state.waits_for, state.since = task.messages, now
                    return
                took = self._seconds(rank, task)
            elif isinstance(task, Send):
                took = self._seconds(rank, task)
                self._at(now + took, self._send, task.messages)
            else:
                took = self._seconds(rank, task) * self._slowdown.get(rank, 1.0)
                self._busy[rank] += took
                self._spans.append(Span(rank, task, now, now + took))
            state.at += 1
            self._at(now + took, self._go_on, rank)
            return
        self._ends[rank] = now

    def _send(self, now: float, bundle: Bundle) -> None:
        pair = (bundle[0].source, bundle[0].target)
        if pair in self._queues:
            self._queues[pair].append((bundle, now))
        else:
            self._queues[pair] = collections.deque()
            self._set_out(now, bundle, now)

    def _set_out(self, now: float, bundle: Bundle, sent: float) -> None:
        path = self._fabric.path(bundle[0].source, bundle[0].target)
        size = sum(one.bytes for one in bundle)
        flow = _Flow(bundle, sent, now, size, path.resources, float(size))
        self._at(now + path.latency_s, self._flow_begins, flow)

    def _flow_begins(self, now: float, flow: _Flow) -> None:
        flow.since = now
        for resource in flow.resources:
            link = self._links[resource]
            if not link.flows:
                link.since = now
            link.flows.append(flow)
        self._changed.append(flow)

    def _share(self, now: float) -> None:
        """Give new rates to all flows that links connect with one that has begun or ended."""
        seen: set[Resource] = set()
        for flow in self._changed:
            # One that has ended connects its links no longer: each may be of other flows now.
            if not seen.issuperset(flow.resources):
                self._share_among(now, flow, seen)
        self._changed.clear()

    def _share_among(self, now: float, first: _Flow, seen: set[Resource]) -> None:
        """Do so with the flows that are connected with one, itself included or gone; note their links."""
        paths: dict[int, tuple[Resource, ...]] = {}
        flows: dict[int, _Flow] = {}
        left = list(first.resources)
        while left:
            resource = left.pop()
            if resource in seen:
                continue
            seen.add(resource)
            for flow in self._links[resource].flows:
                if id(flow) not in flows:
                    flows[id(flow)], paths[id(flow)] = flow, flow.resources
                    left += flow.resources
        for key, rate in fair(paths, self._fabric.capacity).items():
            flow = flows[key]
            if rate == flow.rate:
                continue
            flow.left = max(0.0, flow.left - flow.rate * (now - flow.since))
            flow.since, flow.rate = now, rate
            flow.version += 1
            self._at(now + flow.left / rate, self._flow_ends, flow, flow.version)

    def _flow_ends(self, now: float, flow: _Flow, version: int) -> None:
        if version != flow.version:  # its rate has changed since
            return
        pair = (flow.bundle[0].source, flow.bundle[0].target)
        self._transfers.append(BundleTransfer(*pair, flow.bytes, flow.sent, flow.start, now))
        for resource in flow.resources:
            link = self._links[resource]
            link.flows.remove(flow)
            link.bytes += flow.bytes
            if not link.flows:
                link.seconds += now - link.since
        self._changed.append(flow)
        if self._queues[pair]:
            self._set_out(now, *self._queues[pair].popleft())
        else:
            del self._queues[pair]
        self._arrived.add(flow.bundle)
        state = self._ranks.get(pair[1])
        if state is not None and state.waits_for == flow.bundle:
            task = self._lists[pair[1]][state.at]
            assert isinstance(task, Receive)  # noqa: S101 (for mypy: it waits for nothing else)
            self._spans.append(Span(pair[1], task, state.since, now))
            state.waits_for = None
            self._go_on(now, pair[1])


Key = TypeVar("Key")


def fair(
    paths: Mapping[Key, tuple[Resource, ...]], capacity: Callable[[Resource], float]
) -> dict[Key, float]:
    """Return each flow's bytes per second: max-min fair rates of flows over shared resources.

    Progressive filling: all rates grow alike until a resource is full, whose flows then keep their rate, and
    so on (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2).

    Args:
        paths: resources of each flow, at least one, each once.
        capacity: bytes per second of a resource.
    """
    if len(paths) == 1:
        return {flow: min(map(capacity, path)) for flow, path in paths.items()}
    crossing: dict[Resource, list[Key]] = {}
    for flow, path in paths.items():
        for resource in path:
            crossing.setdefault(resource, []).append(flow)
    left = {resource: capacity(resource) for resource in crossing}
    open_flows = {resource: len(flows) for resource, flows in crossing.items()}
    rates: dict[Key, float] = {}
    while len(rates) < len(paths):
        tightest = min(open_flows, key=lambda one: left[one] / open_flows[one])
        rate = left[tightest] / open_flows[tightest]
        for flow in crossing[tightest]:
            if flow in rates:
                continue
            rates[flow] = rate
            for resource in paths[flow]:
                left[resource] = max(0.0, left[resource] - rate)
                open_flows[resource] -= 1
                if not open_flows[resource]:
                    del open_flows[resource]
    return rates
