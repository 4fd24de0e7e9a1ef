"""Layouts of a whole network that follow one rule: space cut over ranks, or channels. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from trainer.errors import ConfigError
from trainer.planning.placement import boxes
from trainer.planning.placement.boxes import Box
from trainer.planning.placement.layouts import TensorLayout, cut, grid, layout, replicated
from trainer.planning.placement.operations import Operation, OperationGraph
from trainer.planning.placement.units import MAY_OVERLAP

Layouts = dict[str, TensorLayout]
# From a shape to who computes which box of it, by rank; None where it cannot be cut so.
Cut = Callable[[tuple[int, ...]], TensorLayout | None]
_IMAGE_AXES = 3  # samples, one of space, channels
# Kinds of operations whose channels are filters.
CONVOLUTIONS = ("convolution", "transposed")


def spatial(
    network: OperationGraph, parts: Sequence[int], ranks: Sequence[int], *, samples: int | None = None
) -> Layouts:
    """Cut depth, height and width of every feature map; all else is on the first rank.

    Args:
        network: to be divided.
        parts: of each axis of space, such as (4, 1, 1).
        ranks: as many as there are parts.
        samples: of a micro-batch. With it, small maps are cut along channels: those of a resolution at which
            convolutions have more weights than `samples` samples have values. Then maps cross, and gradients
            of these weights do not.

    Raises:
        ConfigError: no feature map is large enough, or ranks and parts differ.
    """
    if math.prod(parts) != len(ranks):
        raise ConfigError(f"{math.prod(parts)} parts and {len(ranks)} ranks: the numbers must be equal.")
    axes = {axis: count for axis, count in enumerate(parts, start=1) if count > 1}
    small = set() if samples is None else _small(network, samples)

    def divided(shape: tuple[int, ...]) -> TensorLayout | None:
        if shape[1:-1] in small:
            return cut(shape, len(shape) - 1, dict.fromkeys(ranks, 1.0))
        fits = len(shape) == len(parts) + 2 and all(shape[axis] >= count for axis, count in axes.items())
        return grid(shape, axes, ranks) if fits else None

    layouts = _by(network, divided, ranks[0])
    if len(ranks) > 1 and all(len(held.pieces) == 1 for held in layouts.values()):
        raise ConfigError(
            f"No feature map of this network can be cut into {' x '.join(map(str, parts))} parts.",
            cure="Cut into fewer parts, or along other axes; networks of images cannot be cut in space.",
            key="train.strategy.parts",
        )
    return with_borders(network, layouts)


def _small(network: OperationGraph, samples: int) -> set[tuple[int, ...]]:
    """Return the resolutions at which convolutions have more weights than outputs."""
    weights: Counter[tuple[int, ...]] = Counter()
    for operation in network.operations:
        if operation.kind in CONVOLUTIONS:
            space = operation.shape[1:-1]
            weights[space] += sum(math.prod(weight.shape) for weight in operation.weights)
            weights[space] -= samples * math.prod(operation.shape[1:])
    return {space for space, more in weights.items() if more > 0}


_WINDOWED = ("convolution", "maximum", "average")


def with_borders(network: OperationGraph, layouts: Mapping[str, TensorLayout]) -> Layouts:
    """Let every rank compute, of normalisations and activations, the borders that its windows read, too.

    Then what crosses is the output of the convolution before, together with the sums of its batch norm: one
    exchange in place of two, forwards and backwards.
    """
    bordered = dict(layouts)
    needed: dict[tuple[str, int], Box] = {}
    for operation in reversed(network.operations):
        if operation.kind not in (*MAY_OVERLAP, *_WINDOWED):
            continue
        held = bordered[operation.name]
        if len(held.pieces) != len(held.ranks) or not all(
            _has_all_channels(one.box, held) for one in held.pieces
        ):
            continue
        if operation.kind in MAY_OVERLAP:
            wider = {}
            for piece in held.pieces:
                box = boxes.hull([piece.box, needed.get((operation.name, piece.rank), piece.box)])
                # What would be computed twice must be less than what is computed once.
                wider[piece.rank] = [box if box.size < 2 * piece.box.size else piece.box]
            held = bordered[operation.name] = layout(held.shape, wider)
        for piece in held.pieces:
            for reading in operation.readings:
                if (read := reading.box(piece.box)) is not None:
                    key = reading.tensor, piece.rank
                    needed[key] = boxes.hull([read, needed.get(key, read)])
    return bordered


def _has_all_channels(box: Box, held: TensorLayout) -> bool:
    return box.ranges[-1] == (0, held.shape[-1])


def filters(
    network: OperationGraph,
    shares: Mapping[int, float],
    *,
    master: bool,
    splits: Mapping[str, Sequence[int]] | None = None,
) -> Layouts:
    """Cut the channels of convolutions in proportion to the shares.

    Args:
        network: to be divided.
        shares: of each rank; the first one is the master.
        master: whether all other operations are on the first rank (Marques et al., arXiv 1712.02546), or keep
            their channels where they are.
        splits: of some operations, channels of each rank, in the order of `shares`. What reads such a
            channel by itself, such as an activation, is computed by the rank that has it.
    """
    first = next(iter(shares))
    counts: dict[str, Sequence[float]] = dict(splits or {})
    layouts: Layouts = {}
    for operation in network.operations:
        if not operation.readings:
            continue
        shape = placed_shape(operation)
        before = counts.get(operation.readings[0].tensor)
        if operation.name not in counts and before is not None and sum(before) == shape[-1]:
            counts[operation.name] = before
        if len(shape) < _IMAGE_AXES or (master and operation.kind not in CONVOLUTIONS):
            layouts[operation.name] = replicated(shape, [first])
        else:
            share = dict(zip(shares, counts.get(operation.name, list(shares.values())), strict=True))
            layouts[operation.name] = cut(shape, len(shape) - 1, share)
    return layouts


def replicas(
    network: OperationGraph, count: int, ranks: int, divide: Callable[[OperationGraph], Layouts]
) -> Layouts:
    """Divide samples over replicas of a placement: rank r of replica i is rank i * `ranks` + r.

    Args:
        network: whose samples are those of all replicas.
        count: replicas.
        ranks: of one replica.
        divide: divides the network over ranks 0 to `ranks` - 1.

    Raises:
        ConfigError: there are fewer samples than replicas.
    """
    whole = divide(network)
    if count == 1:
        return whole
    layouts = {}
    for operation in network.operations:
        if operation.readings:
            held = whole[operation.name]
            if held.shape[0] < count:
                raise ConfigError(
                    f"{held.shape[0]} sample(s) in a micro-batch cannot be divided over {count} replicas.",
                    cure=f"Set train.global_batch to a multiple of {count} times train.accumulation, "
                    "or train.strategy.replicas=1.",
                )
            samples = [one for one in boxes.divided(held.shape[0], [1.0] * count) if one is not None]
            pieces: dict[int, list[Box]] = {}
            for number, range_ in enumerate(samples):
                for piece in held.pieces:
                    box = piece.box.with_range(0, range_)
                    pieces.setdefault(number * ranks + piece.rank, []).append(box)
            layouts[operation.name] = layout(held.shape, pieces)
    return layouts


def copies(layouts: Layouts, network: OperationGraph, count: int, ranks: int) -> Layouts:
    """Lay out several replicas, each as these layouts say, whatever they do with samples.

    Args:
        layouts: of one replica, with its samples, on ranks 0 to `ranks` - 1.
        network: whose samples are those of all replicas, one after the other.
        count: replicas; rank r of replica i is rank i * `ranks` + r.
        ranks: of one replica.
    """
    copied: Layouts = {}
    for operation in network.operations:
        if operation.readings:
            held = layouts[operation.name]
            pieces: dict[int, list[Box]] = {}
            for number in range(count):
                for piece in held.pieces:
                    start, stop = (end + number * held.shape[0] for end in piece.box.ranges[0])
                    box = piece.box.with_range(0, (start, stop))
                    pieces.setdefault(number * ranks + piece.rank, []).append(box)
            copied[operation.name] = layout(placed_shape(operation), pieces)
    return copied


def resampled(layouts: Layouts, network: OperationGraph) -> Layouts:
    """Return the same layouts for another number of samples: no rank uses weights that it did not use before.

    Args:
        layouts: of the same operations, or more.
        network: with the other number of samples.
    """
    scaled: Layouts = {}
    for operation in network.operations:
        if operation.readings:
            held, shape = layouts[operation.name], placed_shape(operation)
            pieces: dict[int, list[Box]] = {}
            for piece in held.pieces:
                start, stop = (-(-end * shape[0] // held.shape[0]) for end in piece.box.ranges[0])
                if start < stop:
                    pieces.setdefault(piece.rank, []).append(piece.box.with_range(0, (start, stop)))
            scaled[operation.name] = layout(shape, pieces)
    return scaled


def alone(network: OperationGraph) -> Layouts:
    """Return that rank 0 computes all."""
    return {one.name: replicated(placed_shape(one), [0]) for one in network.operations if one.readings}


def placed_shape(operation: Operation) -> tuple[int, ...]:
    """Return the shape that a layout divides: of an operation that sums, that of its input."""
    return operation.readings[0].shape if operation.sums else operation.shape


def _by(network: OperationGraph, divided: Cut, first: int) -> Layouts:
    layouts: Layouts = {}
    for operation in network.operations:
        if operation.readings:
            shape = placed_shape(operation)
            layouts[operation.name] = divided(shape) or replicated(shape, [first])
    return layouts
