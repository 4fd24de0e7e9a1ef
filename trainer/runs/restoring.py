"""The state that a run begins with: its newest whole checkpoint, or weights of another run, or none."""

from __future__ import annotations

import dataclasses

import keras

from trainer import transfer
from trainer.config import RunConfig
from trainer.errors import RunError
from trainer.progress import Reporter
from trainer.ranks.agreement import agree
from trainer.ranks.world import World
from trainer.run_folder import checkpoint
from trainer.run_folder.checkpoint import Cursor
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord, owner
from trainer.runs import preparation
from trainer.runs.preparation import Data


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
    """Make sure that the shard set holds what the run was trained on.

    Raises:
        RunError: it holds something else.
    """
    if RunRecord.read(folder.run).shards.content_hash != data.shards.content_hash:
        raise RunError(
            f"{folder.path}: was trained on other data than {data.shards.path} holds now.",
            cure="Resume with the shard set that run.json names, or give the new run another name.",
            path=folder.path,
        )
