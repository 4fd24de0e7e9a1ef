"""The state of a run: restored from its newest whole checkpoint or another run's weights, and saved."""

from __future__ import annotations

import dataclasses

import keras

from trainer import transfer
from trainer.config import RunConfig
from trainer.errors import NO_SPACE, CingulumError, RunError, no_space
from trainer.progress import Reporter
from trainer.ranks.agreement import agree
from trainer.ranks.world import World
from trainer.run_folder import checkpoint, record
from trainer.run_folder.checkpoint import Cursor
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord, owner
from trainer.runs import preparation
from trainer.runs.preparation import Data
from trainer.strategies.data import averaged_weights
from trainer.strategies.learner import Learner


def restore(
    folder: RunFolder,
    config: RunConfig,
    data: Data,
    model: keras.Model,
    optimizer: keras.Optimizer,
    world: World,
    reporter: Reporter,
) -> Cursor:
    """Put the newest whole checkpoint into rank 0's network and optimizer; the cursor goes to all ranks."""

    def begin() -> Cursor:
        if config.train.transfer.start_from is not None:
            reporter.note(transfer.start(model, config.train.transfer.start_from))
        return Cursor(step=0, steps_per_epoch=preparation.steps_per_epoch(config, data))

    def read() -> Cursor:
        if folder.is_new:
            return begin()
        if folder.run.is_file():
            check_data(folder, data)
        checkpoint.discard_partial(folder.checkpoints)
        found = checkpoint.find(folder.checkpoints, owner(folder))
        for path, reason in found.skipped:
            reporter.note(f"skipped the checkpoint {path}: {reason}.")
        if found.path is None:
            reporter.note(f"{folder.path}: there is no checkpoint to resume from; starting at step 0.")
            return begin()
        cursor = checkpoint.restore(found.path, model, optimizer)
        reporter.note(f"resumed from {found.path}")
        if found.doubt is not None:
            reporter.note(f"warning: {found.path}: {found.doubt}.")
        return cursor

    cursor = agree(world, read if world.is_main else lambda: None)
    for variable in checkpoint.random_states(model):
        variable.assign(world.broadcast(variable.numpy()))
    fields = world.broadcast_object(dataclasses.asdict(cursor) if cursor else None)
    return checkpoint.cursor_from(fields)


def check_data(folder: RunFolder, data: Data) -> None:
    """Check that the shard set holds the data that the run was trained on.

    Raises:
        RunError: it holds other data.
    """
    if RunRecord.read(folder.run).shards.content_hash != data.shards.content_hash:
        raise RunError(
            f"{folder.path}: was trained on other data than those in {data.shards.path}.",
            cure="Resume with the shard set that run.json names, or give the new run another name.",
            path=folder.path,
        )


def save(
    folder: RunFolder, config: RunConfig, cursor: Cursor, learner: Learner, *, run: str, start: int
) -> None:
    """Write a checkpoint and drop old ones; on rank 0.

    Args:
        folder: of the run.
        config: of the run.
        cursor: where training stands.
        learner: network and optimizer as all ranks have them.
        run: the run's identity.
        start: number of the start that writes.

    Raises:
        CingulumError: it could not be written; the older ones are untouched.
    """
    model, optimizer = learner.model, learner.optimizer
    averages = config.train.optimizer.ema is not None
    try:
        checkpoint.save(
            folder.checkpoints,
            cursor,
            model,
            optimizer,
            averaged=averaged_weights(model, optimizer) if averages else None,
            config_sha256=record.digest(config),
            run=run,
            start=start,
        )
        checkpoint.prune(folder.checkpoints, config.checkpoint.keep, cursor.best_step, step=cursor.step)
    except OSError as error:
        # Where a file could not grow, no name comes with the error.
        error.filename = error.filename or str(folder.checkpoints)
        least = checkpoint.least_bytes(folder.checkpoints, model, optimizer)
        why = no_space(error, least) if error.errno in NO_SPACE else error.strerror or error
        raise CingulumError(
            f"{folder.checkpoints}: the checkpoint of step {cursor.step} could not be written "
            f"({why}); older ones are untouched.",
            cure="Free space (checkpoint.keep sets how many are kept), then run again with --resume.",
            path=folder.checkpoints,
        ) from None
