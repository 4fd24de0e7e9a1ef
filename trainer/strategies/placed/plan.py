"""How an update is divided by a placement: who computes what, and what crosses between ranks."""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from trainer.errors import ConfigError
from trainer.planning.communication import Flow
from trainer.planning.exchange import Exchange
from trainer.planning.placement import costs, holding
from trainer.planning.placement.boxes import hull
from trainer.planning.placement.memory import Memory, memory
from trainer.planning.placement.tasks import Send, TaskLists
from trainer.planning.placement.units import Placement
from trainer.ranks.messages import MOST_BYTES
from trainer.strategies.base import Plan, Share

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclasses.dataclass(frozen=True)
class PlacedPlan(Plan):
    """How an update is divided.

    Attributes:
        replicas: groups of ranks, each of which takes its own samples.
        way: how one replica is divided, for people.
        sent_per_update: bytes that each rank sends.
        messages_per_update: messages that each rank sends.
        held: of each rank, parameters that it computes with.
        owned: of each rank, parameters that it updates and keeps the optimizer's state of.
        flops: of each rank, in the forward pass of a micro-batch.
        placement: of an update's micro-batch.
        lists: the tasks of every rank.
        evaluated: placement of a batch that is only evaluated.
        forwards: the tasks of every rank for it.
        slots: numbers that the optimizer keeps for each parameter.
        may_change: whether another plan may follow while the run is trained.
        micro_batches: parts of a replica's samples, whose passes follow each other through its ranks.
    """

    replicas: int
    way: str
    sent_per_update: tuple[int, ...]
    messages_per_update: tuple[int, ...]
    held: tuple[int, ...]
    owned: tuple[int, ...]
    flops: tuple[float, ...]
    placement: Placement = dataclasses.field(repr=False)
    lists: TaskLists = dataclasses.field(repr=False)
    evaluated: Placement = dataclasses.field(repr=False)
    forwards: TaskLists = dataclasses.field(repr=False)
    slots: int = dataclasses.field(repr=False)
    may_change: bool = dataclasses.field(default=False, kw_only=True, repr=False)
    micro_batches: int = dataclasses.field(default=1, kw_only=True)

    @classmethod
    def from_placed(cls, plan: PlacedPlan, **more: Any) -> Self:
        """Return a plan with these attributes besides."""
        given = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
        return cls(**(given | more))

    @property
    def per_replica(self) -> int:
        """Ranks of a replica."""
        return self.world_size // self.replicas

    def share(self, rank: int) -> Share:
        """Return a replica's samples, and the box of each that the rank's units read."""
        return Share(rank // self.per_replica, self.replicas, space(self.placement, rank))

    def evaluation_share(self, rank: int) -> Share:
        """Return all samples: every rank has a part in each."""
        return Share(0, 1, space(self.evaluated, rank))

    def memory(self) -> tuple[Memory, ...]:
        """Return what each rank is estimated to need."""
        return self._memory

    @functools.cached_property
    def _memory(self) -> tuple[Memory, ...]:
        return memory(self.placement, self.lists, self.world_size, slots=self.slots)

    def exchange(self) -> Exchange:
        """Return what one update moves: messages between ranks, as their tasks have them."""
        pairs = sorted(sent(self.lists).items())
        flows = tuple(Flow(*pair, self.accumulation * size) for pair, size in pairs)
        received = [sum(one.size for one in flows if one.target == rank) for rank in range(self.world_size)]
        counted, messages = round(max(received)), self.messages_per_update
        return Exchange((flows,), self.world_size, parts=1, counted=counted, messages=messages)

    def drawn(self) -> dict[str, Any]:
        """Return who holds what, and what crosses for it."""
        return {"drawing": holding.figures(self.placement, self.lists, self.world_size, self.accumulation)}

    def result(self) -> dict[str, Any]:
        """Return what result.json has of the plan."""
        return {}

    def __str__(self) -> str:
        busiest = max(self.sent_per_update) / 2**20
        micro_batches = self.accumulation * self.micro_batches
        return (
            f"{self.strategy}: {self.global_batch} samples per update = {self.replicas} replica(s) of "
            f"{self.per_replica} rank(s) x {micro_batches} micro-batch(es) x "
            f"{self.micro_batch // self.micro_batches}; "
            f"{self.way}; {self.parameters:,} parameters, at most {max(self.held):,} on a rank; "
            f"{busiest:.2f} MiB sent by the busiest rank per update"
        )


def space(placement: Placement, rank: int) -> tuple[tuple[int, int], ...] | None:
    """Return the box of the volumes, `(b, D, H, W, C)`, that a rank reads; None where there are none."""
    volumes = next((one for one in placement.network.inputs if len(one.shape) == 5), None)
    if volumes is None:
        return None
    read = [unit.box for unit in placement.of(volumes.name) if unit.rank == rank]
    return hull(read).ranges[1:4] if read else ((0, 0),) * 3


def sent(lists: TaskLists) -> dict[tuple[int, int], int]:
    """Return the bytes that go from rank to rank in one micro-batch."""
    sizes: dict[tuple[int, int], int] = defaultdict(int)
    for tasks in lists.values():
        for one in (one for task in tasks if isinstance(task, Send) for one in task.messages):
            sizes[one.source, one.target] += one.bytes
    return dict(sizes)


def facts(placement: Placement, lists: TaskLists, world_size: int, accumulation: int) -> dict[str, Any]:
    """Return what a plan says of a placement, by its attributes."""
    sends = {
        rank: [task for task in lists.get(rank, ()) if isinstance(task, Send)] for rank in range(world_size)
    }
    ranks = range(world_size)
    trained = placement.reductions
    return {
        "sent_per_update": tuple(
            accumulation * sum(one.bytes for task in sends[rank] for one in task.messages) for rank in ranks
        ),
        "messages_per_update": tuple(accumulation * len(sends[rank]) for rank in ranks),
        "held": tuple(
            sum(held.elements(rank) for path, held in placement.holders.items() if path in trained)
            for rank in ranks
        ),
        "owned": tuple(sum(flow.need.elements(rank) for flow in trained.values()) for rank in ranks),
        "flops": costs.flops(placement, world_size),
        "placement": placement,
        "lists": lists,
    }


def check_sizes(lists: TaskLists) -> None:
    """Check that MPI takes every message.

    Raises:
        ConfigError: one has 2 GiB or more.
    """
    for task in (task for tasks in lists.values() for task in tasks if isinstance(task, Send)):
        size = sum(one.bytes for one in task.messages)
        if size > MOST_BYTES:
            raise ConfigError(
                f"{task.messages[0]} has {size / 2**30:.1f} GiB, and MPI sends less than 2 GiB at once.",
                cure="Cut volumes into more parts, or take fewer samples at once "
                "(train.accumulation, data.evaluation_batch).",
            )
