"""The story of a profile: a run's network is built, measured on every rank, and described."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.config import RunConfig
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.profile import Profile
from trainer.ranks.agreement import agree
from trainer.ranks.world import World
from trainer.runs import preparation
from trainer.runs.preparation import Data
from trainer.strategies import optimizers
from trainer.strategies.placed import reading
from trainer.strategies.placed.profiling.measuring import About, Show, measure
from trainer.strategies.placed.profiling.operations import Loss


@dataclass(frozen=True)
class _Prepared:
    data: Data
    model: keras.Model
    network: OperationGraph
    optimizer: keras.Optimizer
    loss: Loss


def default_batch(config: RunConfig, ranks: int) -> int:
    """Return the samples of a micro-batch that a rank takes where all ranks share it, 1 at least."""
    return -(-config.train.global_batch // (config.train.accumulation * ranks))


def profile(
    config: RunConfig, world: World, *, batch: int | None = None, operation: Show, link: Show
) -> Profile:
    """Measure the network of a run on all ranks, each on its own device at the same time; a collective.

    No strategy of the run has a part in it: every rank measures the whole network, operation by operation.

    Args:
        config: of the run; the shapes of inputs and targets are those of its shard set.
        world: started with `Members(messages=True)`, or of one rank.
        batch: samples; default: `default_batch`.
        operation: is told how many of how many operations are done.
        link: is told how many of how many pairs of ranks are done.

    Raises:
        Agreed: what is wrong with the configuration or the data, a layer that cannot be described, or a
            batch that a device has no memory for.
    """
    samples = batch or default_batch(config, world.size)
    found = agree(world, lambda: _prepare(config, samples))
    about = About(config.model.name, found.data.sample_shape, samples, config.train.precision)
    return measure(
        world, about, found.network, found.model, found.optimizer, found.loss,
        compile=config.train.compile, operation=operation, link=link,
    )  # fmt: skip


def _prepare(config: RunConfig, batch: int) -> _Prepared:
    preparation.set_numerics(config)
    data = preparation.open_data(config)
    # Batch norm over all ranks is an exchange of the strategy, and no part of an operation.
    model = preparation.build_model(config, data, synchronised=False)
    train = config.train.model_copy(update={"accumulation": 1})
    optimizer = optimizers.build(train, preparation.steps_per_epoch(config, data), model)
    return _Prepared(data, model, reading.read(model, batch), optimizer, _loss(data, batch))


def _loss(data: Data, batch: int) -> Loss:
    """The loss of the task, for targets as the shard set has them; those of label maps are background."""
    rows = np.resize(np.asarray(data.split.train), batch)
    targets = data.task.targets([int(row) for row in rows])
    if targets is None:
        targets = np.zeros((batch, *data.sample_shape[:-1]), np.uint8)
    per_sample = data.task.loss()

    def loss(outputs: Sequence[Any]) -> Any:
        return tf.reduce_mean(per_sample(targets, outputs[0]))

    return loss
