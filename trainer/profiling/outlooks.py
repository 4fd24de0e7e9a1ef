"""What strategies would cost, as `cingulum plan` tells it: for its tables, and as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from trainer.planning.placement import costs
from trainer.planning.placement.costs import Cost, Sent
from trainer.planning.placement.memory import Memory
from trainer.planning.placement.plan_file import PlanFile
from trainer.planning.placement.tasks import TaskLists
from trainer.planning.placement.units import Placement
from trainer.planning.placement.ways import Layouts
from trainer.planning.stages.planners import Assignment
from trainer.strategies.placed.hypergraph_plan import Decided

# Lists that ranks play, and how often in an update.
Rounds = tuple[tuple[TaskLists, int], ...]


@dataclass(frozen=True)
class Outlook:
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
class Impossible:
    """Why a strategy cannot divide this network over these ranks; `label` as in `Outlook`."""

    label: str
    reason: str


@dataclass(frozen=True)
class Unlisted:
    """A plan over so many ranks that messages and memory of each are not told; see `estimating`.

    Attributes:
        label: as in `Outlook`, as are `way`, `file` and `flops`.
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
    chosen: Outlook | Unlisted
    others: tuple[Outlook | Impossible, ...]


def tree(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison for JSON; `plan` is the content of the file of the one that is chosen."""
    found: dict[str, Any] = {
        field.name: getattr(comparison, field.name)
        for field in dataclasses.fields(comparison)
        if field.name not in ("chosen", "others")
    }
    found["sample_shape"] = list(comparison.sample_shape)
    found["strategies"] = [_row(one) for one in (comparison.chosen, *comparison.others)]
    found["plan"] = comparison.chosen.file.model_dump(mode="json")
    return found


def _row(one: Outlook | Unlisted | Impossible) -> dict[str, Any]:
    if isinstance(one, Impossible):
        return {"strategy": one.label, "refused": one.reason}
    if isinstance(one, Unlisted):
        return {
            "strategy": one.label,
            "refused": None,
            "way": one.way,
            "imbalance": one.imbalance,
            "flops": list(one.flops),
            "variable_bytes": list(one.held),
            "decided": {**dataclasses.asdict(one.decided), "file": None},
        }
    return {
        "strategy": one.label,
        "refused": None,
        "way": one.way,
        "step_s": one.cost and one.cost.step_s,
        "busy_s": one.cost and list(one.cost.busy_s),
        "waiting_s": one.cost and list(one.cost.waiting_s),
        "sent_bytes": [rank.bytes for rank in one.sent],
        "messages": [rank.messages for rank in one.sent],
        "imbalance": one.imbalance,
        "flops": list(one.flops),
        "parameters_held": list(one.held),
        "parameters_owned": list(one.owned),
        "planners": [dataclasses.asdict(each) for each in one.planners],
        "decided": one.decided and {**dataclasses.asdict(one.decided), "file": None},
        "memory_bytes": [{**dataclasses.asdict(rank), "total": rank.total} for rank in one.memory],
    }
