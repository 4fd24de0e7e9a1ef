"""Start a run in its folder: check it, take its lease, write what is known before the first step."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import Any

import keras

from trainer import atomic
from trainer.config import RunConfig
from trainer.errors import RunError
from trainer.leases import claims, lease_taking
from trainer.leases.lease import Lease
from trainer.models import own_code
from trainer.progress import Reporter
from trainer.ranks.agreement import agree
from trainer.ranks.horovod_world import mpi_settings
from trainer.ranks.watchdog import Watchdog
from trainer.ranks.world import World
from trainer.run_folder import checkpoint, machine, record, resuming
from trainer.run_folder.checkpoint import Cursor
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import PassesOfRun, Resumption, RunRecord, UpdateOfRun
from trainer.runs.preparation import Data
from trainer.runs.session import Session
from trainer.strategies import compiled_passes, compiled_update
from trainer.strategies.base import Strategy
from trainer.telemetry import json_lines, prediction


def take_lease(
    folder: RunFolder,
    config: RunConfig,
    resume: bool,
    holding: contextlib.ExitStack,
    reporter: Reporter,
    watchdog: Watchdog,
    after: Lease | None,
) -> Lease:
    """Take the lease on the run folder, until `holding` ends; what cannot be trained is refused before.

    Args:
        folder: of the run.
        config: as given now.
        resume: whether it may be there.
        holding: ends with the process's last start.
        reporter: tells people.
        watchdog: is told what is waited for.
        after: the lease of this process's start before.
    """
    check_folder(folder, config, resume)
    lease = lease_taking.take(
        folder.path,
        claims.myself(os.environ),
        after=after,
        say=reporter.note,
        beat=watchdog.beat,
        patience_s=claims.patience(config.guards.timeout_s / 2),
    )
    holding.enter_context(lease)
    check_folder(folder, config, resume, leased=True)  # now that nobody else changes it
    return lease


def check_folder(folder: RunFolder, config: RunConfig, resume: bool, *, leased: bool = False) -> None:
    """Refuse to overwrite a run, or to resume with another run's state.

    Args:
        folder: of the run.
        config: as given now.
        resume: whether it may be there.
        leased: whether we hold its lease already, so that no other process does.
    """
    try:
        is_there = folder.path.exists()
        above = next(path for path in folder.path.absolute().parents if path.exists())
    except OSError as error:  # a name that is too long for the file system
        raise RunError(
            f"{error.filename}: {error.strerror}.", cure="Give other names: name=, runs=", path=error.filename
        ) from None
    if not is_there:
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise RunError(
                f"{folder.path}: cannot be made: {above} is not a folder that you may write.",
                cure="Name another folder for the run folders: runs=...",
                path=folder.path,
            )
        return
    if folder.is_new:
        return
    if not resume:
        other = None if leased else claims.holder(folder.path)
        if other is not None:
            raise lease_taking.being_written(str(folder.path), other)
        raise RunError(
            f"{folder.path}: exists already.",
            cure="Add --resume to continue it, or give the run another name: name=...",
            path=folder.path,
        )
    resuming.check_resumable(record.load_config(RunFolder.open(folder.path)), config)
    resuming.check_not_lost(folder, config)


def recorded(
    config: RunConfig,
    strategy: Strategy,
    data: Data,
    model: keras.Model,
    world: World,
    devices: list[dict[str, Any]],
    command: list[str],
) -> RunRecord:
    """Return the run record, without identity and times; `devices` of every rank, as `machine.devices`.

    `strategy` trains, perhaps chosen by `train.strategy=auto`.
    """
    return RunRecord.model_validate(
        {
            **machine.described(),
            "world_size": world.size,
            "hosts": list(world.hosts),
            "mpi": mpi_settings() if world.size > 1 else {},
            "gpus": [own["gpus"] for own in devices],
            "processors": [own["processor"] for own in devices],
            "shards": {
                "path": str(config.data.shards),
                "content_hash": data.shards.content_hash,
                "volumes": len(data.shards),
                "label_name": data.shards.label_name,
                "source": data.shards.source,
            },
            "split": {name: list(data.rows(name)) for name in ("train", "validation", "test")},
            "task": data.task.to_json(),
            "code": own_code.recorded(config.model.name),
            "strategy_code": own_code.recorded(strategy.name),
            "classes": list(data.task.classes),
            "covariates": data.covariates.to_json() if data.covariates else None,
            "volume": list(data.shards.shape),
            "patch": list(data.patches.shape) if data.patches else None,
            "preprocessing": dict(data.shards.preprocessing),
            "parameters": int(model.count_params()),
            "float32_layers": float32_layers(model, config.train.precision),
            "command": command,
        }
    )


def float32_layers(model: keras.Model, precision: str) -> list[str]:
    """Return the layers that compute in float32 all the same, where training is in mixed precision."""
    if precision == "float32":
        return []
    layers = model._flatten_layers(include_self=False)
    return [layer.name for layer in layers if layer.compute_dtype == "float32"]


def choose_compiled(training: Session) -> dict[str, UpdateOfRun | PassesOfRun | None]:
    """Decide what of a step XLA compiles; a run that goes on computes as it has; a collective.

    Returns:
        What was chosen, as run.json has it; None for what other processes compute.

    Raises:
        Agreed: something is to be compiled, and cannot be.
    """
    config, world, learner = training.config.train, training.world, training.learner

    def has_computed() -> tuple[bool | None, str | None]:
        if not training.cursor.step or not training.folder.run.is_file():
            return None, None
        ran = RunRecord.read(training.folder.run)
        return ran.update is not None and ran.update.compiled, ran.passes.way if ran.passes else "none"

    before = agree(world, lambda: has_computed() if world.is_main else (None, None))
    was_compiled, way = world.broadcast_object(before)
    by_time, updates = not config.deterministic, training.last_step - training.cursor.step
    update, passes = None, None
    if updated := learner.updated():
        update = compiled_update.choose(
            config.compile, updated, world, before=was_compiled, by_time=by_time, updates=updates
        )
        if update.plain_ms is not None:
            training.reporter.note(f"{update}.")
    if computed := learner.passes():
        samples = training.plan.micro_batch
        passes = compiled_passes.choose(
            config.compile, computed, samples, world, before=way, by_time=by_time, updates=updates
        )
        if passes.ms:
            training.reporter.note(f"{passes}.")
    return {"update": update, "passes": passes}


def open_folder(
    folder: RunFolder, config: RunConfig, plan: dict[str, Any], cursor: Cursor, ran: RunRecord, start: int
) -> str:
    """Write what is known before the first step; on resume, drop what is newer than the checkpoint.

    Returns:
        The run's identity: the one that it has, else a new one.
    """
    folder.discard_partial()
    before = RunRecord.read(folder.run) if folder.run.is_file() else None
    # First: with a configuration it is a run folder, and can be resumed from here on.
    folder.write_config(config)
    again = Resumption(step=cursor.step, time=record.now(), start=start)
    run_id = (before and before.id) or _id_of_checkpoint(folder, cursor) or secrets.token_hex(8)
    facts = {
        "id": run_id,
        "started": (before and before.started) or record.now(),
        "resumed_from": [*before.resumed_from, again] if before else [],
        "cycles": list(cursor.cycles),
    }
    ran.model_copy(update=facts).write(folder.run)
    record.write_json(folder.plan, plan)
    folder.write_rows(cursor.rows)
    json_lines.cut(folder.path, cursor.step)
    # This start predicts its own steps: another number of ranks may go on with the run.
    for path in (folder.result, folder.path / prediction.NAME):
        if path.exists():
            atomic.remove(path)
    for made in (folder.telemetry, folder.tensorboard):
        atomic.make_folder(made)
    return run_id


def _id_of_checkpoint(folder: RunFolder, cursor: Cursor) -> str:
    """The identity that the run had when it wrote the checkpoint it goes on from, where run.json is lost."""
    path = checkpoint.path_of(folder.checkpoints, cursor.step)
    return checkpoint.run_of(path) if not folder.run.is_file() and path.is_dir() else ""
