"""Stages of a network: parts of it, in order, each on one rank of a replica, and how they take turns. Pure.

A cut may be anywhere between two groups of operations: a skip or a concatenation that reaches over it is a
message as any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from trainer.planning.placement.layouts import TensorLayout, replicated
from trainer.planning.placement.listing import Pipeline
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.ways import Layouts, placed_shape
from trainer.planning.stages.problem import Schedule
from trainer.planning.stages.schedule import order

# Names of operations that one rank computes.
Group = tuple[str, ...]


def groups(network: OperationGraph) -> list[Group]:
    """Return the operations but inputs, in order: those of one layer, such as batch norm's sums, together."""
    placed = [one for one in network.operations if one.readings]
    by_layer = itertools.groupby(placed, key=lambda one: one.layer or one.name)
    return [tuple(one.name for one in some) for _, some in by_layer]


def on_ranks(network: OperationGraph, partitions: Sequence[Group], ranks: Sequence[int]) -> Layouts:
    """Return layouts in which all operations of a partition are whole on its rank."""
    where = {name: rank for names, rank in zip(partitions, ranks, strict=True) for name in names}
    return {
        one.name: replicated(placed_shape(one), [where[one.name]])
        for one in network.operations
        if one.readings
    }


def stages(network: OperationGraph, ranks_of: Callable[[str], object]) -> tuple[Group, ...]:
    """Return the longest runs of operations that the same ranks compute.

    Args:
        network: that is divided.
        ranks_of: an operation's.
    """
    placed = [one.name for one in network.operations if one.readings]
    return tuple(tuple(run) for _, run in itertools.groupby(placed, key=ranks_of))


def pipeline(
    network: OperationGraph,
    layouts: Mapping[str, TensorLayout],
    micro_batches: int,
    schedule: Schedule,
    *,
    recompute: bool = False,
) -> Pipeline:
    """Return in which order the stages of some layouts pass micro-batches; see `Pipeline`."""
    parts = stages(network, lambda name: layouts[name].ranks)
    return Pipeline(parts, tuple(order(len(parts), micro_batches, schedule)), recompute)
