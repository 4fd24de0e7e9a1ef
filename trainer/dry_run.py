"""What a training would do, without doing it."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer import run, transfer
from trainer.config import RunConfig
from trainer.config.augment import active
from trainer.progress import Counting, Reporter
from trainer.ranks.agreement import agree
from trainer.ranks.watchdog import no_beat
from trainer.ranks.world import World
from trainer.run_folder import checkpoint
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import identity
from trainer.runs import preparation, restoring, starting
from trainer.runs.preparation import Data
from trainer.strategies import registry, schedule
from trainer.strategies.base import Plan, Share, Strategy

# What ranks need, by names for people: attributes of `Memory`.
_PARTS = {"weights": "variables", "optimizer": "slots", "activations": "kept", "most": "total"}


def describe(
    config: RunConfig, world: World, strategy: Strategy | None = None, *, resume: bool = False
) -> dict[str, Any]:
    """Return steps, batches, parameters, splits and memory of a run; nothing is written.

    What the run would refuse is refused: leaks, too, for which every volume is read.

    Raises:
        Agreed: what is wrong with the configuration, the data, the run folder or the weights to start from.
    """
    folder = RunFolder(config.folder)

    def in_the_way() -> bool:
        with contextlib.suppress(OSError):  # such as a name that is too long: `check_folder` says so
            return world.is_main and not resume and folder.path.is_dir() and not folder.is_new
        return False

    def check_folder() -> None:
        if world.is_main:
            starting.check_folder(folder, config, resume)

    if not world.broadcast_object(agree(world, in_the_way)):
        agree(world, check_folder)
        return _described(config, world, strategy, folder)
    # That a folder is in the way must not hide what else is wrong; nothing of that other run is read.
    described = _described(config, world, strategy, RunFolder(config.folder / "not-there"))
    agree(world, check_folder)
    return described


def _described(
    config: RunConfig, world: World, strategy: Strategy | None, folder: RunFolder
) -> dict[str, Any]:
    strategy = strategy or registry.of(config)
    strategy, watch = run.settle(config, world, strategy, folder, reporter=Reporter(), beat=no_beat)
    data, model, optimizer, plan = run.prepare(config, world, strategy, folder)
    share = plan.share(world.rank) or Share(0, 1)
    agree(world, lambda: preparation.training_batches(config, data, share, 0))
    agree(world, lambda: _check_start(folder, config, data, model) if world.is_main else None)
    agree(world, lambda: _look_for_leaks(folder, config, data) if world.is_main else None)
    per_epoch = preparation.steps_per_epoch(config, data)
    memory = _of_ranks(plan) or _memory_bytes(model, optimizer, plan.micro_batch)
    return {
        "name": config.name,
        "folder": str(config.folder),
        "network": config.model.name,
        "volume": list(data.shards.shape),
        **_patches(config, data),
        "task": data.task.name,
        "classes": list(data.task.classes),
        "split": {name: len(data.rows(name)) for name in ("train", "validation", "test")},
        "epochs": config.train.epochs,
        "steps_per_epoch": per_epoch,
        "steps": per_epoch * config.train.epochs,
        "trains": config.trained_loss,
        **_rates(folder, config, optimizer, world),
        "augmentation": active(config.data.augment.model_dump(mode="json")),
        **({"chosen": watch.choice.told()} if watch else {}),
        **plan.tree(),
        "memory_mib_per_rank": {name: _mib(size) for name, size in memory.items()},
    }


def _rates(folder: RunFolder, config: RunConfig, optimizer: keras.Optimizer, world: World) -> dict[str, Any]:
    """Return where a run would go on, and its rate before and after; a collective."""

    def read() -> dict[str, Any] | None:
        newest = checkpoint.find(folder.checkpoints, identity(folder)).path
        if newest is None:
            return None
        return dataclasses.asdict(restoring.with_length(checkpoint.read_cursor(newest), folder))

    fields = world.broadcast_object(agree(world, read if world.is_main else lambda: None))
    rule = schedule.schedule_of(optimizer)
    if fields is None or rule is None or not fields["step"]:
        return {}
    cursor, lengthening = restoring.lengthened(checkpoint.cursor_from(fields), config, optimizer)
    return {
        "resumes_after_step": cursor.step,
        "rate_before": rule.at(cursor.step - 1),
        "rate_after": rule.at(cursor.step),
        **({"lengthened": lengthening} if lengthening else {}),
    }


def _look_for_leaks(folder: RunFolder, config: RunConfig, data: Data) -> None:
    if folder.run.is_file():  # a run that is resumed was checked before
        return
    with Counting("looking for leaks", "volumes") as counting:
        run.check_leaks(config, data, note=counting.note, progress=counting.show)


def _patches(config: RunConfig, data: Data) -> dict[str, Any]:
    if config.data.patch is None or data.patches is None:
        return {}
    return {
        "patch": list(data.patches.shape),
        "patches_per_epoch": len(preparation.epoch_rows(config, data)),
        "patches_placed": config.data.patch.sampling,
    }


def _check_start(folder: RunFolder, config: RunConfig, data: Data, model: keras.Model) -> None:
    """Make sure that there are the data and the weights that the run would go on or start with."""
    if folder.run.is_file():
        restoring.check_data(folder, data)
    source = config.train.transfer.start_from
    if source is None or checkpoint.find(folder.checkpoints).path is not None:
        return
    transfer.start(model, source)


def _of_ranks(plan: Plan) -> dict[str, list[int]]:
    """What each rank needs, where the strategy says it; `most`: all of it, where it is most."""
    ranks = plan.memory() or ()
    return {name: [getattr(rank, attribute) for rank in ranks] for name, attribute in _PARTS.items() if ranks}


def _mib(size: int | list[int]) -> Any:
    return [_mib(one) for one in size] if isinstance(size, list) else round(size / 2**20, 2)


def _memory_bytes(model: keras.Model, optimizer: keras.Optimizer, micro_batch: int) -> dict[str, int]:
    """What training needs on each rank, roughly: outputs of all layers are kept for the backward pass."""
    weights = sum(_bytes(v) for v in model.variables)
    outputs = sum(_output_bytes(layer) for layer in model.layers)
    return {
        "weights": weights,
        "gradients": sum(_bytes(v) for v in model.trainable_variables),
        "optimizer": sum(_bytes(v) for v in optimizer.variables),
        "activations": outputs * micro_batch,
    }


def _bytes(variable: Any) -> int:
    return int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size


def _output_bytes(layer: keras.layers.Layer) -> int:
    tensors = tf.nest.flatten(layer.output)
    return sum(int(np.prod(t.shape[1:])) * tf.as_dtype(t.dtype).size for t in tensors)
