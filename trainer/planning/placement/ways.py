"""Layouts of a whole network that follow one rule: space cut over ranks, or channels. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trainer.errors import ConfigError
from trainer.planning.placement.layouts import Layout, cut, grid, replicated
from trainer.planning.placement.operations import Network, Operation

Layouts = dict[str, Layout]
_IMAGE_AXES = 3  # samples, one of space, channels


def spatial(network: Network, parts: Sequence[int], ranks: Sequence[int]) -> Layouts:
    """Cut depth, height and width of every feature map; all else is on the first rank.

    Args:
        network: to be divided.
        parts: of each axis of space, such as (4, 1, 1).
        ranks: as many as there are parts.

    Raises:
        ConfigError: no feature map is large enough, or ranks and parts differ.
    """
    if math.prod(parts) != len(ranks):
        raise ConfigError(f"{math.prod(parts)} parts and {len(ranks)} ranks: the numbers must be equal.")

    def divided(shape: tuple[int, ...]) -> Layout | None:
        axes = {axis: count for axis, count in enumerate(parts, start=1) if count > 1}
        fits = len(shape) == len(parts) + 2 and all(shape[axis] >= count for axis, count in axes.items())
        return grid(shape, axes, ranks) if fits else None

    return _by(network, divided, ranks[0])


def filters(network: Network, shares: Mapping[int, float], *, master: bool) -> Layouts:
    """Cut the channels of convolutions in proportion to the shares.

    Args:
        network: to be divided.
        shares: of each rank; the first one is the master.
        master: whether all other operations are on the first rank (Marques et al., arXiv 1712.02546), or keep
            their channels where they are.
    """
    first = next(iter(shares))

    def divided(shape: tuple[int, ...]) -> Layout | None:
        return cut(shape, -1, shares) if len(shape) >= _IMAGE_AXES else None

    found = _by(network, divided, first)
    for operation in network.operations if master else ():
        if operation.readings and operation.kind not in ("convolution", "transposed"):
            found[operation.name] = replicated(_placed_shape(operation), [first])
    return found


def _placed_shape(operation: Operation) -> tuple[int, ...]:
    """The shape that a layout divides: of an operation that sums, that of its input."""
    return operation.readings[0].shape if operation.sums else operation.shape


def _by(network: Network, divided: object, first: int) -> Layouts:
    found: Layouts = {}
    for operation in network.operations:
        if operation.readings:
            shape = _placed_shape(operation)
            layout = divided(shape) if callable(divided) else None
            found[operation.name] = layout or replicated(shape, [first])
    return found
