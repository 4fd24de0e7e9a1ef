"""A step of ranks that all train the whole network, from what each computes and what they exchange. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.planning import exchange
from trainer.planning.exchange import ExchangePart
from trainer.planning.profile import Profile
from trainer.planning.simulation import epoch
from trainer.planning.simulation.collectives import Exchanged


@dataclass(frozen=True)
class Work:
    """Seconds that a rank computes in a step, on its own."""

    forward_s: float
    backward_s: float
    update_s: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.forward_s + self.backward_s + self.update_s


def slowest(profile: Profile, samples: int, accumulation: int) -> Work:
    """Return what the slowest device of a profile computes in an update with the whole network.

    Args:
        profile: of the network.
        samples: that it takes of each micro-batch.
        accumulation: micro-batches of the update, of which the last backward pass alone hides messages.
    """
    names = [one.name for one in profile.operations]
    tasks = sum(bool(one.measured) for one in profile.operations)

    def work(rank: int) -> Work:
        besides = tasks * profile.each_s(rank)
        forward = besides + math.fsum(profile.forward_s(name, rank, samples) for name in names)
        backward = besides + math.fsum(profile.backward_s(name, rank, samples) for name in names)
        before = accumulation * forward + (accumulation - 1) * backward
        return Work(before, backward, max(profile.update.seconds))

    return max(map(work, range(profile.ranks)), key=lambda one: one.seconds)


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step.

    Attributes:
        step_s: until the last rank has finished.
        busy_s: that a rank computes, mean over ranks.
        slow_s: that the slowest rank computes longer than the mean.
        waiting_s: for what is exchanged.
    """

    step_s: float
    busy_s: float
    slow_s: float
    waiting_s: float


def whole_network(
    work: Work,
    exchanged: Exchanged,
    parts: Sequence[ExchangePart],
    ranks: int,
    deviation: float,
    *,
    rounds_s: float = 0.0,
) -> StepSeconds:
    """Return the step of ranks that combine their gradients, part by part while the backward pass runs.

    All wait for the slowest, whose backward pass hides of the exchange what `exchange.left` does not say.

    Args:
        work: of a rank.
        exchanged: of all parts one after the other.
        parts: of the exchange, in the order in which they leave.
        ranks: of which one is slowest.
        deviation: of their computing, over its mean.
        rounds_s: in which ranks wait for each other within the passes, as for statistics of batch norm.
    """
    factor = epoch.slowest(ranks, deviation)
    waiting = exchange.left(seconds_of(exchanged, parts), parts, work.backward_s * factor) + rounds_s
    slow = (factor - 1) * work.seconds
    return StepSeconds(work.seconds + slow + waiting, work.seconds, slow, waiting)


def seconds_of(exchanged: Exchanged, parts: Sequence[ExchangePart]) -> list[float]:
    """Return the seconds of each part on its way: all have the same latency."""
    return [exchanged.latency_s / len(parts) + exchanged.transfer_s * part.size for part in parts]
