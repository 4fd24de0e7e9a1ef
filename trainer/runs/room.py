"""Whether the network's part fits into the memory that each rank may use: known before the first step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.byte_sizes import as_text
from trainer.data.loading.memory import available_bytes
from trainer.errors import CingulumError, ConfigError
from trainer.planning.placement.memory import Memory
from trainer.ranks import world as worlds
from trainer.ranks.agreement import agree
from trainer.ranks.world import World
from trainer.strategies.base import Plan

_CURE = (
    "Divide the network over more ranks, each with this much memory (mpirun -np ..., "
    "train.strategy=spatial), take fewer samples at once (train.accumulation), or raise the limit (memory of "
    "the job, ulimit -v)."
)


def check(needed: tuple[Memory, ...] | None, variables: Iterable[Any], world: World) -> None:
    """Refuse a network of which a rank cannot hold its part, and warn where it is about to be short.

    A collective. What is refused is sure: parameters, slots, and what the forward pass leaves for the
    backward pass. The most that a step takes is an estimate, and a warning.

    Args:
        needed: by each rank; None where it is not predicted: nothing is checked.
        variables: of the whole network and its optimizer, which are there now, and let go before a step.
        world: all ranks.

    Raises:
        Agreed: it does not fit.
    """
    if needed is None:
        return
    mine = needed[world.rank]
    agree(world, lambda: _check(mine, sum(map(_bytes, variables)), available_bytes(), world))


def _check(mine: Memory, there: int, left: int, world: World) -> None:
    state = mine.variables + mine.slots
    sure = max(state, state + mine.kept - there)
    if sure > left:
        raise ConfigError(
            f"Rank {world.rank} of {world.size} needs {as_text(state + mine.kept)} at least "
            f"({as_text(state)} of parameters and optimizer state, {as_text(mine.kept)} of activations that "
            f"the backward pass needs) and can have {as_text(left)} more.",
            cure=_CURE,
            key="train.strategy",
        )
    if mine.total - there > left:
        worlds.report(
            f"warning: rank {world.rank} needs about {as_text(mine.total)} in a step, and can have "
            f"{as_text(left)} more."
        )


@contextlib.contextmanager
def naming_shortage(plan: Plan, world: World) -> Iterator[None]:
    """Return a context in which a step that gets no memory ends with what was predicted for it.

    Raises:
        CingulumError: of this rank alone.
    """
    try:
        yield
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        needed = plan.memory()
        predicted = f", predicted to need about {as_text(needed[world.rank].total)}" if needed else ""
        raise CingulumError(
            f"rank {world.rank}: the system gave no more memory to a training step{predicted}.",
            cure=_CURE,
            rank=world.rank,
        ) from error


def _bytes(variable: Any) -> int:
    return int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size
