"""The hypergraph of a network: tiles of groups are vertices, what several of them need is a net. Pure.

A net holds the elements of a tensor that the same tiles compute and read, or the elements of a variable that
the same tiles compute with. Its cost is what one more part that it is spread over adds to the bytes of an
update: an output once forwards and its gradient once back, a gradient of weights to the owner and the new
value back. So the connectivity minus one, added up over nets, is what `units.place` makes cross for that
partition, exactly, but for

- sums over parts (statistics of batch norm, means), which each part sends to each other one; they are small;
- windows with gaps (a stride longer than the kernel): two tiles on one rank read what lies between, too.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.planning.hypergraph.groups import OperationGroup
from trainer.planning.placement import boxes
from trainer.planning.placement.boxes import Box, Range
from trainer.planning.placement.layouts import TensorLayout, layout
from trainer.planning.placement.operations import Operation, OperationGraph, Weight

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Tiling:
    """How a group is cut into tiles, along each axis into ranges that cover it.

    Attributes:
        ranges: of each axis, in order; tiles are numbered along the last axis first.
        first: number of the first tile.
    """

    ranges: tuple[tuple[Range, ...], ...]
    first: int

    @property
    def counts(self) -> tuple[int, ...]:
        """Tiles along each axis."""
        return tuple(map(len, self.ranges))

    @property
    def size(self) -> int:
        """Number of tiles."""
        return math.prod(self.counts)

    def boxes(self) -> Iterator[Box]:
        """Return the tiles in order."""
        return map(Box, itertools.product(*self.ranges))


@dataclass(frozen=True)
class Hypergraph:
    """Vertices with weights, and nets with costs.

    Attributes:
        tilings: of each group.
        weights: FLOPs of the forward pass of each tile.
        nets: the tiles of each net, at least two.
        costs: bytes of each net.
        counted: whether the cost of a net is exact: it is not for sums over parts.
    """

    tilings: tuple[Tiling, ...]
    weights: NDArray[np.float64]
    nets: tuple[tuple[int, ...], ...]
    costs: Ints
    counted: NDArray[np.bool_]

    def connectivity(self, parts: Sequence[int], *, counted: bool = True) -> int:
        """Return the costs of nets, each times the parts that it is spread over minus one.

        Args:
            parts: of each vertex.
            counted: without the nets whose costs are not exact.
        """
        total = 0
        for net, cost, exact in zip(self.nets, self.costs, self.counted, strict=True):
            if exact or not counted:
                total += int(cost) * (len({parts[vertex] for vertex in net}) - 1)
        return total

    def layouts(self, groups: Sequence[OperationGroup], parts: Sequence[int]) -> list[TensorLayout]:
        """Return the layout of each group, with part k on rank k; tiles that touch become one box."""
        layouts = []
        for group, tiling in zip(groups, self.tilings, strict=True):
            held: dict[int, list[Box]] = defaultdict(list)
            for number, box in enumerate(tiling.boxes(), start=tiling.first):
                held[int(parts[number])].append(box)
            layouts.append(layout(group.shape, held))
        return layouts


def hypergraph(
    network: OperationGraph, groups: Sequence[OperationGroup], counts: Sequence[Sequence[int]], times: int = 1
) -> Hypergraph:
    """Return the hypergraph of a network.

    Args:
        network: whose shapes hold the samples of a micro-batch.
        groups: of all its operations but inputs.
        counts: tiles along each axis of each group; no more than the axis is long.
        times: micro-batches of an update, in each of which tensors cross.
    """
    tilings: list[Tiling] = []
    first = 0
    for group, count in zip(groups, counts, strict=True):
        ranges = tuple(
            tuple(one for one in boxes.divided(length, [1.0] * parts) if one is not None)
            for length, parts in zip(group.shape, count, strict=True)
        )
        tilings.append(Tiling(ranges, first))
        first += tilings[-1].size
    building = _Nets(network, groups, tilings)
    for operation in network.operations:
        if operation.readings:
            building.add_tensor(operation, times)
            for weight in operation.weights:
                if weight.trainable:
                    building.add_variable(operation, weight)
    weights = [
        group.flops * box.size / math.prod(group.shape)
        for group, tiling in zip(groups, tilings, strict=True)
        for box in tiling.boxes()
    ]
    nets = sorted(building.costs)
    return Hypergraph(
        tuple(tilings),
        np.array(weights),
        tuple(pins for pins, _ in nets),
        np.array([building.costs[net] for net in nets], np.int64),
        np.array([exact for _, exact in nets], bool),
    )


# For each axis of a tensor: its elements, by which tiles of one group or another lie there. A tile is told by
# its index along the axis of its group that decides it.
_Classes = dict[tuple[frozenset[int], ...], int]


class _Nets:
    """Nets while they are made: the cost of each set of tiles, and whether it is exact."""

    def __init__(
        self, network: OperationGraph, groups: Sequence[OperationGroup], tilings: Sequence[Tiling]
    ) -> None:
        self.costs: dict[tuple[tuple[int, ...], bool], int] = defaultdict(int)
        self._tiling = {name: t for g, t in zip(groups, tilings, strict=True) for name in g.names}
        self._readers: dict[str, list[tuple[Operation, int]]] = defaultdict(list)
        for one in network.operations:
            for number, reading in enumerate(one.readings):
                self._readers[reading.tensor].append((one, number))

    def add_tensor(self, operation: Operation, times: int) -> None:
        """Add the nets of an operation's output."""
        own = self._tiling[operation.name]
        users = [_made(operation, own)]
        for reader, number in self._readers[operation.name]:
            # Of its own group, each tile reads itself of the first input: see `groups`.
            if operation.sums or number or self._tiling[reader.name] is not own:
                users.append(_read(reader, number, self._tiling[reader.name]))
        if len(users) > 1:
            self._add(operation.shape, users, 2 * times * operation.width, exact=not operation.sums)

    def add_variable(self, operation: Operation, weight: Weight) -> None:
        """Add the nets of a variable."""
        self._add(weight.shape, [_used(weight, self._tiling[operation.name])], 2 * weight.width, exact=True)

    def _add(self, shape: Sequence[int], users: Sequence[_User], width: int, *, exact: bool) -> None:
        axes = [_classes(length, [user.along(axis) for user in users]) for axis, length in enumerate(shape)]
        for some in itertools.product(*(one.items() for one in axes)):
            pins: set[int] = set()
            for number, user in enumerate(users):
                pins |= user.tiles([indices[number] for indices, _ in some])
            if len(pins) > 1:
                self.costs[tuple(sorted(pins)), exact] += width * math.prod(size for _, size in some)


@dataclass(frozen=True)
class _User:
    """Tiles of a group that have to do with a tensor: with which part of it, one axis at a time.

    Attributes:
        tiling: of the group.
        ranges: for each axis of the tensor, the axis of the group that decides, and for each tile along it
            what part that is, None for nothing; None where all tiles have to do with all of it.
    """

    tiling: Tiling
    ranges: tuple[tuple[int, tuple[Range | None, ...]] | None, ...]

    def along(self, axis: int) -> Mapping[int, Range] | None:
        """Return the part of each tile along an axis; None for all of it, whatever the tile."""
        how = self.ranges[axis]
        return None if how is None else {i: one for i, one in enumerate(how[1]) if one is not None}

    def tiles(self, indices: Sequence[frozenset[int]]) -> set[int]:
        """Return the tiles with these indices along the axes of the tensor."""
        allowed = [set(range(count)) for count in self.tiling.counts]
        for how, some in zip(self.ranges, indices, strict=True):
            if how is not None:
                allowed[how[0]] &= some
        numbers = {self.tiling.first}
        stride = self.tiling.size
        for count, some_indices in zip(self.tiling.counts, allowed, strict=True):
            stride //= count
            numbers = {number + index * stride for number in numbers for index in some_indices}
        return numbers


def _classes(length: int, parts: Sequence[Mapping[int, Range] | None]) -> _Classes:
    """Return how many elements of an axis the same tiles of every user have to do with."""
    ends = sorted({0, length, *(end for one in parts if one for range_ in one.values() for end in range_)})
    elements: _Classes = defaultdict(int)
    for start, stop in itertools.pairwise(ends):
        key = tuple(
            frozenset()
            if one is None
            else frozenset(i for i, (a, b) in one.items() if a <= start and stop <= b)
            for one in parts
        )
        elements[key] += stop - start
    return elements


def _made(operation: Operation, tiling: Tiling) -> _User:
    """Which tiles compute what of an operation's output, or add to what of it."""
    if not operation.sums:
        return _User(tiling, tuple(enumerate(tiling.ranges)))
    ranges: list[tuple[int, tuple[Range | None, ...]] | None] = [None] * len(operation.shape)
    for axis, how in enumerate(operation.readings[0].axes):
        if how is not None:
            ranges[how[0]] = (axis, tuple(how[1].reached(one) for one in tiling.ranges[axis]))
    return _User(tiling, tuple(ranges))


def _read(operation: Operation, number: int, tiling: Tiling) -> _User:
    """Which tiles read what of one of an operation's inputs."""
    reading = operation.readings[number]
    if operation.sums and number == 0:
        return _User(tiling, tuple(enumerate(tiling.ranges)))
    ranges: list[tuple[int, tuple[Range | None, ...]] | None] = []
    for size, how in zip(reading.shape, reading.axes, strict=True):
        if how is None:
            ranges.append(None)
            continue
        needs = [how[1].need(one, size) for one in tiling.ranges[how[0]]]
        ranges.append((how[0], tuple(need and need.range for need in needs)))
    return _User(tiling, tuple(ranges))


def _used(weight: Weight, tiling: Tiling) -> _User:
    """Which tiles compute with what of a variable."""
    return _User(tiling, tuple(None if cut is None else (cut, tiling.ranges[cut]) for cut in weight.cuts))
