"""How an update is divided where each rank computes some filters, and what that was decided by."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from pydantic import ValidationError

from trainer.planning.placement.balance import Measured
from trainer.strategies.placed.plan import PlacedPlan


@dataclasses.dataclass(frozen=True)
class FiltersPlan(PlacedPlan):
    """How an update is divided.

    Attributes:
        balance: what measured shares were decided by: `by`, `measured` (see `Measured`), the `filters` of
            each convolution by rank of a replica, and what is predicted: `convolutions_s` of a micro-batch,
            messages included, and the `imbalance` of computing them, max / mean - 1. None where nothing was
            measured.
    """

    balance: dict[str, Any] | None = dataclasses.field(default=None, kw_only=True)

    @classmethod
    def from_placed(cls, plan: PlacedPlan, balance: dict[str, Any] | None) -> FiltersPlan:
        """Return a plan with what it was decided by."""
        given = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
        return cls(**given, balance=balance)


def measured_in(plan: dict[str, Any] | None) -> Measured | None:
    """Return what was measured for a plan, from plan.json; None where nothing was, or it cannot be read."""
    about = (plan or {}).get("balance")
    if not isinstance(about, dict):
        return None
    try:
        # Of text and not of the tree: strict JSON has lists where Python has tuples.
        return Measured.model_validate_json(json.dumps(about.get("measured")))
    except ValidationError:
        return None
