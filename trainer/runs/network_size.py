"""Whether this host's memory holds a network, looked at before it is made."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import psutil

from trainer import byte_sizes, models
from trainer.config import ModelConfig
from trainer.errors import ModelError

# Networks with no larger number among their options are built without looking.
_LARGE = 512


def _numbers(values: Sequence[Any]) -> Iterator[float]:
    """The numbers among options, those in lists too; 0 first."""
    yield 0
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _numbers(value)
        elif isinstance(value, (int, float)):
            yield value


def check(given: ModelConfig, shape: tuple[int, int, int, int], outputs: int, *, dense: bool) -> None:
    """Refuse weights that this host's memory cannot hold, before they get values.

    Of networks of ours with a large number among their options: another's function may do more than build.
    What is drawn here must not change the first weights, which Keras seeds from Python's generator.

    Args:
        given: which network, with which options.
        shape: (D, H, W, C) of what it takes.
        outputs: their number, for the whole or for each voxel.
        dense: whether it is for each voxel.

    Raises:
        ModelError: the weights and their gradients need more than there is, or the network cannot be built.
    """
    if given.name not in models.names() or max(_numbers([given.width, *given.options.values()])) <= _LARGE:
        return
    drawn = random.getstate()
    outline = models.outline(given.name, shape, outputs, dense=dense, width=given.width, **given.options)
    random.setstate(drawn)
    # Gradients are as large as the weights.
    needed, there = 2 * 4 * outline.count_params(), psutil.virtual_memory().total
    if needed > there:
        raise ModelError(
            f"{given.name}: its {outline.count_params():,} parameters and their gradients need "
            f"{byte_sizes.as_text(needed)}, and this host has {byte_sizes.as_text(there)}.",
            cure="Take a smaller model.width, or smaller model.options.",
            key="model.width",
        )
