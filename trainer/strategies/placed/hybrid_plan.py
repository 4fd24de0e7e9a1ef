"""How an update is divided where stages pass on micro-batches, and by what it was decided."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainer.planning.placement import staging
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.staging import Group
from trainer.strategies.placed.plan import PlacedPlan


@dataclasses.dataclass(frozen=True)
class Division:
    """Which rank of a replica computes which partition.

    Attributes:
        planner: that decided it.
        schedule: that it was decided for.
        micro_batches: of an update.
        partitions: first layer of each, in the order of the network.
        ranks: of each partition.
        by: what it was decided by: seconds of a profile, or FLOPs.
        step_s: predicted seconds of an update, without those of reading batches; None by FLOPs.
        gap: to a proven bound, step / bound - 1: no division can be better by more.
        fits: whether it was predicted to fit into the ranks' memory.
        played: which rank is predicted to work on which micro-batch when: see `costs.Played`.
        recompute: activations are computed again for the backward pass.
    """

    planner: str
    schedule: str
    micro_batches: int
    partitions: tuple[str, ...]
    ranks: tuple[int, ...]
    by: str
    step_s: float | None
    gap: float
    fits: bool
    played: tuple[tuple[Any, ...], ...] = ()
    recompute: bool = False

    def fits_network(self, network: OperationGraph, ranks: int) -> bool:
        """Return whether it divides this network over `ranks` ranks; a division that was edited may not."""
        try:
            parts = self.parts(network)
        except ValueError:
            return False
        count = sum(bool(one.readings) for one in network.operations)
        return all(parts) and sum(map(len, parts)) == count and max(self.ranks) < ranks

    def parts(self, network: OperationGraph) -> list[Group]:
        """Return the operations of each partition; an evaluated network has others than a trained one.

        Raises:
            ValueError: the network has no such layer.
        """
        placed = [one for one in network.operations if one.readings]
        layers = [one.layer or one.name for one in placed]
        starts = [layers.index(first) for first in self.partitions]
        ends = [*starts[1:], len(placed)]
        return [
            tuple(one.name for one in placed[start:stop]) for start, stop in zip(starts, ends, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class HybridPlan(PlacedPlan):
    """How an update is divided.

    Attributes:
        division: what the planner decided; None where a file says who computes what.
        stages: runs of operations on the same ranks.
        batch_norm_samples: over how many samples batch norm takes its statistics; None without batch norm.
    """

    division: Division | None = dataclasses.field(default=None, kw_only=True)
    stages: int = dataclasses.field(default=1, kw_only=True)
    batch_norm_samples: int | None = dataclasses.field(default=None, kw_only=True)

    @classmethod
    def of_stages(cls, plan: PlacedPlan, division: Division | None) -> HybridPlan:
        """Return a plan with what its placement says of stages."""
        placement = plan.placement
        network = placement.network
        stages = staging.stages(network, lambda name: [unit.rank for unit in placement.of(name)])
        count, way = None, plan.way
        if any(one.kind == "batch_moments" for one in network.operations):
            count = network.operations[-1].shape[0]
            way += f"; batch norm over {count} of {plan.global_batch} samples of an update"
        return cls.from_placed(plan, division=division, stages=len(stages), batch_norm_samples=count, way=way)

    def tree(self) -> dict[str, Any]:
        """Return every attribute as it goes into plan.json."""
        division = self.division and dataclasses.asdict(self.division)
        return {**super().tree(), "division": division}

    def result(self) -> dict[str, Any]:
        """Return what result.json has of the plan."""
        found = self.division
        return {} if found is None else {"planned_step_s": found.step_s, "planned_gap": found.gap}


def division_in(plan: dict[str, Any] | None) -> Division | None:
    """Return the division of plan.json; None where there is none, or it cannot be read."""
    entry = (plan or {}).get("division")
    names = {field.name for field in dataclasses.fields(Division)}
    if not isinstance(entry, dict) or {*entry, "recompute"} != names:  # older plans do not have it
        return None
    lists = entry["partitions"], entry["ranks"]
    if not all(isinstance(one, list) and one for one in lists) or len(lists[0]) != len(lists[1]):
        return None
    if not all(isinstance(rank, int) and rank >= 0 for rank in lists[1]):
        return None
    return Division(**{**entry, "partitions": tuple(map(str, lists[0])), "ranks": tuple(lists[1])})
