"""Groups: operations that are divided alike. Pure.

An element of one needs that element of the one before, and no other.
A convolution, the sums and the normalisation of its batch norm and its activation are one group: dividing
them in another way would send feature maps and save nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.planning.placement.layouts import TensorLayout
from trainer.planning.placement.operations import Operation, OperationGraph
from trainer.planning.placement.ways import Layouts, placed_shape
from trainer.planning.placement.windows import Pointwise


@dataclass(frozen=True)
class OperationGroup:
    """Operations that are divided alike.

    Attributes:
        names: in the order of the network; the first one decides what the others read.
        shape: that is divided: of its outputs, samples first.
        flops: of the forward pass.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    flops: float


def groups(network: OperationGraph) -> tuple[OperationGroup, ...]:
    """Return the groups of all operations but inputs, in the order of their first operations."""
    first: dict[str, str] = {}
    members: dict[str, list[Operation]] = {}
    for operation in network.operations:
        if not operation.readings:
            continue
        before = first.get(operation.readings[0].tensor)
        leader = before if before and _follows(operation, members[before][0]) else operation.name
        first[operation.name] = leader
        members.setdefault(leader, []).append(operation)
    return tuple(
        OperationGroup(tuple(one.name for one in some), placed_shape(some[0]), sum(one.flops for one in some))
        for some in members.values()
    )


def _follows(operation: Operation, leader: Operation) -> bool:
    """Whether each element of an operation needs the same one of its first input only."""
    if placed_shape(operation) != placed_shape(leader) or leader.sums:
        return False
    return operation.sums or all(
        how is not None and how[0] == axis and isinstance(how[1], Pointwise)
        for axis, how in enumerate(operation.readings[0].axes)
    )


def layouts(network_groups: tuple[OperationGroup, ...], divided: list[TensorLayout]) -> Layouts:
    """Return the layouts of all operations, of those of their groups."""
    return {name: held for group, held in zip(network_groups, divided, strict=True) for name in group.names}
