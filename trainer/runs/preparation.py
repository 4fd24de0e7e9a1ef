"""What a run is made of, from its configuration: data and its split, network, optimizer."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf

from trainer import byte_sizes, models, tasks, transfer
from trainer.config import ModelConfig, RunConfig
from trainer.data.loading import order, pipeline
from trainer.data.loading.batch_reader import Batches
from trainer.data.loading.covariates import Covariates
from trainer.data.loading.patches import Patches
from trainer.data.loading.pipeline import Samples
from trainer.data.loading.reader_time import ReaderTime
from trainer.data.shards.shards import ShardSet
from trainer.data.splits import balance, splits
from trainer.data.splits.splits import Split
from trainer.errors import ModelError
from trainer.inference import sliding
from trainer.inference.sliding import Windows
from trainer.ranks.world import World
from trainer.strategies import optimizers, slots
from trainer.strategies.base import ProcessSetup, Share, Strategy
from trainer.tasks import Task


@dataclass(frozen=True)
class Data:
    """Volumes, what is learned of them, and which are for what.

    Attributes:
        shards: the shard set.
        task: what is learned; knows the target of every row.
        split: rows for each purpose.
        covariates: non-image inputs of the network, or None.
        patches: what the network is shown of a volume, or None for all of it.
    """

    shards: ShardSet
    task: Task
    split: Split
    covariates: Covariates | None = None
    patches: Patches | None = None

    @property
    def sample_shape(self) -> tuple[int, int, int, int]:
        """(D, H, W, C) of what the network takes: a volume, or a patch of one."""
        return self.shards.shape if self.patches is None else self.patches.shape

    def read_from(self, shards: ShardSet) -> Data:
        """Return the same data, read from another place, such as a copy or memory."""
        patches = self.patches and dataclasses.replace(self.patches, shards=shards)
        return dataclasses.replace(self, shards=shards, patches=patches)

    def rows(self, name: str) -> tuple[int, ...]:
        """Return rows of the split 'train', 'validation' or 'test'."""
        rows: tuple[int, ...] = getattr(self.split, name)
        return rows

    def covariates_for(self, rows: Sequence[int]) -> np.ndarray | None:
        """Return the covariates of these rows, float32 (len(rows), k); None without covariates."""
        if self.covariates is None:
            return None
        return self.covariates.of(self.shards.volumes[row] for row in rows)

    def samples(self, rows: Sequence[int]) -> Samples:
        """Return these rows with their targets and covariates, ready to be read."""
        return Samples(
            self.shards, rows, self.task.targets(rows), self.covariates_for(rows), patches=self.patches
        )


def open_data(config: RunConfig) -> Data:
    """Open the shard set and divide its subjects.

    Raises:
        ShardError: it is no whole shard set of a format we know.
        CohortError: its labels cannot be divided as asked.
    """
    shards = ShardSet.open(config.data.shards)
    task = tasks.build(config, shards)
    split = splits.split(shards.volumes, task.volume_classes, config.data.split, targets=task.split_targets())
    return with_split(config, shards, task, split)


def with_split(config: RunConfig, shards: ShardSet, task: Task, split: Split) -> Data:
    """Return the data divided as given, with everything that is learned from the training split alone.

    Raises:
        CohortError: a subject is in two splits, or a covariate tells nothing.
        ConfigError: patches do not fit into the volumes.
    """
    splits.check_disjoint(split, shards.volumes)
    names = config.data.covariates
    training = [shards.volumes[row] for row in split.train]
    covariates = Covariates.fit(names, training) if names else None
    patches = Patches.build(config.data.patch, shards) if config.data.patch else None
    return Data(shards, task.fitted(split.train), split, covariates, patches)


def set_numerics(config: RunConfig) -> None:
    """Seed every generator, choose the precision, and make operations repeatable where asked."""
    keras.utils.set_random_seed(config.train.seed)
    keras.config.set_dtype_policy(config.train.precision)
    if config.train.deterministic:
        tf.config.experimental.enable_op_determinism()


def build_model(config: RunConfig, data: Data, *, synchronised: bool) -> keras.Model:
    """Build a network with initial weights.

    Args:
        config: of the run.
        data: decides the shapes of inputs and outputs.
        synchronised: whether batch norm takes its statistics over all ranks.

    Raises:
        ModelError: there is no such network, or volumes of this size do not go through it.
    """
    try:
        check(config.model, data.sample_shape, data.task.outputs, dense=data.task.dense)
        model = models.build(
            config.model.name,
            data.sample_shape,
            data.task.outputs,
            dense=data.task.dense,
            covariates=len(data.covariates.columns) if data.covariates else 0,
            width=config.model.width,
            sync_batch_norm=synchronised,
            **config.model.options,
        )
    except ModelError as error:
        if data.patches is None:
            raise
        size = "x".join(map(str, data.patches.size))
        hint = f"The network takes patches of {size} voxels (data.patch.size), not whole volumes."
        raise ModelError(
            error.message, cure=f"{error.cure} {hint}" if error.cure else hint, key=error.key
        ) from None
    transfer.freeze(model, config.train.transfer)
    return data.task.completed(model)


def build_network(
    config: RunConfig, data: Data, world: World, strategy: Strategy
) -> tuple[keras.Model, keras.Optimizer]:
    """Build a network with initial weights, and its optimizer, divided as the strategy says.

    Raises:
        ModelError: there is no such network, or volumes of this size do not go through it.
    """
    model = build_model(config, data, synchronised=config.train.sync_batch_norm and world.size > 1)
    optimizer = optimizers.build(config.train, steps_per_epoch(config, data), model)
    optimizer = strategy.divided(optimizer, world)
    trained = model.trainable_variables
    optimizer.build(trained if strategy.keeps_slots(world) else slots.stand_ins(trained))
    return model, optimizer


def epoch_rows(config: RunConfig, data: Data) -> tuple[int, ...]:
    """Return the training rows of one epoch: each once, small classes several times; once per patch."""
    rows = data.split.train
    if config.data.sampling == "balanced":
        rows = balance.balanced_rows(rows, np.asarray(data.task.targets(rows)))
    if config.data.patch is not None:
        rows = tuple(row for row in rows for _ in range(config.data.patch.per_volume))
    return rows


def steps_per_epoch(config: RunConfig, data: Data) -> int:
    """Return the updates per epoch."""
    return order.steps_per_epoch(len(epoch_rows(config, data)), config.train.global_batch)


def training_batches(
    config: RunConfig,
    data: Data,
    share: Share,
    start_step: int,
    spent: ReaderTime | None = None,
    *,
    stop_step: int | None = None,
    steps: Callable[[int], int] | None = None,
) -> Batches:
    """Return a rank's share of the micro-batches from `start_step` to `stop_step`: see
    `pipeline.training_batches`.

    `stop_step` is the end of the run by default.

    Raises:
        ConfigError: the global batch does not fit the ranks or the training split, or the share's box does
            not lie in what the network takes.
    """
    rows = epoch_rows(config, data)
    samples = data.samples(rows)
    samples = dataclasses.replace(samples, class_weights=data.task.class_weights())
    stop = config.train.epochs * steps_per_epoch(config, data) if stop_step is None else stop_step
    return pipeline.training_batches(
        samples,
        config,
        range(start_step, stop),
        rank=share.part,
        world_size=share.parts,
        space=share.space,
        spent=spent,
        step_of=steps,
    )


def evaluation_batches(config: RunConfig, data: Data, share: Share, split: str) -> Batches:
    """Return a rank's share of a split, each volume once over all shares: see `pipeline.evaluation_batches`.

    A batch is as large whatever the number of shares, since the last digits of an output depend on its size.
    """
    samples = data.samples(data.rows(split))
    return pipeline.evaluation_batches(
        samples, config, rank=share.part, world_size=share.parts, space=share.space
    )


def of_whole_volumes(config: RunConfig, data: Data, network: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the network for evaluation: itself, or, of a network of patches, one that takes whole volumes.

    Label maps are blended from overlapping windows, as `cingulum predict` does; classes and numbers are the
    mean output over a grid of patches.

    Args:
        config: of the run.
        data: its volumes.
        network: from inputs to outputs, such as `DistributedModel.predict`.
    """
    if data.patches is None:
        return network
    size, batch = data.patches.size, config.data.evaluation_batch
    if data.task.dense:
        return lambda x: sliding.blended_logits(network, x, Windows(size, batch=batch))
    return lambda x: sliding.mean_outputs(network, x, size, batch)


def prepare(config: RunConfig, world: World, strategy: Strategy) -> ProcessSetup:
    """Open the data and build the network, as every process of the run does.

    Raises:
        CingulumError: what is wrong with the configuration or the data.
    """
    set_numerics(config)
    data = open_data(config)
    model, optimizer = build_network(config, data, world, strategy)
    return ProcessSetup(
        model,
        optimizer,
        data.task.loss(),
        data.task.scores(),
        data.task.class_weights(),
        steps_per_epoch(config, data),
        functools.partial(training_batches, config, data),
    )


# Whether this host's memory holds a network, looked at before it is made.


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


def check(config: ModelConfig, shape: tuple[int, int, int, int], outputs: int, *, dense: bool) -> None:
    """Refuse weights that this host's memory cannot hold, before they get values.

    Of networks of ours with a large number among their options: another's function may do more than build.
    What is drawn here must not change the first weights, which Keras seeds from Python's generator.

    Args:
        config: which network, with which options.
        shape: (D, H, W, C) of what it takes.
        outputs: their number, for the whole or for each voxel.
        dense: whether it is for each voxel.

    Raises:
        ModelError: the weights and their gradients need more than there is, or the network cannot be built.
    """
    if config.name not in models.names() or max(_numbers([config.width, *config.options.values()])) <= _LARGE:
        return
    drawn = random.getstate()
    outline = models.outline(config.name, shape, outputs, dense=dense, width=config.width, **config.options)
    random.setstate(drawn)
    # Gradients are as large as the weights.
    needed, there = 2 * 4 * outline.count_params(), psutil.virtual_memory().total
    if needed > there:
        raise ModelError(
            f"{config.name}: its {outline.count_params():,} parameters and their gradients need "
            f"{byte_sizes.as_text(needed)}, and this host has {byte_sizes.as_text(there)}.",
            cure="Take a smaller model.width, or smaller model.options.",
            key="model.width",
        )
