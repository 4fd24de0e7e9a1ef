"""What a verdict says of a network that is divided over ranks: figures, and what to try."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from trainer.byte_sizes import as_text
from trainer.config.strategy import DEFAULT
from trainer.telemetry.durations import duration
from trainer.telemetry.facts import RunFacts
from trainer.telemetry.losses import LAST, SLOW, Losses
from trainer.telemetry.records import RunTelemetry, Step

# Bytes of a gradient that data parallelism would send.
_WIDTH = 4
MOST_RANKS = 3


def is_by_plan(lost: Losses, facts: RunFacts) -> bool:
    """Return whether the rank that computes longest has more of the network than the usual one."""
    if len(facts.flops) != len(lost.of_rank):
        return False
    late, usual = latest(lost), statistics.median_low(facts.flops)
    return facts.flops[late] > SLOW * usual


def idle(lost: Losses, facts: RunFacts) -> list[int]:
    """Return the ranks to which a plan gives nothing on purpose, where others compute about equally long."""
    if not facts.section.may_leave_idle or len(facts.flops) != len(lost.of_rank):
        return []
    working = [seconds for rank, seconds in lost.of_rank.items() if facts.flops[rank] > 0]
    if not working or max(working) > SLOW * statistics.fmean(working):
        return []
    return [rank for rank, flops in enumerate(facts.flops) if flops == 0]


def latest(lost: Losses) -> int:
    """Return the rank that computes longest."""
    return max(lost.of_rank, key=lambda rank: lost.of_rank[rank])


def evidence(lost: Losses, telemetry: RunTelemetry, facts: RunFacts) -> Iterator[str]:
    """Say what ranks send, for whom they wait, and what the plan gives the one that computes longest."""
    if facts.bytes_sent is not None:
        count = f" in {facts.messages_sent} messages" if facts.messages_sent else ""
        yield f"the busiest rank sends {as_text(facts.bytes_sent)}{count} a step"
    waits = {rank: _waits(own) for rank, own in telemetry.steps.items() if rank in lost.of_rank}
    for rank in sorted(waits, key=lambda r: -sum(s for s, _ in waits[r].values()))[:MOST_RANKS]:
        peers = sorted(waits[rank], key=lambda peer: -waits[rank][peer][0])[:MOST_RANKS]
        waiting = [
            f"{duration(seconds)} for {facts.name(peer)}, from which {as_text(round(size))} come"
            for peer, (seconds, size) in ((peer, waits[rank][peer]) for peer in peers)
        ]
        if waiting:
            yield f"{facts.name(rank)} waits for messages in each step: {'; '.join(waiting)}"
    if lost.straggler > 0 and len(facts.flops) == len(lost.of_rank) > 1 and sum(facts.flops) > 0:
        late = latest(lost)
        given, took = facts.flops[late] / sum(facts.flops), lost.of_rank[late] / sum(lost.of_rank.values())
        yield (
            f"the plan gives {facts.name(late)} {given:.0%} of the arithmetic; of the time in which ranks "
            f"compute it has {took:.0%}"
        )


def network(cause: str | None, facts: RunFacts, ranks: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Propose what makes messages smaller or fewer."""
    if cause == "small steps":
        batch = facts.at("train.global_batch") or 1
        yield (
            {"train.global_batch": 4 * batch},
            "as many messages for more samples; the learning rate may need train.schedule.scale",
        )
    yield from facts.remedies("messages")
    yield from _micro_batches(facts)
    yield from _other_parts(facts, ranks, "shorter borders for the same parts")
    yield from _replicas(facts, ranks, "half as many ranks exchange parts of a volume")
    yield from _data(facts, ranks)


def uneven(facts: RunFacts, ranks: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Propose what makes ranks compute equally long."""
    yield from facts.remedies("uneven")
    yield from _micro_batches(facts)
    yield from _other_parts(facts, ranks, "small feature maps are cut along other axes, too")
    yield from _replicas(facts, ranks, "what one rank computes alone is divided over the replicas")
    yield from _data(facts, ranks)


def idle_ranks(facts: RunFacts, ranks: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Propose what gives work to ranks that have none."""
    yield from _replicas(facts, ranks, "each replica computes other samples")
    yield from _data(facts, ranks)


def _other_parts(facts: RunFacts, ranks: int, why: str) -> Iterator[tuple[dict[str, Any], str]]:
    per_replica = ranks // _set_replicas(facts)
    now = facts.at("train.strategy.parts") or [per_replica, 1, 1]
    parts = compact(per_replica)
    # A volume of one slice has no depth to be cut.
    cuttable = "parts" in facts.section.model_fields and not _has_plan(facts) and now[0] > 1
    if cuttable and sorted(parts) != sorted(now):
        yield {"train.strategy.parts": parts}, why


def _micro_batches(facts: RunFacts) -> Iterator[tuple[dict[str, Any], str]]:
    now, replicas = facts.at("train.strategy.micro_batches"), _set_replicas(facts)
    samples = (facts.at("train.global_batch") or 1) // (facts.at("train.accumulation") or 1)
    if facts.section.has_stages and now and samples % (2 * now * replicas) == 0:
        why = "stages wait less for the first and the last micro-batch; batch norm has half as many samples"
        yield {"train.strategy.micro_batches": 2 * now}, why


def _replicas(facts: RunFacts, ranks: int, why: str) -> Iterator[tuple[dict[str, Any], str]]:
    now = _set_replicas(facts)
    samples = (facts.at("train.global_batch") or 1) // (facts.at("train.accumulation") or 1)
    free = not any(facts.at(f"train.strategy.{key}") for key in ("parts", "shares", "plan"))
    free &= facts.at("train.strategy.replicas") != "auto"
    micro_batches = facts.at("train.strategy.micro_batches") or 1
    if free and ranks % (2 * now) == 0 and ranks > 2 * now and samples % (2 * now * micro_batches) == 0:
        yield {"train.strategy.replicas": 2 * now}, why


def _set_replicas(facts: RunFacts) -> int:
    """What the configuration says; 1 where that is nothing, or `auto`."""
    found = facts.at("train.strategy.replicas")
    return found if isinstance(found, int) else 1


def _data(facts: RunFacts, ranks: int) -> Iterator[tuple[dict[str, Any], str]]:
    samples = (facts.at("train.global_batch") or 1) // (facts.at("train.accumulation") or 1)
    if samples % ranks or facts.parameters is None or facts.bytes_sent is None:
        return
    ring = round(2 * (ranks - 1) / ranks * _WIDTH * facts.parameters)
    if ring < facts.bytes_sent:
        yield (
            {"train.strategy": DEFAULT},
            f"{as_text(ring)} sent in place of {as_text(facts.bytes_sent)}, if whole volumes fit into the "
            "memory of a rank",
        )


def compact(count: int) -> list[int]:
    """Return three numbers whose product is `count`, as equal as can be, the largest first."""
    triples = [
        (first, second, count // (first * second))
        for first in range(1, count + 1)
        if count % first == 0
        for second in range(1, first + 1)
        if count // first % second == 0 and count // (first * second) <= second
    ]
    return list(min(triples, key=sum))


def _waits(steps: Sequence[Step]) -> dict[int, tuple[float, float]]:
    """Return peer -> mean seconds of waiting for its messages in a step, and mean bytes that came from it."""
    counted = [step for step in steps if not step.first][-LAST:]
    waits: dict[int, tuple[float, float]] = {}
    for one in (one for step in counted for one in step.transfers):
        if one.kind == "wait" and one.peer is not None:
            seconds, size = waits.get(one.peer, (0.0, 0.0))
            waits[one.peer] = seconds + one.seconds, size + one.bytes
    return {peer: (s / len(counted), size / len(counted)) for peer, (s, size) in waits.items()}


def _has_plan(facts: RunFacts) -> bool:
    return facts.at("train.strategy.plan") is not None
