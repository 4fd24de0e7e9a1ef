"""What strategies would cost, as `cingulum plan` tells it: for its tables, and as JSON."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.planning.hypergraph import replicas
from trainer.planning.hypergraph.groups import groups
from trainer.planning.hypergraph.traffic import Traffic
from trainer.planning.placement import costs, ways
from trainer.planning.placement.costs import Cost, Sent
from trainer.planning.placement.memory import Memory
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.plan_file import PlanFile, layouts_of
from trainer.planning.placement.tasks import TaskLists
from trainer.planning.placement.units import Placement
from trainer.planning.placement.ways import Layouts
from trainer.planning.profile import Profile
from trainer.planning.stages.planners import Assignment
from trainer.strategies.placed.hypergraph_plan import Decided

# Lists that ranks play, and how often in an update.
Rounds = tuple[tuple[TaskLists, int], ...]


@dataclass(frozen=True)
class StrategyOutlook:
    """What an update costs under one strategy.

    Attributes:
        label: name of the strategy, and what else tells it from another row.
        way: how it divides the network, for people.
        file: who computes what.
        placement: the same, and what follows from it.
        sent: by each rank, in an update.
        memory: of each rank.
        held: parameters that each rank computes with.
        owned: parameters that each rank updates.
        flops: forward, of each rank, in an update.
        rounds: what ranks do in an update.
        cost: seconds of an update; None without a profile.
        planners: of stages, what each planner makes of the same partitions.
        decided: of a hypergraph, what else was tried, and why layers are divided as they are.
    """

    label: str
    way: str
    file: PlanFile
    placement: Placement
    sent: tuple[Sent, ...]
    memory: tuple[Memory, ...]
    held: tuple[int, ...]
    owned: tuple[int, ...]
    flops: tuple[float, ...]
    rounds: Rounds
    cost: Cost | None
    planners: tuple[Assignment, ...] = ()
    decided: Decided | None = None

    @property
    def imbalance(self) -> float:
        """Of seconds of computing; without a profile, of FLOPs."""
        return self.cost.imbalance if self.cost else costs.imbalance(self.flops)


@dataclass(frozen=True)
class ToldOutlook:
    """What an update costs under a strategy of a user's own, which tells what its ranks send, and not who
    computes what: each is taken to compute the whole network, for its samples.

    Attributes:
        label: as in `StrategyOutlook`, as are `way`, `sent`, `flops` and `cost`.
        memory: of each rank; where the strategy does not tell it, that of the network and its update.
    """

    label: str
    way: str
    sent: tuple[Sent, ...]
    memory: tuple[Memory, ...]
    flops: tuple[float, ...]
    cost: Cost | None

    @property
    def imbalance(self) -> float:
        """Of FLOPs."""
        return costs.imbalance(self.flops)


@dataclass(frozen=True)
class Impossible:
    """Why a strategy cannot divide this network over these ranks; `label` as in `StrategyOutlook`."""

    label: str
    reason: str


@dataclass(frozen=True)
class Unlisted:
    """A plan over more ranks than messages and memory are listed of; see `estimating`.

    Attributes:
        label: as in `StrategyOutlook`, as are `way`, `file` and `flops`.
        layouts: of all operations.
        held: bytes of trainable variables that each rank computes with.
        decided: what was found, and why layers are divided as they are.
    """

    label: str
    way: str
    file: PlanFile
    layouts: Layouts
    flops: tuple[float, ...]
    held: tuple[int, ...]
    decided: Decided

    @property
    def imbalance(self) -> float:
        """Of FLOPs."""
        return costs.imbalance(self.flops)


@dataclass(frozen=True)
class Comparison:
    """What the strategies would cost.

    Attributes:
        network: name of it.
        sample_shape: of what it takes.
        precision: Keras' dtype policy.
        ranks: that train.
        batch: samples of a micro-batch, over all ranks.
        accumulation: micro-batches per update.
        parameters: trainable numbers.
        slots: numbers that the optimizer keeps for each.
        chosen: the strategy that was asked for.
        others: beside it.
    """

    network: str
    sample_shape: tuple[int, ...]
    precision: str
    ranks: int
    batch: int
    accumulation: int
    parameters: int
    slots: int
    chosen: StrategyOutlook | ToldOutlook | Unlisted
    others: tuple[StrategyOutlook | ToldOutlook | Impossible, ...]

    @property
    def file(self) -> PlanFile | None:
        """Who computes what under the one that is chosen; None where it does not tell."""
        return None if isinstance(self.chosen, ToldOutlook) else self.chosen.file


def tree(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison for JSON; `plan` is the content of the file of the one that is chosen, or null."""
    fields: dict[str, Any] = {
        field.name: getattr(comparison, field.name)
        for field in dataclasses.fields(comparison)
        if field.name not in ("chosen", "others")
    }
    fields["sample_shape"] = list(comparison.sample_shape)
    fields["strategies"] = [_row(one) for one in (comparison.chosen, *comparison.others)]
    fields["plan"] = comparison.file and comparison.file.model_dump(mode="json")
    return fields


def _row(outlook: StrategyOutlook | ToldOutlook | Unlisted | Impossible) -> dict[str, Any]:
    if isinstance(outlook, Impossible):
        return {"strategy": outlook.label, "refused": outlook.reason}
    if isinstance(outlook, Unlisted):
        return {
            "strategy": outlook.label,
            "refused": None,
            "way": outlook.way,
            "imbalance": outlook.imbalance,
            "flops": list(outlook.flops),
            "variable_bytes": list(outlook.held),
            "decided": {**dataclasses.asdict(outlook.decided), "file": None},
        }
    row: dict[str, Any] = {
        "strategy": outlook.label,
        "refused": None,
        "way": outlook.way,
        "step_s": outlook.cost and outlook.cost.step_s,
        "busy_s": outlook.cost and list(outlook.cost.busy_s),
        "waiting_s": outlook.cost and list(outlook.cost.waiting_s),
        "sent_bytes": [rank.bytes for rank in outlook.sent],
        "messages": [rank.messages for rank in outlook.sent],
        "imbalance": outlook.imbalance,
        "flops": list(outlook.flops),
        "memory_bytes": [{**dataclasses.asdict(rank), "total": rank.total} for rank in outlook.memory],
    }
    if isinstance(outlook, ToldOutlook):
        return row
    return row | {
        "parameters_held": list(outlook.held),
        "parameters_owned": list(outlook.owned),
        "planners": [dataclasses.asdict(each) for each in outlook.planners],
        "decided": outlook.decided and {**dataclasses.asdict(outlook.decided), "file": None},
    }


# What `cingulum plan` tells of a network divided over more ranks than messages are listed of.


def outlook_of_many(
    label: str, way: str, network: OperationGraph, layouts: Layouts, ranks: int, decided: Decided, times: int
) -> Unlisted:
    """Return what a plan over many ranks is.

    Args:
        label: name of the strategy.
        way: how it divides the network.
        network: whose shapes hold the samples of a micro-batch.
        layouts: of its operations.
        ranks: that would train.
        decided: what was found for them.
        times: micro-batches of an update.
    """
    flops, some = np.zeros(ranks), groups(network)
    for operation in network.operations:
        if operation.readings:
            held = layouts[operation.name]
            for piece in held.pieces:
                flops[piece.rank] += times * operation.flops * piece.box.size / math.prod(held.shape)
    variables = np.zeros(ranks, np.int64)
    own = Traffic(network, some).held([layouts[group.names[0]] for group in some])
    variables[: len(own)] = own
    return Unlisted(
        label, way, decided.divided, layouts, tuple(flops.tolist()), tuple(variables.tolist()), decided
    )


# What an update of many replicas costs, of what one of them does: they are alike.


def outlook_of_replicas(
    replica: StrategyOutlook,
    network: OperationGraph,
    count: int,
    *,
    times: int,
    slots: int,
    profile: Profile | None,
) -> StrategyOutlook:
    """Return what all replicas cost: bytes and messages exactly, seconds as if the sums hid behind nothing.

    Args:
        replica: the outlook of one of them; its seconds are those of its own messages.
        network: with the samples of all replicas.
        count: number of replicas.
        times: micro-batches of an update, after each of which gradients are summed.
        slots: numbers that the optimizer keeps for each parameter.
        profile: by which `replica` was predicted.
    """
    ranks = len(replica.sent)
    alone, all_of_them = (replicas.summed(replica.placement, ranks, number) for number in (1, count))
    owned = [int(size) for size in all_of_them.owned_bytes]
    where = [(rank, rank % ranks) for rank in range(count * ranks)]
    more = [int(all_of_them.sent[rank] - alone.sent[own]) for rank, own in where]
    messages = [int(all_of_them.messages[rank] - alone.messages[own]) for rank, own in where]
    received = [int(all_of_them.received[rank] - alone.received[own]) for rank, own in where]
    seconds = 0.0 if profile is None else times * replicas.between(max(more), profile, all_of_them.rounds)
    layouts = ways.copies(layouts_of(replica.placement), network, count, ranks)
    return dataclasses.replace(
        replica,
        way=f"{count} replicas of {ranks} ranks, one of which was planned; for sums over all of them "
        f"(gradients, statistics of batch norm) a rank sends at most {times * max(more) / 2**20:.3g} MiB "
        f"more. One replica: {replica.way}",
        file=PlanFile.of_layouts(
            network,
            layouts,
            name=replica.file.network,
            strategy=replica.file.strategy,
            ranks=count * ranks,
            replicas=count,
        ),
        sent=tuple(
            Sent(
                replica.sent[own].bytes + times * more[rank],
                replica.sent[own].messages + times * messages[rank],
            )
            for rank, own in where
        ),
        memory=tuple(_memory(replica, own, owned[rank], slots, received[rank]) for rank, own in where),
        held=tuple(replica.held[own] for _, own in where),
        owned=tuple(int(all_of_them.owned[rank]) for rank, _ in where),
        flops=tuple(replica.flops[own] for _, own in where),
        cost=None if replica.cost is None else _cost(replica.cost, count, seconds),
    )


def _memory(one: StrategyOutlook, rank: int, owned: int, slots: int, received: int) -> Memory:
    """That of a replica's rank, which owns less, and has gradients of other replicas before the update."""
    before = one.memory[rank]
    widths = {w.path: w.width for of in one.placement.network.operations for w in of.weights}
    held = sum(width * one.placement.holders[path].elements(rank) for path, width in widths.items())
    return Memory(held + owned, slots * owned, before.kept, before.working + received)


def _cost(one: Cost, count: int, seconds: float) -> Cost:
    step, busy = one.step_s + seconds, count * one.busy_s
    return Cost(step, busy, tuple(step - each for each in busy))
