"""How an update is divided where each rank computes some filters, what by, and what later took its place."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from pydantic import ValidationError

from trainer.planning.placement.balance import LEAST_SAVING, RankSpeeds
from trainer.planning.profile import Device
from trainer.strategies.base import Share
from trainer.strategies.placed import calibration
from trainer.strategies.placed.calibration import Sample
from trainer.strategies.placed.learner import PlacedModel
from trainer.strategies.placed.plan import PlacedPlan

# Of a plan's attributes, those that another division changes.
CHANGED = ("way", "sent_per_update", "messages_per_update", "held", "owned", "flops", "balance")


@dataclasses.dataclass(frozen=True)
class Recalibration:
    """A division of a run in which filters were divided anew.

    Attributes:
        step: updates done before its first one.
        measured: what it was decided by.
        told: of it, for plan.json: `step`, and what `CHANGED` names.
    """

    step: int
    measured: RankSpeeds
    told: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class FiltersPlan(PlacedPlan):
    """How an update is divided.

    Attributes:
        balance: what measured shares were decided by: `by` and `mode` of the configuration, `measured` (see
            `RankSpeeds`), the `filters` of each convolution by rank of a replica, and what is predicted:
            `convolutions_s` of a micro-batch, messages included, and the `imbalance` of computing them,
            max / mean - 1. None where nothing was measured.
        recalibrated: where filters were divided anew, every division of the run, ascending, the first one of
            step 0; those to come that plan.json had, too.
    """

    balance: dict[str, Any] | None = dataclasses.field(default=None, kw_only=True)
    recalibrated: tuple[Recalibration, ...] = dataclasses.field(default=(), kw_only=True, repr=False)

    def share(self, rank: int) -> Share:
        """Return a replica's samples; all of each where the rank may be given other filters."""
        share = super().share(rank)
        return dataclasses.replace(share, space=None) if self.may_change else share

    def tree(self) -> dict[str, Any]:
        """Return this division, and under `recalibrated` all of the run with their steps."""
        return {**super().tree(), "recalibrated": [one.told for one in self.recalibrated]}

    def told(self, step: int) -> dict[str, Any]:
        """Return what plan.json says of this division, which began after `step` updates."""
        return {"step": step, **{name: getattr(self, name) for name in CHANGED}}

    def result(self) -> dict[str, Any]:
        """Return after which updates the division changed, and to what."""
        changes = [{"step": one.step, "way": one.told["way"]} for one in self.recalibrated[1:]]
        return {"recalibrated": changes} if self.may_change else {}


def measured_in(plan: dict[str, Any] | None) -> RankSpeeds | None:
    """Return what was measured for a plan, from plan.json; None where nothing was, or it cannot be read."""
    about = (plan or {}).get("balance")
    if not isinstance(about, dict):
        return None
    try:
        # Of text and not of the tree: strict JSON has lists where Python has tuples.
        return RankSpeeds.model_validate_json(json.dumps(about.get("measured")))
    except ValidationError:
        return None


def recalibrated_in(plan: dict[str, Any], devices: tuple[Device, ...]) -> tuple[Recalibration, ...]:
    """Return the divisions that plan.json has of a run, up to the first that cannot be read.

    Args:
        plan: plan.json.
        devices: of all ranks.
    """
    divisions: list[Recalibration] = []
    listed = plan.get("recalibrated")
    for entry in listed if isinstance(listed, list) else ():
        measured = measured_in(entry) if isinstance(entry, dict) else None
        if measured is None or measured.devices != devices:
            break
        step = entry.get("step")
        follows = isinstance(step, int) and (step > divisions[-1].step if divisions else step == 0)
        if not (follows and isinstance(entry.get("way"), str)):
            break
        divisions.append(Recalibration(step, measured, entry))
    return tuple(divisions)


# What the ranks' devices can do now, found out by all ranks between two updates.


def look(learner: PlacedModel, speeds: RankSpeeds, sample: Sample) -> tuple[RankSpeeds, float] | None:
    """Measure the devices again, where the updates since the last look may have lost time; a collective.

    However filters are divided, an update takes at least as long as the rank that waits most is busy now: if
    it took less, every rank would compute less than now. So no division saves more than the largest part of
    an update that a rank waits for messages. Where that is little nothing is measured, and a look costs one
    small message. Links keep their figures, since the learner's messages use them.

    Args:
        learner: on all ranks.
        speeds: what was measured last.
        sample: a convolution of the network.

    Returns:
        What the ranks can do now, and the seconds that it takes to trace another division, the same on every
        rank; None where no division would save enough.
    """
    world = learner.world
    everyones = world.allgather_object([learner.waiting.share(), learner.waiting.traced_s])
    shares = [share for share, _ in everyones if share is not None]
    if len(shares) == world.size and max(shares) <= LEAST_SAVING:
        return None
    seconds = calibration.seconds_per_gflop(world, sample)
    return speeds.model_copy(update={"seconds_per_gflop": seconds}), max(traced for _, traced in everyones)
