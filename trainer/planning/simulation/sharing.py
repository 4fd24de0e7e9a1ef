"""Max-min fair rates of flows over shared resources. Pure.

Progressive filling: all rates grow alike until a resource is full, whose flows then keep their rate, and so
on (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from trainer.planning.simulation.fabric import Resource

Flow = TypeVar("Flow")


def fair(
    paths: Mapping[Flow, tuple[Resource, ...]], capacity: Callable[[Resource], float]
) -> dict[Flow, float]:
    """Return each flow's bytes per second.

    Args:
        paths: resources of each flow, at least one, each once.
        capacity: bytes per second of a resource.
    """
    if len(paths) == 1:
        return {flow: min(map(capacity, path)) for flow, path in paths.items()}
    crossing: dict[Resource, list[Flow]] = {}
    for flow, path in paths.items():
        for resource in path:
            crossing.setdefault(resource, []).append(flow)
    left = {resource: capacity(resource) for resource in crossing}
    open_flows = {resource: len(flows) for resource, flows in crossing.items()}
    found: dict[Flow, float] = {}
    while len(found) < len(paths):
        tightest = min(open_flows, key=lambda one: left[one] / open_flows[one])
        rate = left[tightest] / open_flows[tightest]
        for flow in crossing[tightest]:
            if flow in found:
                continue
            found[flow] = rate
            for resource in paths[flow]:
                left[resource] = max(0.0, left[resource] - rate)
                open_flows[resource] -= 1
                if not open_flows[resource]:
                    del open_flows[resource]
    return found
