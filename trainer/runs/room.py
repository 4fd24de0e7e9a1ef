"""Whether the network's parts fit into the memory that ranks may use: known before the first step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.byte_sizes import as_text
from trainer.data.loading.memory import own_bytes, shared_bytes
from trainer.errors import CingulumError, ConfigError
from trainer.planning.placement.memory import Memory
from trainer.ranks import world as worlds
from trainer.ranks.agreement import agree
from trainer.ranks.world import World
from trainer.strategies.base import Plan

_CURE = (
    "Divide the network over more {} (mpirun -np ..., train.strategy=spatial), take fewer samples at once "
    "(train.accumulation), compute activations again (train.strategy=hybrid, train.strategy.recompute=true), "
    "or raise the limit (memory of the job, ulimit -v)."
)


def check(needed: tuple[Memory, ...] | None, variables: Iterable[Any], world: World) -> None:
    """Refuse a network of which a rank cannot hold its part, and warn where it is about to be short.

    A collective. Ranks that share memory, of a host or of a control group, must fit into it together; the
    limit of a process counts for each rank. What is refused is sure: parameters, slots, and what the forward
    pass leaves for the backward pass. The most that a step takes is an estimate, and a warning.

    Args:
        needed: by each rank; None where it is not predicted: nothing is checked.
        variables: of the whole network and its optimizer, which are there now, and let go before a step.
        world: all ranks.

    Raises:
        Agreed: it does not fit.
    """
    if needed is None:
        return
    alone, shared = agree(world, lambda: (own_bytes(), shared_bytes()))
    there = sum(map(_bytes, variables))
    everyones: list[dict[str, int]] = world.allgather_object(shared)
    agree(world, lambda: _check(needed, there, alone, everyones, world))


def _check(
    needed: tuple[Memory, ...], there: int, alone: int | None, shared: list[dict[str, int]], world: World
) -> None:
    """Check every memory that this rank takes part of; see `check`.

    Args:
        needed: by each rank.
        there: bytes of the whole network, on every rank.
        alone: what this process may take more; None without a limit.
        shared: of each rank, what it may take more together with others, by name.
        world: all ranks.
    """
    left: dict[tuple[int, ...], int] = {} if alone is None else {(world.rank,): alone}
    for name in shared[world.rank]:
        together = [
            rank
            for rank, host in enumerate(world.hosts)
            if host == world.hosts[world.rank] and name in shared[rank]
        ]
        least = min(shared[rank][name] for rank in together)
        left[tuple(together)] = min(least, left.get(tuple(together), least))
    for ranks, bytes_ in left.items():
        _fit(ranks, needed, there, bytes_, world)


def _fit(ranks: tuple[int, ...], needed: tuple[Memory, ...], there: int, left: int, world: World) -> None:
    state = sum(needed[rank].variables + needed[rank].slots for rank in ranks)
    kept = sum(needed[rank].kept for rank in ranks)
    most = sum(needed[rank].total for rank in ranks)
    whole = there * len(ranks)
    who, where, need, together = worlds.named(ranks), "", "needs", ""
    if len(ranks) > 1:
        where, need, together = f" on {world.hosts[ranks[0]]}", "need", " together"
    if max(state, state + kept - whole) > left:
        raise ConfigError(
            f"{who.capitalize()} of {world.size}{where} {need} {as_text(state + kept)} at least "
            f"({as_text(state)} of parameters and optimizer state, {as_text(kept)} of activations that "
            f"the backward pass needs) and can have {as_text(left)} more{together}.",
            cure=_CURE.format("hosts" if together else "ranks, each with this much memory"),
            key="train.strategy",
        )
    if most - whole > left and world.rank == ranks[0]:
        worlds.report(
            f"warning: {who}{where} {need} about {as_text(most)} in a step, and can have {as_text(left)} "
            f"more{together}."
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
            cure=_CURE.format("ranks, each with this much memory"),
            rank=world.rank,
        ) from error


def _bytes(variable: Any) -> int:
    return int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size
