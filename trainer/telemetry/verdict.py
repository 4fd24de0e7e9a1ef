"""What a run is bound by: the bottleneck whose removal gains most, the figures behind it, what to try.

Pure: from `RunTelemetry` and `Facts` to a `Verdict`. The rules in words: docs/explanation/where-time-goes.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainer.telemetry import divided, findings, remedies
from trainer.telemetry.facts import Facts
from trainer.telemetry.losses import Losses, losses
from trainer.telemetry.records import RunTelemetry

Bound = Literal["compute", "network", "server", "input", "straggler"]
# A loss below this share of a step is what a good run has; the step is then bound by computing.
WORTH = 0.15
# Ranks that are late in turn: more of it is common where hosts are shared, and no setting is sure to cure it.
JITTER = 0.30
# Update, starting the step and the like, as a share of a step: above it the step is too small.
FIXED = 0.25
# Share of the time that GPUs are busy; below it the step is too small for them. Of cores nothing follows:
# others may be using them.
BUSY = 0.5


@dataclass(frozen=True)
class Verdict:
    """What a run is bound by.

    Attributes:
        bound: what limits a step most.
        cause: `small steps`: of the fixed costs of a step, a larger batch per step would make less. `late in
            turn`: no rank is slow, but in each step one is. `uneven`: a rank has more of the network than
            others. `idle by plan`: some ranks have nothing to do, on purpose. None: nothing further is known.
        summary: in one line.
        evidence: the figures, a sentence each.
        gain_at_most: share of a step's time, 0 to 1, that removing the bottleneck saves at most. Of
            `compute`: what is left when computing takes no time at all.
        gains: the same for each bound that this run could have.
        settings: keys of the configuration to try, the most promising first.
        step: seconds per step.
    """

    bound: Bound
    cause: Literal["small steps", "late in turn", "uneven", "idle by plan"] | None
    summary: str
    evidence: tuple[str, ...]
    gain_at_most: float
    gains: Mapping[str, float]
    settings: tuple[remedies.Setting, ...]
    step: float

    @property
    def is_well(self) -> bool:
        """Whether time goes into computing, so that no setting would gain much."""
        return self.bound == "compute" and self.cause is None

    def json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**dataclasses.asdict(self), "is_well": self.is_well}


def verdict(telemetry: RunTelemetry, facts: Facts) -> Verdict | None:
    """Return the verdict on a run; None without steps after those in which networks were traced."""
    lost = losses(telemetry.steps, together=not facts.asynchronous, divided=facts.is_divided)
    if lost is None or lost.step <= 0:
        return None
    waiting: Bound = "server" if findings.is_servers(telemetry, facts) else "network"
    gains: dict[str, float] = {
        "compute": 1 - (lost.communication + lost.hidden + lost.input) / lost.step,
        "input": lost.input / lost.step,
        waiting: lost.communication / lost.step,
        "straggler": lost.straggler / lost.step,
    }
    if len(telemetry.steps) == 1 and not facts.servers:
        del gains[waiting], gains["straggler"]
    gains = {name: round(min(1.0, max(0.0, gain)), 4) for name, gain in gains.items()}
    bound, cause = _bound(gains, lost, telemetry, facts)
    if cause == "late in turn":
        gains["straggler"] = round(lost.jitter / lost.step, 4)
    gain = lost.fixed / lost.step if bound == "compute" and cause == "small steps" else gains[bound]
    return Verdict(
        bound=bound,
        cause=cause,
        summary=findings.summary(bound, cause, gain, lost, facts),
        evidence=findings.evidence(bound, cause, lost, telemetry, facts),
        gain_at_most=round(gain, 4),
        gains=gains,
        settings=remedies.settings(bound, cause, lost, telemetry, facts),
        step=lost.step,
    )


def _bound(gains: Mapping[str, float], lost: Losses, telemetry: RunTelemetry, facts: Facts) -> Any:
    """The bottleneck whose removal gains most, where that is worth while, and its cause."""
    worth = {name: gain for name, gain in gains.items() if name != "compute" and gain >= WORTH}
    if worth:
        bound = max(worth, key=lambda name: worth[name])
        if bound == "straggler" and divided.idle(lost, facts):
            return "compute", "idle by plan"
        if bound == "straggler" and facts.is_divided:
            return bound, "uneven" if divided.is_by_plan(lost, facts) else None
        small = bound == "network" and findings.is_small(facts)
        return bound, "small steps" if small else None
    if lost.jitter / lost.step >= JITTER:
        return "straggler", "late in turn"
    busy = findings.gpus_busy(telemetry)
    if lost.fixed / lost.step >= FIXED or (busy is not None and busy < BUSY):
        return "compute", "small steps"
    return "compute", None
