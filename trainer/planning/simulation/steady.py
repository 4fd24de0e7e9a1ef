"""Seconds of an update that follows another and is followed by one. Pure.

A rank that has done its part begins the next update while others still work on this one, so that of stages,
and of gradients that are summed while a stage waits, an update takes less than one that is played alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from trainer.planning.placement.costs import Cost, Durations, PlayedPass, owned
from trainer.planning.placement.tasks import Compute, Receive, Send, Task, TaskLists, UpdateOwned
from trainer.planning.placement.units import Placement
from trainer.planning.profile import Profile
from trainer.planning.simulation import engine
from trainer.planning.simulation.fabric import Fabric, HostLinks


def two_updates(lists: TaskLists) -> TaskLists:
    """Return the task lists of an update and of the next one, as `step_s` takes them."""
    return {rank: (*tasks, *map(_next, tasks)) for rank, tasks in lists.items()}


def step_s(
    two: TaskLists,
    seconds: engine.Seconds,
    fabric: Fabric,
    ranks: int,
    *,
    slowdown: Mapping[int, float] | None = None,
) -> float:
    """Return the seconds from when all ranks have done one update until all have done the next.

    The first argument is of `two_updates`; the others, and errors, are those of `engine.play`.
    """
    found = engine.play(two, seconds, fabric, ranks, slowdown=slowdown, halves=True)
    return found.step_s - found.half_s


def _next(task: Task) -> Task:
    """Return the task in the next update, whose messages are others."""
    if not isinstance(task, Send | Receive):
        return task
    return type(task)(tuple(dataclasses.replace(one, number=-1 - one.number) for one in task.messages))


# Predicted seconds of an update whose messages share the interfaces of hosts at every moment. Pure.
#
# `placement.costs` lets what a rank sends leave one bundle after the other, and several ranks send to one at
# full rate each. Here bundles share the interfaces that they leave and enter by fairly, by the clock. And a
# step is one of many: a rank that has done its part begins the next one while others still work on this one.


def predict(placement: Placement, lists: TaskLists, profile: Profile, ranks: int) -> Cost:
    """Play the task lists of a placement; arguments and errors are those of `costs.predict`.

    Its `step_s` is from when all ranks have done one update until they have done the next.
    """
    durations = Durations(placement, profile, dict(enumerate(owned(placement, ranks))))
    links = HostLinks(profile)
    found = engine.play(lists, durations.of, links, ranks)
    step = step_s(two_updates(lists), durations.of, links, ranks)
    played = [one for rank in range(ranks) for one in _passes([s for s in found.spans if s.rank == rank])]
    return Cost(step, found.busy_s, tuple(step - busy for busy in found.busy_s), tuple(played))


def _passes(spans: Sequence[engine.Span]) -> list[PlayedPass]:
    """Return the passes of a rank, in the order of its spans."""
    passes: list[PlayedPass] = []
    for rank, task, start, end in ((one.rank, one.task, one.start, one.end) for one in spans):
        if isinstance(task, Receive | UpdateOwned):
            continue
        kind = "forward" if isinstance(task, Compute) else "backward"
        if passes and (passes[-1].kind, passes[-1].micro, passes[-1].end) == (kind, task.micro, start):
            passes[-1] = passes[-1]._replace(end=end)
        else:
            passes.append(PlayedPass(rank, kind, task.micro, start, end))
    return passes
