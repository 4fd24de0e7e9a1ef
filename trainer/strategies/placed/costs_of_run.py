"""What a planner goes by when a run starts: seconds and links of all ranks, and their memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainer.config import RunConfig
from trainer.data.loading import memory
from trainer.planning.placement import costs
from trainer.planning.profile import Profile
from trainer.ranks.agreement import agree
from trainer.ranks.world import World
from trainer.strategies import optimizers
from trainer.strategies.placed.profiling.measuring import About, measure
from trainer.strategies.placed.reading import read
from trainer.telling import tell


def profile(
    config: RunConfig, path: Path | None, model: keras.Model, world: World, samples: int
) -> Profile | None:
    """Return rank 0's profile, read or measured, the same on all ranks; a collective.

    Args:
        config: of the run.
        path: of the file; None to measure.
        model: whose weights are as before afterwards.
        world: all ranks.
        samples: of a micro-batch.

    Raises:
        Agreed: the file cannot be used, or a device has no memory for the samples.
    """
    network = agree(world, lambda: read(model, samples))
    if path is not None:
        found = agree(world, lambda: _read(path, network, world))
        return Profile.model_validate_json(world.broadcast_object(found and found.model_dump_json()))
    train = config.train.model_copy(update={"accumulation": 1})
    shape = tuple(int(length) for length in model.inputs[0].shape[1:])
    about = About(config.model.name, shape, samples, config.train.precision)
    before = [tf.identity(variable.value) for variable in model.variables]
    if world.is_main:
        tell("measuring what operations, messages and updates take here, which may last a minute or two.")
    try:
        return measure(
            world, about, network, model, optimizers.build(train, 1, model), _loss,
            compile=train.compile, operation=_unseen, link=_unseen,
        )  # fmt: skip
    finally:
        for variable, value in zip(model.variables, before, strict=True):
            variable.assign(value)


def _read(path: Path, network: Any, world: World) -> Profile | None:
    if not world.is_main:
        return None
    found = Profile.read(path)
    costs.check_profile(found, network, world.size)
    return found


def _loss(outputs: Any) -> Any:
    """Takes about as long as any loss: next to nothing."""
    return tf.add_n([tf.reduce_mean(tf.square(tf.cast(one, tf.float32))) for one in outputs])


def _unseen(done: int, total: int) -> None:
    """Show no progress: the bar is that of the training."""


def memory_bytes(world: World, ranks: int) -> list[float]:
    """Return what each rank of a replica can have, the least of all replicas; a collective.

    Ranks that share a host, or a control group, take equal parts of what it has.
    """
    each = memory.shares(world.allgather_object((memory.own_bytes(), memory.shared_bytes())), world.hosts)
    return [min(each[rank::ranks]) for rank in range(ranks)]
