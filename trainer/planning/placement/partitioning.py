"""What a planner of stages needs to know of a network's partitions: seconds, state, what is kept and moved.

Each partition is placed on a rank of its own: its state, what it keeps for its backward pass and what others
read of it are those of that placement, as the runtime would have them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from trainer.planning.placement import staging
from trainer.planning.placement.keeping import computed_again
from trainer.planning.placement.listing import task_lists
from trainer.planning.placement.lives import Lives
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.staging import Group
from trainer.planning.placement.units import Placement, place
from trainer.planning.profile import Profile
from trainer.planning.stages import cutting
from trainer.planning.stages.problem import Floats, Schedule, StageProblem


def partitions(network: OperationGraph, profile: Profile | None, devices: int, count: int) -> list[Group]:
    """Return a network's operations in `count` parts, in order, that take about as long; at most one a group.

    Args:
        network: with the samples of a micro-batch.
        profile: of the network; None: FLOPs count.
        devices: ranks of a replica; their seconds are added up.
        count: parts.
    """
    groups = staging.groups(network)
    seconds = [
        sum(sum(_seconds(network, profile, group, rank)) for rank in range(devices)) for group in groups
    ]
    return [
        tuple(itertools.chain.from_iterable(groups[start:stop]))
        for start, stop in cutting.partitions(seconds, min(count, len(groups)))
    ]


def problem(
    network: OperationGraph,
    parts: Sequence[Group],
    profile: Profile | None,
    *,
    devices: int,
    replicas: int,
    micro_batches: int,
    schedule: Schedule,
    slots: int,
    memory_bytes: Sequence[float] | None = None,
    recompute: bool = False,
) -> StageProblem:
    """Return what a planner decides by.

    Args:
        network: with one replica's samples of a micro-batch.
        parts: of `partitions`.
        profile: of the network, with `devices` ranks or more; None: FLOPs in place of seconds, free links.
        devices: ranks of a replica.
        replicas: of the stages; rank r of replica i is rank i * `devices` + r.
        micro_batches: of an update.
        schedule: of their passes.
        slots: numbers that the optimizer keeps for each parameter.
        memory_bytes: limits of the ranks; None for none.
        recompute: stages compute again what they need. The network's inputs, which are there for all
            micro-batches, then count as state.
    """
    ranks = range(devices)
    apart = place(network, staging.on_ranks(network, parts, range(len(parts))))
    seconds = np.array([[_seconds(network, profile, names, rank) for rank in ranks] for names in parts])
    trained = [_trained(apart, part) for part in range(len(parts))]
    latency, rate = _links(profile, devices)
    state = [_state_bytes(apart, part, slots) for part in range(len(parts))]
    if recompute:
        state = [one + micro_batches * _input_bytes(apart, part) for part, one in enumerate(state)]
    return StageProblem(
        forward_s=seconds[..., 0],
        backward_s=seconds[..., 1],
        update_s=np.array([[_update_s(profile, rank, count) for rank in ranks] for count, _ in trained]),
        state_bytes=np.array(state),
        kept_bytes=_kept_bytes(apart, len(parts)),
        moved_bytes=_moved_bytes(apart, len(parts)),
        latency_s=latency,
        bytes_per_second=rate,
        memory_bytes=np.full(devices, np.inf) if memory_bytes is None else np.asarray(memory_bytes),
        micro_batches=micro_batches,
        schedule=schedule,
        reduced_s=np.array(
            [[_reduced_s(profile, rank, devices, replicas, size) for rank in ranks] for _, size in trained]
        ),
        again_s=_again_s(network, parts, profile, devices) if recompute else None,
    )


def _seconds(
    network: OperationGraph, profile: Profile | None, names: Sequence[str], rank: int
) -> tuple[float, float]:
    """Forward and backward passes of operations on a rank; FLOPs without a profile."""
    if profile is None:
        forward = sum(network[name].flops for name in names)
        return forward, 2 * forward
    samples = network.operations[-1].shape[0]
    return (
        sum(profile.forward_s(name, rank, samples) for name in names),
        sum(profile.backward_s(name, rank, samples) for name in names),
    )


def _again_s(
    network: OperationGraph, parts: Sequence[Group], profile: Profile | None, devices: int
) -> Floats:
    """See `StageProblem.again_s`; a partition inside a stage, as if the whole network were that stage."""
    operations = [one for one in network.operations if one.readings]
    inside = computed_again(operations)
    last = [computed_again([one for one in operations if one.name in names]) for names in parts]
    needed = [[name for name in names if name in inside] for names in parts], last
    return np.array(
        [
            [[_seconds(network, profile, sorted(names), rank)[0] for rank in range(devices)] for names in one]
            for one in needed
        ]
    )


def _update_s(profile: Profile | None, rank: int, parameters: int) -> float:
    return 0.0 if profile is None else profile.update_s(rank, parameters)


def _links(profile: Profile | None, devices: int) -> tuple[Floats, Floats]:
    latency, rate = np.zeros((devices, devices)), np.full((devices, devices), np.inf)
    if profile is None:
        return latency, rate
    for source, target in itertools.permutations(range(devices), 2):
        link = profile.link(source, target)
        latency[source, target], rate[source, target] = link.latency_s, link.bytes_per_second
    return latency, rate


def _reduced_s(profile: Profile | None, rank: int, devices: int, replicas: int, size: int) -> float:
    """Gradients to their owners, and new values back: each replica of a stage owns as much of it."""
    if profile is None or replicas == 1:
        return 0.0
    link = profile.link(rank, rank + devices)
    each = size / replicas
    return 2 * (replicas - 1) * (link.latency_s + each / link.bytes_per_second)


def _trained(apart: Placement, part: int) -> tuple[int, int]:
    """Parameters that a partition's rank updates, and their bytes."""
    own = {path: flow.need.elements(part) for path, flow in apart.reductions.items()}
    return sum(own.values()), sum(own[path] * flow.width for path, flow in apart.reductions.items())


def _state_bytes(apart: Placement, part: int, slots: int) -> int:
    widths = {weight.path: weight.width for one in apart.network.operations for weight in one.weights}
    held = sum(of.elements(part) * widths[path] for path, of in apart.holders.items())
    return held + slots * _trained(apart, part)[1]


def _input_bytes(apart: Placement, part: int) -> int:
    """What a partition reads of the network's inputs for a micro-batch."""
    inputs = {one.name: one.width for one in apart.network.inputs}
    read = (unit for name in inputs for unit in apart.of(name) if unit.rank == part)
    return sum(unit.box.size * inputs[unit.operation] for unit in read)


def _kept_bytes(apart: Placement, count: int) -> Floats:
    """What each partition keeps of a micro-batch from its forward pass to its backward pass."""
    lists = task_lists(apart)
    return np.array([Lives(apart, lists.get(part, ()), part).kept for part in range(count)], np.float64)


def _moved_bytes(apart: Placement, count: int) -> Floats:
    """What each partition reads of each earlier one."""
    moved = np.zeros((count, count))
    for flow in apart.flows.values():
        for (source, target), elements in flow.elements_sent().items():
            moved[source, target] += elements * flow.width
    return moved
