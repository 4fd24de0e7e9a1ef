"""Predicted seconds of an update: the very task lists that ranks play, with the seconds of a profile. Pure.

The model: a rank does one task after the other, each for as long as `Durations` says; of sending and
receiving this is joining and cutting boxes, where the profile has it. A bundle occupies its link, from one
rank to another, for latency + bytes / bandwidth, one bundle after the other, and is there when that is over,
whatever the receiver does meanwhile; what a rank sends to other hosts also leaves its interface one bundle
after the other. Receiving waits until it is there. Not in it: what several ranks share (a host's interface, a
switch), and an interface that receives from several at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trainer.errors import InputError
from trainer.planning.placement.operations import Operation, OperationGraph
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
from trainer.planning.placement.units import Placement, Unit
from trainer.planning.profile import Profile

# A profile of the same network has the same FLOPs per sample, but for rounding.
_SAME_FLOPS = 1e-6


class PlayedPass(NamedTuple):
    """A rank computes passes of one micro-batch, without a pause: `forward` or `backward`.

    What is computed again belongs to the backward pass.
    """

    rank: int
    kind: str
    micro: int
    start: float
    end: float


@dataclass(frozen=True)
class Cost:
    """Seconds of one micro-batch's update.

    Attributes:
        step_s: until the last rank has finished.
        busy_s: of each rank, computing and updating.
        waiting_s: of each rank, the rest of the step: for messages, and for the last rank at the end.
        played: who works on which micro-batch when.
    """

    step_s: float
    busy_s: tuple[float, ...]
    waiting_s: tuple[float, ...]
    played: tuple[PlayedPass, ...] = ()

    @property
    def imbalance(self) -> float:
        """How much longer the busiest rank computes than the mean: max / mean - 1."""
        return imbalance(self.busy_s)


def imbalance(values: tuple[float, ...]) -> float:
    """Return max / mean - 1 of values that are not negative; 0 where all are 0."""
    total = math.fsum(values)
    return max(values) * len(values) / total - 1 if total else 0.0


def flops(placement: Placement, ranks: int) -> tuple[float, ...]:
    """Return the FLOPs of the forward pass on each rank."""
    operations = {one.name: one for one in placement.network.operations}
    per_rank = [0.0] * ranks
    for unit in placement.units:
        operation = operations[unit.operation]
        per_rank[unit.rank] += operation.flops * share(operation, unit)
    return tuple(per_rank)


@dataclass(frozen=True)
class Sent:
    """What a rank sends in one micro-batch's update: bytes, and bundles that travel as one message."""

    bytes: int
    messages: int


def sent(lists: TaskLists, ranks: int) -> tuple[Sent, ...]:
    """Return what each rank sends."""
    per_rank = []
    for rank in range(ranks):
        sends = [task for task in lists.get(rank, ()) if isinstance(task, Send)]
        per_rank.append(Sent(sum(one.bytes for task in sends for one in task.messages), len(sends)))
    return tuple(per_rank)


def owned(placement: Placement, ranks: int) -> tuple[int, ...]:
    """Return the parameters that each rank updates."""
    return tuple(
        sum(flow.need.elements(rank) for flow in placement.reductions.values()) for rank in range(ranks)
    )


def check_profile(profile: Profile, network: OperationGraph, ranks: int) -> None:
    """See that a profile is of this network, and has devices and links of `ranks` ranks.

    Raises:
        InputError: says what the profile lacks.
    """
    if profile.ranks < ranks:
        raise InputError(
            f"The profile has {profile.ranks} rank(s), and the plan {ranks}.",
            cure=f"mpirun -np {ranks} cingulum profile CONFIG --out FILE, or --ranks {profile.ranks}",
            key="devices",
        )
    samples = network.operations[-1].shape[0]
    for operation in network.operations:
        per_sample = profile.operation(operation.name).flops / profile.batch
        if not math.isclose(per_sample, operation.flops / samples, rel_tol=_SAME_FLOPS, abs_tol=_SAME_FLOPS):
            raise InputError(
                f"The profile of {profile.network} has {per_sample:.4g} FLOPs per sample for "
                f"{operation.name}, and this network {operation.flops / samples:.4g}.",
                cure="Make a profile of this configuration: cingulum profile CONFIG --out FILE",
                key=f"operations.{operation.name}.flops",
            )


def predict(
    placement: Placement,
    lists: TaskLists,
    profile: Profile,
    ranks: int,
    *,
    updated: Mapping[int, int] | None = None,
) -> Cost:
    """Play the task lists of a placement.

    Args:
        placement: its network's shapes hold the samples of a micro-batch, to which seconds are scaled.
        lists: of all ranks; `checking.check` found nothing wrong.
        profile: of the same network, with as many ranks or more; see `check_profile`.
        ranks: that train; those without tasks wait.
        updated: parameters that each rank updates; default: those that it owns.

    Raises:
        ValueError: ranks would wait for each other for ever.
        InputError: the profile is of another network.
    """
    updated = dict(enumerate(owned(placement, ranks))) if updated is None else updated
    playing = _Playing(placement, profile, updated, ranks)
    position = dict.fromkeys(lists, 0)
    moving = True
    while moving:
        moving = False
        for rank, tasks in lists.items():
            while position[rank] < len(tasks) and playing.do(rank, tasks[position[rank]]):
                position[rank] += 1
                moving = True
    if any(at < len(lists[rank]) for rank, at in position.items()):
        raise ValueError("ranks wait for each other for ever")
    step = max(playing.now)
    waits = tuple(step - one for one in playing.busy)
    return Cost(step, tuple(playing.busy), waits, playing.played)


class _Playing:
    """Where each rank is, in seconds from the start of the step."""

    def __init__(
        self, placement: Placement, profile: Profile, updated: Mapping[int, int], ranks: int
    ) -> None:
        self.now, self.busy = [0.0] * ranks, [0.0] * ranks
        self._own: dict[int, list[PlayedPass]] = {}
        self._profile = profile
        self._durations = Durations(placement, profile, updated)
        self._free: dict[tuple[int, int], float] = {}
        self._left: dict[int, float] = {}
        self._arrives: dict[tuple[Message, ...], float] = {}

    @property
    def played(self) -> tuple[PlayedPass, ...]:
        """What all ranks have computed, in the order of ranks."""
        return tuple(one for rank in sorted(self._own) for one in self._own[rank])

    def do(self, rank: int, task: Task) -> bool:
        """Do a rank's next task; returns False where it waits for what was not sent yet."""
        if isinstance(task, Receive):
            if task.messages not in self._arrives:
                return False
            self.now[rank] = max(self.now[rank], self._arrives[task.messages])
            self.now[rank] += self._durations.of(rank, task)
        elif isinstance(task, Send):
            self.now[rank] += self._durations.of(rank, task)
            self._send(rank, task)
        else:
            took = self._durations.of(rank, task)
            if not isinstance(task, UpdateOwned):
                self._play(rank, task, self.now[rank] + took)
            self.now[rank] += took
            self.busy[rank] += took
        return True

    def _play(self, rank: int, task: Compute | Recompute | Differentiate, end: float) -> None:
        kind, start = "forward" if isinstance(task, Compute) else "backward", self.now[rank]
        own = self._own.setdefault(rank, [])
        if own and (own[-1].kind, own[-1].micro, own[-1].end) == (kind, task.micro, start):
            own[-1] = own[-1]._replace(end=end)
        else:
            own.append(PlayedPass(rank, kind, task.micro, start, end))

    def _send(self, rank: int, task: Send) -> None:
        target = task.messages[0].target
        link, devices = self._profile.link(rank, target), self._profile.devices
        begins = max(self.now[rank], self._free.get((rank, target), 0.0))
        size = sum(one.bytes for one in task.messages)
        if devices[rank].host != devices[target].host:
            begins = max(begins, self._left.get(rank, 0.0))
            self._left[rank] = begins + size / link.bytes_per_second
        ends = begins + link.latency_s + size / link.bytes_per_second
        self._free[rank, target] = self._arrives[task.messages] = ends


# Seconds that a rank works on a task, by the profile. Pure.
#
# A part of an operation takes the share of its seconds that the part has of the elements of the output, or,
# where the operation adds up its input, of the input. An update takes time in proportion to the parameters
# that the rank updates. Sending and receiving take what the profile has for handling messages, and waiting
# for them comes on top.


def share(operation: Operation, unit: Unit) -> float:
    """Return the part of an operation's work that a unit of it is, 0 to 1; see the top of this file."""
    if operation.sums and unit.reads[0] is not None:
        return unit.reads[0].size / math.prod(operation.readings[0].shape)
    return unit.box.size / math.prod(operation.shape)


class Durations:
    """Seconds of the tasks of a placement.

    Args:
        placement: its network's shapes hold the samples of a micro-batch, to which seconds are scaled.
        profile: of the same network, with as many ranks or more.
        updated: parameters that each rank updates.
    """

    def __init__(self, placement: Placement, profile: Profile, updated: Mapping[int, int]) -> None:
        self._operations = {one.name: one for one in placement.network.operations}
        self._samples = placement.network.operations[-1].shape[0]
        self._profile, self._updated = profile, updated

    def of(self, rank: int, task: Task) -> float:
        """Return the seconds that a rank computes, or handles a bundle of messages.

        Raises:
            InputError: the profile is of another network.
        """
        if isinstance(task, UpdateOwned):
            return self._profile.update_s(rank, self._updated[rank])
        if isinstance(task, Send | Receive):
            return self._profile.handling_s(rank, sum(one.bytes for one in task.messages))
        is_forward = isinstance(task, Compute | Recompute)
        of = self._profile.forward_s if is_forward else self._profile.backward_s
        name = task.unit.operation
        # A convolution's gradient of its inputs takes about as long as that of its weights.
        part = 0.5 if isinstance(task, Differentiate) and task.of != "all" else 1.0
        whole = of(name, rank, self._samples)
        return self._profile.each_s(rank) + part * whole * share(self._operations[name], task.unit)
