"""What a rank did and when: intervals on its clock, from which all other telemetry is derived. Pure.

A kind is a word. Those named here have a meaning to the derivations; any other word, such as `forward`,
`update` or a pipeline's `stage 2`, is computing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

INPUT = "input"
# The rank does nothing until others have answered; `statistics` are those of batch norm.
WAITS = frozenset({"wait", "statistics"})
# Bytes are under way, whatever the rank does meanwhile. `reduce` is a collective over gradients, `exchange`
# one of gradients for weights, with all servers.
MOVES = frozenset({"reduce", "exchange", "send", "receive"})

_WAITS, _COMPUTES, _READS, _MOVES = range(4)
_PRECEDENCE = {**dict.fromkeys(WAITS, _WAITS), INPUT: _READS, **dict.fromkeys(MOVES, _MOVES)}


class Interval(NamedTuple):
    """One thing that a rank did, or that went on while it did others.

    Attributes:
        kind: what.
        start: seconds of the rank's clock.
        end: the same.
        peer: number of the process at the other end; None for none, or for all.
        bytes: of payload that moved; 0 where none did, or where it is unknown.
        micro: number of the micro-batch, where stages pass on several.
    """

    kind: str
    start: float
    end: float
    peer: int | None = None
    bytes: int = 0
    micro: int | None = None


@dataclass(frozen=True)
class StepIntervals:
    """One update of one rank, as it was recorded.

    Attributes:
        step: updates so far, this one included.
        start: seconds of the rank's clock.
        seconds: from there to the end of the update, by a monotonic clock.
        intervals: in any order; they may overlap.
        first: the network was traced in this step.
    """

    step: int
    start: float
    seconds: float
    intervals: tuple[Interval, ...]
    first: bool = False


class Transfer(NamedTuple):
    """Bytes of one kind that moved in a step, to or from one peer; seconds while some were under way."""

    kind: str
    peer: int | None
    bytes: int
    seconds: float


class Spent(NamedTuple):
    """Where the time of some intervals went.

    Attributes:
        seconds: of each kind. Each moment counts once: as waiting if the rank waited, else as what it
            computed (of several, what it began last), else as input, else as what was under way.
        overlapped: seconds in which bytes were under way while the rank computed.
    """

    seconds: dict[str, float]
    overlapped: float


def spent(intervals: Iterable[Interval]) -> Spent:
    """Return the seconds of each kind, each moment counted once; see `Spent`."""
    keys: list[tuple[int, float, str]] = []
    edges: list[tuple[float, int]] = []  # when, and which key: from 1 where it begins, negative where it ends
    for kind, start, end, *_ in intervals:
        if end > start:
            keys.append((_PRECEDENCE.get(kind, _COMPUTES), -start, kind))
            edges.append((start, len(keys)))
            edges.append((end, -len(keys)))
    edges.sort()
    seconds: dict[str, float] = dict.fromkeys([kind for _, _, kind in keys], 0.0)
    overlapped, before = 0.0, 0.0
    active: list[tuple[int, float, str]] = []
    for moment, which in edges:
        if active and moment > before:
            first = min(active) if len(active) > 1 else active[0]
            seconds[first[2]] += moment - before
            if first[0] == _COMPUTES and len(active) > 1 and max(active)[0] == _MOVES:
                overlapped += moment - before
        before = moment
        if which > 0:
            active.append(keys[which - 1])
        else:
            active.remove(keys[-which - 1])
    return Spent(seconds, overlapped)


def transfers(intervals: Sequence[Interval]) -> tuple[Transfer, ...]:
    """Return what moved, summed up by kind and peer; and waiting for a named peer, mostly of 0 bytes."""
    groups: dict[tuple[str, int | None], list[Interval]] = {}
    for one in intervals:
        if one.kind in MOVES or (one.kind in WAITS and one.peer is not None):
            groups.setdefault((one.kind, one.peer), []).append(one)
    return tuple(
        Transfer(kind, peer, sum(one.bytes for one in own), covered(own))
        for (kind, peer), own in groups.items()
    )


def covered(intervals: Iterable[Interval]) -> float:
    """Return the seconds that the intervals cover together."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted((one.start, one.end) for one in intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
