"""What a plan is to be. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainer.planning.hypergraph.search import Objective

Balance = Literal["total", "layers"]


@dataclass(frozen=True)
class PartitionGoal:
    """What is looked for.

    Attributes:
        objective: seconds of an update, or bytes that it sends.
        balance: what must be balanced where bytes count: the work of each rank, or that of each layer, too.
        imbalance: how much longer than the mean the busiest rank may compute, where bytes count.
        granularity: tiles along an axis that is cut; None: as many as ranks, and twice as many.
        seed: of the partitioner.
    """

    objective: Objective = "time"
    balance: Balance = "total"
    imbalance: float = 0.1
    granularity: int | None = None
    seed: int = 0
