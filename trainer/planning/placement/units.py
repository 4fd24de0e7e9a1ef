"""Units: which rank computes which part of an operation, and what it needs for that. Pure."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.errors import ConfigError
from trainer.planning.placement import boxes
from trainer.planning.placement.boxes import Box
from trainer.planning.placement.exchanges import Redistribution, exchange
from trainer.planning.placement.layouts import TensorLayout, layout
from trainer.planning.placement.operations import Operation, OperationGraph

# Operations whose borders may be computed by two ranks, each for what it computes next.
MAY_OVERLAP = ("batch_norm", "batch_norm_inference", "group_norm", "activation", "dropout", "elementwise")


@dataclass(frozen=True)
class Unit:
    """A part of an operation on one rank.

    Attributes:
        operation: its name.
        rank: that computes it.
        box: of the output; of an operation that sums, the part of it that this unit adds to.
        reads: the box of each input, None where it needs nothing of it.
        blocks: the block of each weight, in the order of the operation's weights.
    """

    operation: str
    rank: int
    box: Box
    reads: tuple[Box | None, ...]
    blocks: tuple[Box, ...]

    def __str__(self) -> str:
        return f"{self.operation}{self.box} on rank {self.rank}"


@dataclass(frozen=True)
class Placement:
    """A whole network divided over ranks, and all that moves between them.

    Attributes:
        network: that is divided.
        units: in the order of operations, then of ranks.
        flows: of each tensor that is read, from where it is computed to where it is read; gradients take the
            way back.
        holders: of each variable, who holds which block.
        reductions: of each trainable variable, from the parts of its gradient to the owners of the sum.
        returns: of each trainable variable, from its owners to its holders, after the update.
    """

    network: OperationGraph
    units: tuple[Unit, ...]
    flows: Mapping[str, Redistribution]
    holders: Mapping[str, TensorLayout]
    reductions: Mapping[str, Redistribution]
    returns: Mapping[str, Redistribution]

    @functools.cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that compute something, in order."""
        return tuple(sorted({unit.rank for unit in self.units}))

    def of(self, operation: str) -> tuple[Unit, ...]:
        """The units of an operation."""
        return self._by_operation.get(operation, ())

    @functools.cached_property
    def _by_operation(self) -> dict[str, tuple[Unit, ...]]:
        found: dict[str, list[Unit]] = defaultdict(list)
        for unit in self.units:
            found[unit.operation].append(unit)
        return {name: tuple(some) for name, some in found.items()}

    def elements_sent(self) -> dict[tuple[int, int], int]:
        """Return the elements from rank to rank in one step: outputs, weights, and the gradients of both."""
        # Inputs never cross: every rank reads its own.
        counts: dict[tuple[int, int], int] = defaultdict(int)
        for flow in self.flows.values():
            for (source, target), count in flow.elements_sent().items():
                counts[source, target] += count
                counts[target, source] += count
        for flow in (*self.reductions.values(), *self.returns.values()):
            for pair, count in flow.elements_sent().items():
                counts[pair] += count
        return dict(counts)


def place(network: OperationGraph, layouts: Mapping[str, TensorLayout]) -> Placement:
    """Divide a network.

    Args:
        network: whose shapes hold the samples of a micro-batch.
        layouts: of the output of each operation but inputs, of which every rank reads what it needs; of one
            that sums, of its input: who adds up which part. Every element is computed by one rank,
            but of the kinds in `MAY_OVERLAP`.

    Raises:
        ConfigError: an operation is missing, or not all of it is computed, or some of it twice.
    """
    units: list[Unit] = []
    for operation in network.operations:
        if not operation.readings:
            continue
        held = layouts.get(operation.name)
        if held is None:
            raise ConfigError(
                f"The plan does not say which ranks compute {operation.name}.",
                cure="Add the operation to the plan.",
            )
        _check(operation, held)
        units += [_unit(operation, piece.rank, piece.box) for piece in held.pieces]
    _check_statistics(network, units)
    units = [*_inputs(network, units), *units]
    holders = _holders(network, units)
    widths = {w.path: w.width for operation in network.operations for w in operation.weights if w.trainable}
    owned = {path: owners(held) for path, held in holders.items() if path in widths}
    return Placement(
        network,
        tuple(units),
        _flows(network, units),
        holders,
        {
            path: exchange(holders[path], to, path, sums=True, width=widths[path])
            for path, to in owned.items()
        },
        {path: exchange(to, holders[path], path, width=widths[path]) for path, to in owned.items()},
    )


def _inputs(network: OperationGraph, units: Sequence[Unit]) -> list[Unit]:
    """Units of the inputs: each rank reads the boxes that its other units need."""
    read = _read(network, units)
    return [
        Unit(operation.name, rank, box, (), ())
        for operation in network.inputs
        for rank, parts in sorted(read.get(operation.name, {}).items())
        for box in boxes.joined(parts)
    ]


def _check(operation: Operation, held: TensorLayout) -> None:
    shape = operation.readings[0].shape if operation.sums else operation.shape
    if held.shape != shape:
        raise ConfigError(
            f"{operation.name}: the plan divides a tensor of shape {list(held.shape)}, not {list(shape)}."
        )
    held.check(operation.name)
    if operation.kind in MAY_OVERLAP:
        return
    for i, piece in enumerate(held.pieces):
        for other in held.pieces[i + 1 :]:
            if (twice := piece.box & other.box) is not None:
                raise ConfigError(
                    f"{operation.name}: ranks {piece.rank} and {other.rank} both compute {twice}.",
                    cure="Let one of them compute it; the other receives it.",
                    key=f"operations.{operation.name}",
                )


def _check_statistics(network: OperationGraph, units: Sequence[Unit]) -> None:
    """See that who adds up the statistics of a batch norm normalises those channels, too.

    Sums are taken about the moving mean, which is kept up to date by those that normalise.
    """
    kept: dict[tuple[str, int], list[Box]] = {}
    for unit in units:
        operation = network[unit.operation]
        if operation.kind == "batch_norm":
            for weight, block in zip(operation.weights, unit.blocks, strict=True):
                kept.setdefault((weight.path, unit.rank), []).append(block)
    for unit in units:
        operation = network[unit.operation]
        if operation.kind == "batch_moments":
            for weight, block in zip(operation.weights, unit.blocks, strict=True):
                if boxes.subtract(block, kept.get((weight.path, unit.rank), [])):
                    raise ConfigError(
                        f"{operation.name}: rank {unit.rank} adds up statistics of {unit.box} and does not "
                        f"normalise all of these channels ({operation.layer}).",
                        cure=f"Divide {operation.name} and {operation.layer} over the same ranks.",
                    )


def _unit(operation: Operation, rank: int, box: Box) -> Unit:
    if not operation.sums:
        reads = tuple(reading.box(box) for reading in operation.readings)
    else:
        reads = (box, *(reading.box(operation.reduced(box)) for reading in operation.readings[1:]))
        box = operation.reduced(box)
    return Unit(operation.name, rank, box, reads, tuple(weight.block(box) for weight in operation.weights))


def _read(network: OperationGraph, units: Sequence[Unit]) -> dict[str, dict[int, list[Box]]]:
    """Of each tensor, the disjoint boxes that the units of each rank read."""
    read: dict[str, dict[int, list[Box]]] = {}
    for unit in units:
        for reading, box in zip(network[unit.operation].readings, unit.reads, strict=True):
            if box is not None:
                _add(read.setdefault(reading.tensor, {}), unit.rank, box)
    return read


def _flows(network: OperationGraph, units: Sequence[Unit]) -> dict[str, Redistribution]:
    made: dict[str, dict[int, list[Box]]] = {}
    for unit in units:
        made.setdefault(unit.operation, {}).setdefault(unit.rank, []).append(unit.box)
    flows = {}
    for tensor, needed in _read(network, units).items():
        operation = network[tensor]
        held = made[tensor]
        if operation.sums:
            # Parts of a sum on one rank are added up there first.
            held = {rank: boxes.disjoint(parts) for rank, parts in held.items()}
        have = layout(operation.shape, held)
        flows[tensor] = exchange(
            have, layout(operation.shape, needed), tensor, sums=operation.sums, width=operation.width
        )
    return flows


def _holders(network: OperationGraph, units: Sequence[Unit]) -> dict[str, TensorLayout]:
    """Who holds what of each variable: whoever computes with it."""
    used: dict[str, dict[int, list[Box]]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for unit in units:
        for weight, block in zip(network[unit.operation].weights, unit.blocks, strict=True):
            shapes[weight.path] = weight.shape
            _add(used.setdefault(weight.path, {}), unit.rank, block)
    return {path: layout(shapes[path], held) for path, held in used.items()}


def _add(held: dict[int, list[Box]], rank: int, box: Box) -> None:
    """Add a box to those of a rank, which stay disjoint."""
    own = held.setdefault(rank, [])
    own += boxes.subtract(box, own)


@functools.lru_cache(maxsize=2**12)
def owners(held: TensorLayout) -> TensorLayout:
    """One owner for every element of a variable, among those who hold it, and the same number for each.

    Elements with the same holders are cut along their longest axis. The owner adds up the gradient, keeps the
    optimizer's state and updates; the others receive the new values. That is what a ring all-reduce sends:
    2 (h - 1) / h of the elements for each of h holders.
    """
    owned: dict[int, list[Box]] = {}
    for box, ranks in regions(held):
        if not box.shape:
            owned.setdefault(ranks[0], []).append(box)
            continue
        axis = max(range(len(box.shape)), key=lambda i: box.shape[i])
        for rank, range_ in zip(ranks, boxes.divided(box.shape[axis], [1.0] * len(ranks)), strict=True):
            if range_ is not None:
                start = box.ranges[axis][0]
                part = box.with_range(axis, (start + range_[0], start + range_[1]))
                owned.setdefault(rank, []).append(part)
    return layout(held.shape, owned)


def regions(held: TensorLayout) -> list[tuple[Box, list[int]]]:
    """Return disjoint boxes of a layout, each with all ranks that hold it, in order."""
    regions: list[tuple[Box, list[int]]] = []
    for piece in held.pieces:
        left = [piece.box]
        after: list[tuple[Box, list[int]]] = []
        for box, ranks in regions:
            common = box & piece.box
            if common is None:
                after.append((box, ranks))
                continue
            after += [(part, ranks) for part in box.minus(common)]
            after.append((common, [*ranks, piece.rank]))
            left = [part for one in left for part in one.minus(common)]
        regions = after + [(part, [piece.rank]) for part in left]
    return regions
