"""What a run is bound by: the bottleneck whose removal gains most, the figures behind it, what to try.

Pure: from `RunTelemetry` and `RunFacts` to a `Verdict`. The rules: docs/explanation/where-time-goes.md.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from trainer.config import RunConfig
from trainer.config.strategy import DEFAULT
from trainer.telemetry import divided, findings
from trainer.telemetry.facts import RunFacts
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
    settings: tuple[ProposedSetting, ...]
    step: float

    @property
    def is_well(self) -> bool:
        """Whether time goes into computing, so that no setting would gain much."""
        return self.bound == "compute" and self.cause is None

    def json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**dataclasses.asdict(self), "is_well": self.is_well}


def verdict(telemetry: RunTelemetry, facts: RunFacts) -> Verdict | None:
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
        settings=settings(bound, cause, lost, telemetry, facts),
        step=lost.step,
    )


def _bound(gains: Mapping[str, float], lost: Losses, telemetry: RunTelemetry, facts: RunFacts) -> Any:
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


# Which keys of the configuration to try, for each thing that can bind a run.
#
# Every proposal is a configuration that `cingulum train` takes: what does not pass its checks is not
# proposed.


MIB = 2**20
# Cores as busy as this have nothing left for more reading threads.
FULL = 0.9


@dataclass(frozen=True)
class ProposedSetting:
    """A change to try.

    Attributes:
        changes: dotted key -> value; more than one where only both together make sense.
        now: the same keys -> their values in this run.
        why: what it does, and what it costs, in a sentence.
    """

    changes: Mapping[str, Any]
    now: Mapping[str, Any]
    why: str

    @property
    def words(self) -> str:
        """As arguments of `cingulum train`, such as `train.accumulation=2 train.global_batch=16`."""
        return " ".join(f"{key}={_yaml(value)}" for key, value in self.changes.items())

    @property
    def now_words(self) -> str:
        """The values that these keys have, such as `1, 8`."""
        return ", ".join(_yaml(value) for value in self.now.values())


def settings(
    bound: str, cause: str | None, lost: Losses, telemetry: RunTelemetry, facts: RunFacts
) -> tuple[ProposedSetting, ...]:
    """Return what to try, the most promising first; nothing where the run's configuration is unknown."""
    ranks = len(telemetry.steps)
    proposals = {
        "compute": lambda: _compute(cause, telemetry, facts),
        "network": lambda: (
            divided.network(cause, facts, ranks) if facts.is_divided else _network(cause, lost, facts)
        ),
        "server": lambda: _server(ranks, facts),
        "input": lambda: _input(telemetry, facts),
        "straggler": lambda: (
            divided.uneven(facts, ranks)
            if facts.is_divided and cause != "late in turn"
            else _straggler(cause, facts)
        ),
    }[bound]()
    usable = []
    for changes, why in proposals:
        now = {key: facts.at(key) for key in changes}
        if facts.config and changes != now and _is_taken(facts.config, changes):
            usable.append(ProposedSetting(changes, now, why))
    return tuple(usable)


Proposals = Iterator[tuple[dict[str, Any], str]]


def _compute(cause: str | None, telemetry: RunTelemetry, facts: RunFacts) -> Proposals:
    if cause == "idle by plan":
        yield from divided.idle_ranks(facts, len(telemetry.steps))
        return
    if cause == "small steps":
        yield _larger_batch(facts, "more samples in each step, whose fixed costs stay")
        return
    if any(epoch.gpus for own in telemetry.hosts.values() for epoch in own):
        yield {"train.precision": "mixed_bfloat16"}, "arithmetic in 16 bits, which most GPUs do faster"
    if facts.at("train.deterministic"):
        yield {"train.deterministic": False}, "repeatable operations are slower on some devices"


def _network(cause: str | None, lost: Losses, facts: RunFacts) -> Proposals:
    yield from facts.remedies("messages")
    if cause == "small steps":
        yield _larger_batch(facts, "fewer reductions for the same samples")
        if facts.reductions != 1:
            yield from facts.remedies("small messages")
    else:
        yield from facts.remedies("large messages")
    bucket = facts.at("train.strategy.bucket_mb")
    if cause is None and bucket and facts.bytes_sent and lost.hidden < lost.communication:
        smaller = max(0.25, round(facts.bytes_sent / MIB / 16, 2))
        if smaller < bucket:
            yield {"train.strategy.bucket_mb": smaller}, "the first gradients leave earlier"
    batch, parts = facts.at("train.global_batch"), facts.at("train.accumulation")
    if cause is None and batch and parts:
        yield (
            {"train.accumulation": 2 * parts, "train.global_batch": 2 * batch},
            "one reduction for twice as many samples; the learning rate may need train.schedule.scale",
        )
    if cause == "small steps" and facts.at("train.sync_batch_norm") and facts.batch_norms != 0:
        yield (
            {"train.sync_batch_norm": False},
            "no message per batch norm; statistics are each rank's own",
        )


def _server(workers: int, facts: RunFacts) -> Proposals:
    if facts.servers < workers:
        yield (
            {"train.strategy.placement": "colocated", "train.strategy.count": workers},
            "every worker serves its share: each link carries what a ring's would",
        )
        yield {"train.strategy.count": min(workers, 2 * facts.servers)}, "each server has less to carry"
    yield {"train.strategy": DEFAULT}, "no servers: gradients go round the ring"
    if (facts.at("train.strategy.piece_mb") or 0) > 1:
        yield {"train.strategy.piece_mb": 1.0}, "more even shares, and earlier answers"
    if facts.at("train.strategy.mode") == "sync":
        yield (
            {"train.strategy.mode": "async"},
            "workers do not wait for each other; updates use older weights",
        )


def _input(telemetry: RunTelemetry, facts: RunFacts) -> Proposals:
    shares = [
        epoch.cpu_percent / (100 * epoch.cores)
        for own in telemetry.hosts.values()
        for epoch in own
        if epoch.cores > 0
    ]
    full = bool(shares) and statistics.fmean(shares) >= FULL
    threads = facts.at("data.reader_threads")
    if threads and not full:
        yield {"data.reader_threads": 2 * threads}, "more volumes are read at once; cores are free"
    if facts.at("data.cache") == "none":
        yield {"data.cache": "memory"}, "from the second epoch on nothing is read and decoded, where it fits"
        yield {"data.cache": "node-local"}, "each host reads its own copy, where the shared disk is slow"
    if facts.at("data.prefetch") is not None:
        yield (
            {"data.prefetch": max(4, 2 * facts.at("data.prefetch"))},
            "where reading is slow now and then only",
        )
    for change in ("motion", "elastic", "affine"):
        key = f"data.augment.{change}.probability"
        if facts.at(key):
            yield {key: facts.at(key) / 4}, "one of the changes that take most processor time"


def _straggler(cause: str | None, facts: RunFacts) -> Proposals:
    if cause == "late in turn" and facts.at("train.threads") is None:
        yield {"train.threads": 1}, "ranks on one host do not compete for its cores"
    yield from facts.remedies("straggler")


def _larger_batch(facts: RunFacts, why: str) -> tuple[dict[str, Any], str]:
    return (
        {"train.global_batch": 4 * (facts.at("train.global_batch") or 1)},
        f"{why}; the learning rate may need train.schedule.scale",
    )


def _is_taken(config: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
    """Whether the configuration with these changes passes its checks; a key that is unknown does not."""
    tree = copy.deepcopy(dict(config))
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = tree
        for parent in parents:
            child = node.get(parent)
            if isinstance(child, str):  # a strategy's name, and here is a key of its section
                child = {"name": child}
            node[parent] = node = child if isinstance(child, dict) else {}
        node[last] = value
    try:
        RunConfig.model_validate(tree)
    except ValidationError:
        return False
    return True


def _yaml(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
