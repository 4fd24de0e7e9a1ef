"""The figures behind a verdict, each as a sentence."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from trainer.byte_sizes import as_text
from trainer.config.strategy import DEFAULT
from trainer.telemetry import divided, records
from trainer.telemetry.durations import duration
from trainer.telemetry.facts import RunFacts
from trainer.telemetry.losses import Losses
from trainer.telemetry.records import HostEpoch, RunTelemetry

# All gradients together: below it the wire needs less time than the messages that are passed round.
SMALL_BYTES = 2**20
# A server has more to do than its share when it is busy so much longer than the usual one.
UNEVEN = 1.25

_WORDS = {
    "compute": "computing",
    "network": "waiting for gradients that are on the way",
    "server": "waiting for the parameter server",
    "input": "waiting for input",
    "straggler": "waiting for slow ranks",
}


def summary(bound: str, cause: str | None, gain: float, lost: Losses, facts: RunFacts) -> str:
    """Return the verdict in one line."""
    if bound == "compute" and cause is None:
        share = 1 - (lost.input + lost.communication + lost.straggler + lost.jitter) / lost.step
        return f"compute-bound, as it should be: {share:.0%} of a step's {duration(lost.step)} is computing"
    if cause == "idle by plan":
        idle = divided.idle(lost, facts)
        named = " and ".join(facts.name(rank) for rank in idle[: divided.MOST_RANKS])
        more = f" and {len(idle) - divided.MOST_RANKS} more" if len(idle) > divided.MOST_RANKS else ""
        return (
            f"compute-bound on {len(lost.of_rank) - len(idle)} of {len(lost.of_rank)} ranks: the plan leaves "
            f"{named}{more} without work on purpose, since more ranks were predicted to take longer or to "
            f"send more; a step takes {duration(lost.step)}"
        )
    if bound == "compute":
        return (
            f"compute-bound, in steps that are too small: {gain:.0%} of a step's {duration(lost.step)} does "
            "not depend on the batch"
        )
    if facts.is_divided and bound == "straggler" and cause != "late in turn":
        where = f"waiting for {facts.name(divided.latest(lost))}"
        where += ", which has more of the network than others" if cause == "uneven" else ""
    elif facts.is_divided and bound == "network":
        where = "waiting for messages of other ranks"
    elif bound == "straggler" and lost.slow:
        where = f"waiting for {' and '.join(facts.name(rank) for rank in lost.slow[:3])}"
    elif bound == "straggler":
        where = "waiting for whichever rank is late"
    else:
        where = _WORDS[bound]
    return (
        f"{bound}-bound: {gain:.0%} of a step's {duration(lost.step)} is {where}; "
        f"fixing it makes a step at most {times(gain)} as fast"
    )


def evidence(
    bound: str, cause: str | None, lost: Losses, telemetry: RunTelemetry, facts: RunFacts
) -> tuple[str, ...]:
    """Return the figures behind the verdict, and what else costs time, a sentence each."""
    sentences = [_breakdown(lost, facts), *_of_input(lost, facts)]
    if facts.is_divided:
        sentences += [*divided.evidence(lost, telemetry, facts), *_of_ranks(lost, facts)]
        sentences += _slow_part(lost, telemetry)
    elif len(lost.of_rank) > 1 or facts.servers:
        sentences += [
            *_of_communication(lost, facts),
            *_of_servers(telemetry, facts),
            *_of_ranks(lost, facts),
        ]
        sentences += _slow_part(lost, telemetry)
    sentences += [*_of_hosts(telemetry, lost.step), *_outside(telemetry)]
    if bound in ("compute", "network") and cause == "small steps":
        sentences.append(
            f"fetching a batch, updating, starting the step and similar work take {duration(lost.fixed)}, "
            f"{lost.fixed / lost.step:.0%} of it, whatever the batch"
        )
    return tuple(sentences)


def is_servers(telemetry: RunTelemetry, facts: RunFacts) -> bool:
    """Return whether workers wait for a server, rather than for a link that all share evenly."""
    if facts.servers < 1:
        return False
    workers = max(1, len(telemetry.steps))
    means = server_means(telemetry)
    busy = {k: m["receive"] + m["update"] + m["send"] for k, m in means.items()}
    if busy and max(busy.values()) > UNEVEN * statistics.median(busy.values()):
        return True
    if any(m["update"] > 0.5 * busy[k] for k, m in means.items()):
        return True
    # Its link carries the bytes of so many workers.
    return workers > facts.servers


def is_small(facts: RunFacts) -> bool:
    """Return whether messages cost more by their number than by their bytes: few bytes, or one host."""
    on_one_host = len(facts.hosts) > 1 and len(set(facts.hosts)) == 1 and not facts.is_divided
    return on_one_host or (facts.bytes_sent is not None and facts.bytes_sent < SMALL_BYTES)


def gpus_busy(telemetry: RunTelemetry) -> float | None:
    """Return the share, 0 to 1, of the time that GPUs were busy; None without GPUs."""
    used = [
        gpu["utilisation"] / 100
        for own in telemetry.hosts.values()
        for epoch in own
        for gpu in epoch.gpus
        if gpu.get("utilisation") is not None
    ]
    return statistics.fmean(used) if used else None


def server_means(telemetry: RunTelemetry) -> dict[int, dict[str, float]]:
    """Return server -> mean seconds per update of receive, update, send and wait; first updates left out."""
    return {
        number: {
            name: statistics.fmean(getattr(step, name) for step in own[1:])
            for name in ("receive", "update", "send", "wait")
        }
        for number, own in telemetry.servers.items()
        if len(own) > 1
    }


def times(gain: float) -> str:
    """Return how many times as fast a step is without this share of its time."""
    return "100 times or more" if gain > 0.99 else f"{1 / (1 - gain):.2f} times"


def _breakdown(lost: Losses, facts: RunFacts) -> str:
    words = ("messages", "unequal ranks") if facts.is_divided else ("communication", "slow ranks")
    parts = {
        "computing": lost.computing,
        "input": lost.input,
        words[0]: lost.communication,
        words[1]: lost.straggler,
        "ranks late in turn": lost.jitter,
    }
    several = len(lost.of_rank) > 1
    shares = [
        f"{name} {seconds / lost.step:.0%}"
        for name, seconds in parts.items()
        if several or name in ("computing", "input")
    ]
    ranks = f"{len(lost.of_rank)} rank{'s' if several else ''}"
    return f"a step takes {duration(lost.step)} (mean of {lost.steps} steps, {ranks}): {', '.join(shares)}"


def _of_input(lost: Losses, facts: RunFacts) -> Iterator[str]:
    rank = max(lost.waits, key=lambda r: lost.waits[r])
    if lost.waits[rank] > 0.02 * lost.step:
        yield (
            f"{facts.name(rank)} waits longest for its batches: {duration(lost.waits[rank])} of each step, "
            f"with data.reader_threads={facts.at('data.reader_threads')} and "
            f"data.cache={facts.at('data.cache')}"
        )


def _of_communication(lost: Losses, facts: RunFacts) -> Iterator[str]:
    taken = lost.communication + lost.hidden
    if taken <= 0:
        return
    hidden = f"{lost.hidden / taken:.0%} of it hidden behind the backward pass"
    what = f"communication takes {duration(taken)} of each step, {hidden}"
    if facts.bytes_sent is None or facts.strategy != DEFAULT:  # where all send as many
        yield what
        return
    rate = facts.bytes_sent * 8e-6 / taken
    yield f"{what}; each rank sends {as_text(facts.bytes_sent)}, that is {rate:.0f} Mbit/s meanwhile"


def _of_servers(telemetry: RunTelemetry, facts: RunFacts) -> Iterator[str]:
    if facts.servers and not facts.colocated:
        workers = len(telemetry.steps)
        yield (
            f"{workers} workers share {facts.servers} server{'s' if facts.servers > 1 else ''}: the link of "
            f"each server carries {workers / facts.servers:.1f} times the bytes of a worker's"
        )
    for number, means in server_means(telemetry).items():
        whole = sum(means.values())
        if whole > 0:
            shares = ", ".join(
                f"{word} {means[name] / whole:.0%}"
                for name, word in (("receive", "receiving"), ("update", "updating"), ("send", "sending"))
            )
            yield f"server {number} is busy for {1 - means['wait'] / whole:.0%} of the time: {shares}"


def _of_ranks(lost: Losses, facts: RunFacts) -> Iterator[str]:
    usual = lost.computing
    for rank in lost.slow[:5]:
        own = lost.of_rank[rank]
        yield (
            f"{facts.name(rank)} computes {duration(own)} a step, the usual rank {duration(usual)} "
            f"({own / usual:.2f} times)"
        )
    if len(lost.slow) > 5:
        yield f"{len(lost.slow) - 5} more ranks are slow"


def _slow_part(lost: Losses, telemetry: RunTelemetry) -> Iterator[str]:
    means: Mapping[int, dict[str, float]] = {
        rank: records.mean(own) for rank, own in telemetry.steps.items() if rank in lost.of_rank
    }
    normal = [means[rank] for rank in means if rank not in lost.slow]
    for rank in lost.slow[:1]:
        excess = {
            name: means[rank][name] - statistics.median(other[name] for other in normal)
            for name in ("forward", "backward", "update", "other")
        }
        part = max(excess, key=lambda name: excess[name])
        yield f"most of the difference, {duration(excess[part])}, is in its {part} part"


def _of_hosts(telemetry: RunTelemetry, step_s: float) -> Iterator[str]:
    for host, epochs in sorted(telemetry.hosts.items()):
        counted = [epoch for epoch in epochs if epoch.seconds > 0]
        if not counted:
            continue
        seconds = sum(epoch.seconds for epoch in counted)
        cpu = sum(epoch.cpu_percent * epoch.seconds for epoch in counted) / seconds
        parts = [f"{cpu / 100:.1f} of {counted[-1].cores} cores busy", *_gpus(counted[-1])]
        for name in sorted({name for epoch in counted for name in epoch.interfaces}):
            if name == "lo":
                continue
            sent, received = (
                sum(epoch.interfaces.get(name, {}).get(way, 0) for epoch in counted)
                for way in ("sent", "received")
            )
            parts.append(
                f"{name} sends {as_text(round(sent / seconds * step_s))} and receives "
                f"{as_text(round(received / seconds * step_s))} a step, {sent * 8e-6 / seconds:.0f} and "
                f"{received * 8e-6 / seconds:.0f} Mbit/s on average"
            )
        yield f"host {host}: {'; '.join(parts)}"


def _gpus(epoch: HostEpoch) -> list[str]:
    used = [gpu["utilisation"] for gpu in epoch.gpus if gpu.get("utilisation") is not None]
    return [f"GPUs {statistics.fmean(used):.0f} % busy"] if used else []


def _outside(telemetry: RunTelemetry) -> Iterator[str]:
    """What epochs take besides their steps: evaluation, mostly."""
    whole = inside = 0.0
    first = min(telemetry.steps)
    begin = 0
    for row in telemetry.rows:
        end, seconds = row.get("step"), row.get("seconds")
        if not isinstance(end, int) or not isinstance(seconds, (int, float)):
            continue
        inside += sum(step.seconds for step in telemetry.steps[first] if begin < step.step <= end)
        whole, begin = whole + seconds, end
    if whole > 0 and (share := 1 - inside / whole) > 0.2:
        yield (
            f"{share:.0%} of the epochs' time is outside of steps, mostly in evaluation: faster steps do not "
            "shorten it"
        )
