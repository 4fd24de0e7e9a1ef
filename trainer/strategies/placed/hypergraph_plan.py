"""How an update is divided where nobody designed it, and by what that was decided."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from trainer.errors import InputError
from trainer.planning.placement.plan_file import PlanFile
from trainer.strategies.placed.plan import PlacedPlan


@dataclasses.dataclass(frozen=True)
class Decided:
    """Who computes what in one replica, and what else was tried.

    Attributes:
        asked: the keys of the configuration that it was decided for.
        label: from which start the search found it.
        by: seconds of a `profile`, or of a `reference` accelerator in proportion to FLOPs.
        bytes: that a replica's ranks send in an update, its `micro_batches` together, by cause.
        step_s: predicted seconds of an update of one replica, of a profile or of the reference.
        imbalance: how much longer the busiest rank computes than if all were done at once.
        layer_imbalance: the largest of any layer.
        uniform: ways that follow one rule: `label`, `bytes`, `step_s` and both imbalances of each.
        hypergraphs: that were divided: see `planning.Divided`.
        rows: how layers are divided, and why: see `explaining.Row`.
        file: the content of a plan's file, JSON.
        left_out: see `planning.Plan`.
    """

    asked: dict[str, Any]
    label: str
    by: str
    bytes: dict[str, int]
    step_s: float
    imbalance: float
    layer_imbalance: float
    uniform: list[dict[str, Any]]
    hypergraphs: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    file: str
    left_out: list[str] = dataclasses.field(default_factory=list)

    @property
    def divided(self) -> PlanFile:
        """Who computes what.

        Raises:
            InputError: the content cannot be read.
        """
        return PlanFile.parse(self.file, Path("plan.json"))

    def missing(self) -> list[str]:
        """Return a sentence on the partitions that could not be had; none where all could."""
        if not self.left_out:
            return []
        more = f" (and {len(self.left_out) - 1} more)" if len(self.left_out) > 1 else ""
        return [f"Mt-KaHyPar gave no {self.left_out[0]}{more}. The plan is the best of what else was found."]


@dataclasses.dataclass(frozen=True)
class HypergraphPlan(PlacedPlan):
    """How an update is divided.

    Attributes:
        decided: what was found; None where a file says who computes what.
    """

    decided: Decided | None = dataclasses.field(default=None, kw_only=True, repr=False)

    def drawn(self) -> dict[str, Any]:
        """Return who holds what, what crosses for it, and how that was decided."""
        return {**super().drawn(), "decided": self.decided and dataclasses.asdict(self.decided)}

    def result(self) -> dict[str, Any]:
        """Return what result.json has of the plan."""
        found = self.decided
        if found is None:
            return {}
        return {"planned_bytes": sum(found.bytes.values()), "planned_step_s": found.step_s}


def decided_in(plan: dict[str, Any] | None) -> Decided | None:
    """Return what was decided by plan.json; None where there is nothing, or it cannot be read."""
    entry = (plan or {}).get("decided")
    if not isinstance(entry, dict) or {"left_out": [], **entry}.keys() != Decided.__dataclass_fields__.keys():
        return None
    if not isinstance(entry["file"], str):
        return None
    decided = Decided(**entry)
    try:
        _ = decided.divided
    except InputError:
        return None
    return decided
