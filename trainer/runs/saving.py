"""Saving a run: a checkpoint of the step where training stands, and those that need not be kept any more."""

from __future__ import annotations

from trainer.config import RunConfig
from trainer.errors import NO_SPACE, CingulumError, no_space
from trainer.run_folder import checkpoint, record
from trainer.run_folder.checkpoint import Cursor
from trainer.run_folder.record import RunFolder
from trainer.strategies.data import averaged_weights
from trainer.strategies.learner import Learner


def save(
    folder: RunFolder,
    config: RunConfig,
    cursor: Cursor,
    learner: Learner,
    *,
    run: str,
    start: int,
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
            cure="Make room (checkpoint.keep sets how many are kept), then run again with --resume.",
            path=folder.checkpoints,
        ) from None
