"""The state of a run: restored from its newest whole checkpoint or another run's weights, saved, and the
weights that are kept of it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from trainer import transfer
from trainer.config import RunConfig
from trainer.config.training import FALLS
from trainer.errors import NO_SPACE, CingulumError, RunError, no_space
from trainer.progress import Reporter
from trainer.ranks.agreement import agree
from trainer.ranks.stopping import Patience
from trainer.ranks.world import World
from trainer.run_folder import checkpoint, record, resuming
from trainer.run_folder.checkpoint import Cursor
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord, identity
from trainer.runs import preparation
from trainer.runs.preparation import Data
from trainer.strategies import schedule
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
    patience: Patience,
) -> Cursor:
    """Put the newest whole checkpoint into rank 0's network and optimizer; the cursor goes to all ranks.

    A finished run is left as it is where its last checkpoint is lost: the cursor is that of its result.
    """
    steps_per_epoch = preparation.steps_per_epoch(config, data)

    def begin() -> Cursor:
        if config.train.transfer.start_from is not None:
            reporter.note(transfer.start(model, config.train.transfer.start_from))
        return Cursor(step=0, steps_per_epoch=steps_per_epoch)

    def read() -> Cursor:
        if folder.is_new:
            return begin()
        if folder.run.is_file():
            check_data(folder, data)
        checkpoint.discard_partial(folder.checkpoints)
        newest = checkpoint.find(folder.checkpoints, identity(folder))
        for path, reason in newest.skipped:
            reporter.note(f"skipped the checkpoint {path}: {reason}.")
        end = finished_cursor(folder, config, patience, steps_per_epoch)
        if end is not None and (newest.path is None or checkpoint.read_cursor(newest.path).step < end.step):
            return with_length(end, folder)
        if newest.path is None and folder.result.is_file():
            raise resuming.checkpoints_lost(folder)
        if newest.path is None:
            reporter.note(f"{folder.path}: there is no checkpoint to resume from; starting at step 0.")
            return begin()
        cursor = checkpoint.restore(newest.path, model, optimizer)
        reporter.note(f"resumed from {newest.path}")
        return cursor

    cursor = agree(world, read if world.is_main else lambda: None)
    for variable in checkpoint.random_states(model):
        variable.assign(world.broadcast(variable.numpy()))
    fields = world.broadcast_object(dataclasses.asdict(cursor) if cursor else None)
    cursor = checkpoint.cursor_from(fields)
    cursor, told = lengthened(cursor, config, optimizer)
    if told:
        reporter.note(told)
    return cursor


def finished_cursor(
    folder: RunFolder, config: RunConfig, patience: Patience, steps_per_epoch: int
) -> Cursor | None:
    """Return where a finished run stands by its result and its epochs, without its checkpoints.

    Args:
        folder: of the run.
        config: as given now.
        patience: the rule by which the run ends early, at its start.
        steps_per_epoch: updates per epoch.

    Returns:
        None where there is no result, a file is damaged, or these epochs are not the whole run.
    """
    try:
        result = record.read_json(folder.result)
        lines = folder.metrics.read_text(encoding="utf-8").splitlines()
        rows = tuple(json.loads(line) for line in lines)
        step, done = int(result["steps"]), int(result["epochs"])
        patience, best_step = patience.resumed(None, 0), None
        for row in rows:
            patience = patience.after({patience.metric: None, **row})
            if patience.waited == 0:
                best_step = row["epoch"] * steps_per_epoch
    except (RunError, OSError, ValueError, KeyError, TypeError):
        return None
    if (
        done != len(rows)
        or step != done * steps_per_epoch
        or not (done >= config.train.epochs or patience.exhausted)
    ):
        return None
    return Cursor(
        step, steps_per_epoch, rows, best=patience.best, best_step=best_step, waited=patience.waited
    )


@dataclass(frozen=True)
class KeptWeights:
    """The checkpoint whose weights a run keeps as model.keras.

    Attributes:
        path: of the checkpoint.
        row: of metrics.jsonl, of its epoch; None where no epoch could be rated.
        why: one sentence, where it is not the best epoch's.
    """

    path: Path
    row: dict[str, Any] | None
    why: str | None = None

    def told(self, cursor: Cursor) -> dict[str, Any]:
        """Return the keys of result.json that say which weights are in model.keras."""
        step = checkpoint.read_cursor(self.path).step
        about = {"epoch": step // cursor.steps_per_epoch, "step": step}
        return {"best": self.row, "kept": {**about, **({"why": self.why} if self.why else {})}}


def best_whole(folder: RunFolder, cursor: Cursor, patience: Patience) -> KeptWeights | None:
    """Choose the best epoch's checkpoint or, where it is lost or damaged, the best of those that are whole.

    Args:
        folder: of the run.
        cursor: at the end of training.
        patience: the rule by which epochs are rated.

    Returns:
        None where no epoch's checkpoint is whole.
    """
    own = identity(folder)

    def at(step: int) -> Path:
        return checkpoint.path_of(folder.checkpoints, step)

    unrated = f"No epoch has a finite {patience.metric}"
    last = at(cursor.step if cursor.best_step is None else cursor.best_step)
    problem = checkpoint.check(last, own)
    if problem is None:
        why = None if cursor.best else f"{unrated}: the weights are those of the last one."
        return KeptWeights(last, cursor.best, why)
    # What the manifest of a checkpoint says holds for each of them: they are as good as they were.
    ends = {row["epoch"] * cursor.steps_per_epoch: row for row in cursor.rows}
    whole = [step for step in sorted(ends) if checkpoint.check(at(step), own) is None]
    if not whole:
        return None
    rated = dataclasses.replace(patience, best=None, waited=0)
    for step in whole:
        rated = rated.after({rated.metric: None, **ends[step]})
    row = ends[whole[-1]] if rated.best is None else rated.best
    if cursor.best is None:
        lost = f"{unrated}, and the last one's checkpoint"
    else:
        score = _rated(patience.metric, cursor.best)
        lost = f"Epoch {cursor.best['epoch']} has the best {score}, but its checkpoint"
    ours = "the last" if rated.best is None else "the best"
    score = "" if rated.best is None else f" ({_rated(patience.metric, row)})"
    why = (
        f"{lost} is not whole ({problem}): the weights are those of epoch {row['epoch']}{score}, {ours} "
        "whose checkpoint is whole."
    )
    return KeptWeights(at(row["epoch"] * cursor.steps_per_epoch), row if rated.best else None, why)


def _rated(metric: str, row: dict[str, Any]) -> str:
    """Such as 'val_loss, 0.4213'."""
    value = row.get(metric)
    return metric if value is None else f"{metric}, {value:.4g}"


def weights_of(path: Path) -> Path:
    """Return the file of a checkpoint that a run keeps: averaged weights, where there are such."""
    averaged = path / "averaged.keras"
    return averaged if averaged.is_file() else path / "model.keras"


def with_length(cursor: Cursor, folder: RunFolder) -> Cursor:
    """Return a cursor, made of a result, that knows its run's epochs and cycles, too.

    Raises:
        RunError: config.yaml or run.json is damaged.
    """
    recorded = RunRecord.read(folder.run).cycles if folder.run.is_file() else []
    # A cycle that a start added, which was killed before it saved, has not begun.
    begun = [cycle for cycle in recorded if cycle[0] * cursor.steps_per_epoch < max(1, cursor.step)]
    cycles = begun or [(0, record.load_config(folder).train.epochs)]
    return dataclasses.replace(cursor, epochs=sum(cycles[-1]), cycles=tuple(cycles))


def lengthened(cursor: Cursor, config: RunConfig, optimizer: keras.Optimizer) -> tuple[Cursor, str | None]:
    """Return the cursor of a run of `train.epochs`, and what to tell of its rate where the run has grown.

    The optimizer's schedule follows the cursor's cycles. No collective: every rank comes to the same.
    """
    step, now = cursor.step, config.train.epochs
    before = cursor.epochs if step else 0
    cycles = schedule.extended(cursor.cycles, before, now, config.train.schedule.extend)
    longer = dataclasses.replace(cursor, epochs=now, cycles=cycles)
    rule = schedule.schedule_of(optimizer)
    if rule is not None:
        rule.cycles = list(cycles)
    if rule is None or not 0 < before < now:
        return longer, None
    is_one = now == before + 1
    added = f"epoch {now}" if is_one else f"epochs {before + 1} to {now}"
    if config.train.schedule.extend == "restart":
        what = f"{added} {'is' if is_one else 'are'} a new cycle of the schedule, up to {rule.peak:.3g}"
    elif FALLS[config.train.schedule.name].ends:
        last = rule.at(now * cursor.steps_per_epoch - 1)
        what = f"{added} {'has' if is_one else 'have'} the last rate of the schedule, {last:.3g}"
    else:
        what = f"{added} {'goes' if is_one else 'go'} on by the schedule, which does not depend on the length"
    return longer, (
        f"train.epochs was {before} and is {now}: {what} (train.schedule.extend="
        f"{config.train.schedule.extend}); the rate was {rule.at(step - 1):.3g} in update {step} and is "
        f"{rule.at(step):.3g} in update {step + 1}."
    )


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
