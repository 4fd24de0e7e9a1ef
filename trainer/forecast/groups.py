"""Groups of ranks that divide a network between them, played on the hosts of a cluster."""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass

import numpy as np

from trainer.forecast.outlooks import StrategyOutlook
from trainer.planning import exchange
from trainer.planning.placement import costs
from trainer.planning.placement.costs import Durations
from trainer.planning.placement.tasks import Compute, Receive, Send, Task, TaskLists
from trainer.planning.profile import Profile
from trainer.planning.simulation import engine, epoch, steady
from trainer.planning.simulation.collectives import Direct, Exchanged
from trainer.planning.simulation.engine import Played
from trainer.planning.simulation.fabric import ClusterFabric
from trainer.planning.simulation.stepping import StepSeconds

# Plays with computing slowed down at random, for the mean and the deviation of a group's step.
DRAWS = 4
SEED = 0
# Messages between the owners of as many groups; more take minutes.
MOST_GROUPS = 1024


@dataclass(frozen=True)
class PlayedGroup:
    """What groups that are alike do in an update.

    Attributes:
        size: ranks of each.
        step: mean over slowdowns.
        deviation_s: of it.
        played: the groups of a host, without slowdowns; of the first lists of an update.
        backward_s: of its rank that computes longest.
    """

    size: int
    step: StepSeconds
    deviation_s: float
    played: Played
    backward_s: float


def play(
    outlook: StrategyOutlook,
    profile: Profile,
    fabric: ClusterFabric,
    *,
    deviation: float,
    least_s: float = 0.0,
) -> PlayedGroup:
    """Play an update of the groups that share a host, or of one that takes several hosts.

    Its seconds are those of one that follows another.

    Args:
        outlook: of one group.
        profile: of its ranks.
        fabric: of all ranks.
        deviation: of a rank's computing, over its mean.
        least_s: that a task takes, however small a part of its operation it is.
    """
    size = profile.ranks
    groups = max(1, min(fabric.ranks, fabric.kind(0).devices) // size)
    ranks = size * groups
    durations = Durations(outlook.placement, profile, dict(enumerate(outlook.owned)))

    def seconds(rank: int, task: Task) -> float:
        took = durations.of(rank % size, task)
        return max(least_s, took) if took and not isinstance(task, Send | Receive) else took

    rounds = [(_copies(lists, size, groups), times) for lists, times in outlook.rounds]

    twice = [(steady.two_updates(lists), times) for lists, times in rounds]

    def update(slowdown: dict[int, float]) -> float:
        return math.fsum(
            times * steady.step_s(two, seconds, fabric, ranks, slowdown=slowdown) for two, times in twice
        )

    step_s = update({})
    played = [engine.play(lists, seconds, fabric, ranks) for lists, _ in rounds]
    busy = [
        math.fsum(times * one.busy_s[rank] for one, (_, times) in zip(played, rounds, strict=True))
        for rank in range(size)
    ]
    random = np.random.default_rng(SEED)
    drawn = [
        update(dict(enumerate(np.maximum(0.1, random.normal(1.0, deviation, ranks)))))
        for _ in range(DRAWS if deviation else 0)
    ] or [step_s]
    mean = statistics.mean(drawn)
    longest = max(range(size), key=busy.__getitem__)
    backward = math.fsum(
        seconds(longest, task)
        for task in outlook.rounds[0][0].get(longest, ())
        if isinstance(task, costs.Recompute | costs.Differentiate)
    )
    step = StepSeconds(mean, statistics.mean(busy), mean - step_s, step_s - max(busy))
    return PlayedGroup(size, step, statistics.pstdev(drawn), played[0], backward)


def together(
    group: PlayedGroup, outlook: StrategyOutlook, fabric: ClusterFabric, between: Direct
) -> tuple[StepSeconds, Exchanged]:
    """Return the step of all groups, which add up their gradients at owners, and hand out new weights.

    All groups wait for the slowest. The way of gradients is hidden as `exchange.exposed` says, with as many
    parts as there are variables; that of new weights is not. Statistics of batch norm, and their gradients,
    go from each rank to the same rank of every other group, in one round.

    Args:
        group: that was played.
        outlook: of one group.
        fabric: of all ranks.
        between: all groups.
    """
    groups = fabric.ranks // group.size
    if groups == 1:
        return group.step, Exchanged(0.0, 0.0, 0.0, 0.0)
    crossed = between.of([4.0 * one for one in outlook.owned])
    each = between.of([1.0] * group.size)
    parts = max(1, len(outlook.placement.reductions))
    half = crossed.seconds / 2
    exposed = exchange.exposed(half, group.backward_s, parts).seconds + half
    summed = _statistics(outlook)
    # Of both rounds of `each`, one is of the forward pass; they are of 1/groups bytes to each rank.
    exposed += len(summed) * each.latency_s + sum(summed) * groups * each.transfer_s
    of_statistics = each.of(sum(summed) * groups)
    slow = group.deviation_s * epoch.largest_of(groups)
    step = group.step
    return (
        dataclasses.replace(
            step,
            step_s=step.step_s + slow + exposed,
            slow_s=step.slow_s + slow,
            waiting_s=step.waiting_s + exposed,
        ),
        dataclasses.replace(
            crossed,
            sent=crossed.sent + of_statistics.sent,
            all_sent=crossed.all_sent + of_statistics.all_sent,
        ),
    )


def _statistics(outlook: StrategyOutlook) -> list[int]:
    """Bytes of each sum of batch norm in an update, for every micro-batch."""
    sizes = [
        math.prod(one.shape) * one.width
        for one in outlook.placement.network.operations
        if one.kind.endswith("_moments")
    ]
    sums = []
    for lists, times in outlook.rounds:
        micros = {task.micro for tasks in lists.values() for task in tasks if isinstance(task, Compute)}
        sums += sizes * len(micros) * times
    return sums


def _copies(lists: TaskLists, size: int, groups: int) -> TaskLists:
    """The lists of several groups, each on the ranks after those of the one before."""
    return {
        rank + size * number: tuple(_moved(task, size * number) for task in tasks)
        for number in range(groups)
        for rank, tasks in lists.items()
    }


def _moved(task: Task, by: int) -> Task:
    if by and isinstance(task, Send | Receive):
        return type(task)(
            tuple(
                dataclasses.replace(one, source=one.source + by, target=one.target + by)
                for one in task.messages
            )
        )
    return task
