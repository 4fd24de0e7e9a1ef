"""Which keys of the configuration to try, for each thing that can bind a run.

Every proposal is a configuration that `cingulum train` takes: what does not pass its checks is not proposed.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trainer.config import RunConfig
from trainer.config.strategy import DEFAULT
from trainer.telemetry import divided
from trainer.telemetry.facts import Facts
from trainer.telemetry.losses import Losses
from trainer.telemetry.records import RunTelemetry

MIB = 2**20
# Cores as busy as this have nothing left for more reading threads.
FULL = 0.9


@dataclass(frozen=True)
class Setting:
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
    bound: str, cause: str | None, lost: Losses, telemetry: RunTelemetry, facts: Facts
) -> tuple[Setting, ...]:
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
    found = []
    for changes, why in proposals:
        now = {key: facts.at(key) for key in changes}
        if facts.config and changes != now and _is_taken(facts.config, changes):
            found.append(Setting(changes, now, why))
    return tuple(found)


Proposals = Iterator[tuple[dict[str, Any], str]]


def _compute(cause: str | None, telemetry: RunTelemetry, facts: Facts) -> Proposals:
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


def _network(cause: str | None, lost: Losses, facts: Facts) -> Proposals:
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


def _server(workers: int, facts: Facts) -> Proposals:
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


def _input(telemetry: RunTelemetry, facts: Facts) -> Proposals:
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


def _straggler(cause: str | None, facts: Facts) -> Proposals:
    if cause == "late in turn" and facts.at("train.threads") is None:
        yield {"train.threads": 1}, "ranks on one host do not compete for its cores"
    yield from facts.remedies("straggler")


def _larger_batch(facts: Facts, why: str) -> tuple[dict[str, Any], str]:
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
