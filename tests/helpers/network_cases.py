"""Every registered network at a size that a test can afford."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from trainer import models

# DenseNet keeps its four blocks and loses layers: building 121 takes seconds, and they are all alike.
FEWER = {"densenet121": {"blocks": (2, 2, 2, 2)}}


def sides_of(name: str, side: int | None = None) -> tuple[int, ...]:
    """(D, H, W) of the smallest volume that the network takes, or of another; one slice for a 2D network."""
    network = models.describe(name)
    side = network.smallest if side is None else side
    return (1, side, side) if network.dimensions == 2 else (side,) * 3


def small(
    name: str,
    *,
    sides: tuple[int, ...] | None = None,
    channels: int = 1,
    outputs: int = 2,
    make: Callable[..., keras.Model] = models.build,
    **options: Any,
) -> keras.Model:
    """The network at width 4, for the smallest volume that it takes."""
    options = {"width": 4, **FEWER.get(name, {}), **options}
    shape = (*(sides or sides_of(name)), channels)
    return make(name, shape, outputs, dense=bool(models.describe(name).dense), **options)
