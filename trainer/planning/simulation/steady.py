"""Seconds of an update that follows another and is followed by one. Pure.

A rank that has done its part begins the next update while others still work on this one, so that of stages,
and of gradients that are summed while a stage waits, an update takes less than one that is played alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from trainer.planning.placement.tasks import Receive, Send, Task, TaskLists
from trainer.planning.simulation import engine
from trainer.planning.simulation.fabric import Fabric


def step_s(
    lists: TaskLists,
    seconds: engine.Seconds,
    fabric: Fabric,
    ranks: int,
    *,
    slowdown: Mapping[int, float] | None = None,
) -> float:
    """Return the seconds from when all ranks have done one update until all have done the next.

    Arguments and errors are those of `engine.play`.
    """
    two = {rank: (*tasks, *map(_next, tasks)) for rank, tasks in lists.items()}
    found = engine.play(two, seconds, fabric, ranks, slowdown=slowdown, halves=True)
    return found.step_s - found.half_s


def _next(task: Task) -> Task:
    """Return the task in the next update, whose messages are others."""
    if not isinstance(task, Send | Receive):
        return task
    return type(task)(tuple(dataclasses.replace(one, number=-1 - one.number) for one in task.messages))
