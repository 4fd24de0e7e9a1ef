"""What no schedule of the same task lists can be shorter than. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.planning.placement.tasks import Receive, Send, TaskLists
from trainer.planning.simulation.engine import Bundle, Load, Seconds
from trainer.planning.simulation.fabric import Fabric, Resource


def critical_path(lists: TaskLists, seconds: Seconds, fabric: Fabric) -> float:
    """Return the seconds of the longest chain of tasks and bundles, each bundle alone on its way.

    Raises:
        ValueError: ranks would wait for each other for ever.
    """
    position, now = dict.fromkeys(lists, 0), dict.fromkeys(lists, 0.0)
    arrives: dict[Bundle, float] = {}
    moving = True
    while moving:
        moving = False
        for rank, tasks in lists.items():
            while position[rank] < len(tasks):
                task = tasks[position[rank]]
                if isinstance(task, Receive):
                    if task.messages not in arrives:
                        break
                    now[rank] = max(now[rank], arrives[task.messages]) + seconds(rank, task)
                elif isinstance(task, Send):
                    now[rank] += seconds(rank, task)
                    first = task.messages[0]
                    path = fabric.path(first.source, first.target)
                    size = sum(one.bytes for one in task.messages)
                    rate = min(map(fabric.capacity, path.resources))
                    arrives[task.messages] = now[rank] + path.latency_s + size / rate
                else:
                    now[rank] += seconds(rank, task)
                position[rank] += 1
                moving = True
    if any(at < len(lists[rank]) for rank, at in position.items()):
        raise ValueError("ranks wait for each other for ever")
    return max(now.values(), default=0.0)


def busiest_link(loads: Mapping[Resource, Load], fabric: Fabric) -> float:
    """Return the seconds that the busiest link takes at least for what passes it."""
    return max((load.bytes / fabric.capacity(one) for one, load in loads.items()), default=0.0)
