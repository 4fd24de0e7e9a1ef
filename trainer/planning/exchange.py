"""What one update moves between processes, and how much of it the backward pass can hide. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from trainer.config.strategy import Algorithm
from trainer.planning.communication import Rounds, payload
from trainer.planning.frames import InterfaceBytes


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What one update moves, as a strategy's plan says it.

    Attributes:
        rounds: its messages, between processes 0 to `processes` - 1.
        processes: how many take part; ranks come first, processes that only serve after them.
        parts: number of parts that leave one after the other while gradients are still computed, such as
            buckets; 1: nothing leaves before the last gradient is there.
        counted: bytes of payload that a rank's telemetry counts for it (`Transfer.bytes` of the step); of the
            rank that has most.
        allreduce: what an all-reduce of the ranks' world does; None where an update has none.
        messages: how many each process sends; empty where the strategy does not say it.
        of_all: whether `rounds` are the messages of all processes; False: of one worker's step, beside which
            others go on.
    """

    rounds: Rounds
    processes: int
    parts: int
    counted: int
    allreduce: Algorithm | None = None
    messages: tuple[int, ...] = ()
    of_all: bool = True

    @property
    def payload(self) -> tuple[InterfaceBytes, ...]:
        """Bytes of payload that each process sends and receives."""
        return payload(self.rounds, self.processes)


class Exposed(NamedTuple):
    """Seconds of communication that a step waits for after its backward pass.

    Attributes:
        seconds: the estimate.
        at_least: as if its parts were infinitely many and the whole backward pass could hide them.
        at_most: as if nothing left before the end of the backward pass.
    """

    seconds: float
    at_least: float
    at_most: float


def exposed(communication: float, backward: float, parts: int) -> Exposed:
    """Return what of `communication` seconds a backward pass of `backward` seconds does not hide.

    The rule: of k equal parts, part i is complete at i/k of the backward pass, and they travel one after the
    other. Either each is through before the next is complete, and only the last one is waited for, or the
    link is busy from the first one on: max(C/k, C - B (k-1)/k).
    """
    return Exposed(
        max(communication / parts, communication - backward * (parts - 1) / parts),
        max(0.0, communication - backward),
        communication,
    )


class ExchangePart(NamedTuple):
    """A part of what an update moves, such as a bucket.

    Attributes:
        ready: share of the backward pass after which it is complete, 0 to 1.
        size: its bytes over those of all parts.
    """

    ready: float
    size: float


def equal(parts: int) -> tuple[ExchangePart, ...]:
    """Return equal parts that are complete one after the other, the last one with the backward pass."""
    return tuple(ExchangePart(number / parts, 1 / parts) for number in range(1, parts + 1))


def left(seconds: Sequence[float], parts: Sequence[ExchangePart], backward: float) -> float:
    """Return what is still to be waited for when a backward pass of `backward` seconds is over.

    Of equal parts this is the estimate of `exposed`.

    Args:
        seconds: of each part on its way; they travel one after the other.
        parts: in the order in which they leave.
        backward: seconds of the backward pass.
    """
    free = 0.0
    for took, part in zip(seconds, parts, strict=True):
        free = max(free, part.ready * backward) + took
    return max(0.0, free - backward)
