"""One run, start to end, in the order it happens."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainer import atomic, caching, checkpoint, claims, outcome, preparation, record, resuming, transfer
from trainer import lease as leases
from trainer.agreement import agree
from trainer.checkpoint import Cursor
from trainer.config import RunConfig
from trainer.config.augment import active
from trainer.data import leaks
from trainer.errors import RunError
from trainer.lease import Lease
from trainer.loop import Training
from trainer.models import own_code
from trainer.preparation import Data
from trainer.progress import Reporter
from trainer.record import RunFolder
from trainer.rollcall import RollCall
from trainer.serving import Serving
from trainer.stopping import Patience, StopRequest, columns
from trainer.strategies import ring
from trainer.strategies.parameter_server.serving import everyone
from trainer.telemetry import records
from trainer.telemetry.recorder import Recorder
from trainer.telemetry.scalars import tensorboard
from trainer.watchdog import Watchdog
from trainer.world import World, mpi_settings


def train(
    config: RunConfig,
    world: World,
    *,
    resume: bool,
    reporter: Reporter,
    command: list[str],
    serving: Serving | None = None,
) -> dict[str, Any]:
    """Train, evaluate, record.

    Args:
        config: of the run.
        world: all ranks, initialised.
        resume: go on from the newest whole checkpoint, or from the start where there is none.
        reporter: tells people.
        command: the command line, for run.json.
        serving: of the main process of asynchronous training: other processes compute the steps.

    Returns:
        The content of result.json, on every rank.

    Raises:
        Agreed: an error that all ranks know of, `Stopped` among them.
        CingulumError: an error of this rank alone, such as a damaged chunk of a shard.
    """
    folder = RunFolder(config.folder)
    who = f"rank {world.rank} @ {world.host}"
    with (
        Watchdog(config.guards.timeout_s, who, lambda: world.abort(1)) as watchdog,
        StopRequest() as stop,
        contextlib.ExitStack() as leaving,
    ):
        watchdog.beat("preparing", collective=True)
        watchdog.missing = leaving.enter_context(contextlib.closing(RollCall(everyone(world)))).missing
        lease = agree(
            world,
            lambda: _take(folder, config, resume, leaving, reporter, watchdog) if world.is_main else None,
        )
        for line in world.links.separate_servers() if world.links else ():
            reporter.note(line)
        data, model, optimizer = agree(world, lambda: _prepare(config, world, serving))

        watchdog.beat("restoring", collective=True)
        cursor = _restore(folder, config, data, model, optimizer, world, reporter)
        patience = _patience(config, data).resumed(cursor.best, cursor.waited)
        telemetry = Recorder(config.telemetry, world, folder.path, deterministic=config.train.deterministic)
        leaving.enter_context(contextlib.closing(telemetry))
        learner = (serving or preparation).learner(config, data, model, optimizer, world, telemetry.timeline)
        leaving.callback(learner.close)
        train_as = Training if serving is None else serving.training
        training = train_as(
            config, data, learner, world, folder, cursor, patience, reporter, watchdog, stop, telemetry
        )
        if training.is_done and world.any(world.is_main and folder.result.is_file()):
            return outcome.complete(training)

        cached = leaving.enter_context(
            caching.cached(
                config,
                data,
                world,
                reporter=reporter,
                beat=watchdog.beat,
                is_stopping=lambda: stop.requested,
            )
        )
        training.data = data = cached.data
        watchdog.beat("looking for leaks", collective=not world.is_main)
        agree(
            world,
            lambda: _check_leaks(folder, config, data, reporter, watchdog) if world.is_main else None,
        )
        spent = training.spent
        batches: Any = ()
        if serving is None:
            batches = agree(
                world, lambda: preparation.training_batches(config, data, world, cursor.step, spent)
            )

        gpus = world.allgather_object([gpu.name for gpu in tf.config.list_physical_devices("GPU")])
        facts = _facts(config, data, model, world, gpus, command)
        if serving is not None:
            facts |= serving.facts()
        plan = dataclasses.asdict((serving or preparation).plan(config, model, optimizer, world))
        training.start, staging = world.broadcast_object((lease.start, lease.staging) if lease else None)
        training.lease = lease
        training.run_id = agree(
            world,
            lambda: _open_folder(folder, config, plan, cursor, facts, lease.start) if lease else "",
        )
        telemetry.write_under(Path(staging), steps=serving is None)
        if world.is_main:
            training.scalars = tensorboard(folder.tensorboard, training.start)
        with (
            ring.recorded(config.train.ring, world, folder.telemetry, cursor.step),
            # Before and after there is nothing to save: Ctrl-C ends the run at once.
            stop.by_interrupt(answers=world.is_main),
        ):
            training.run(batches)
        return outcome.finish(training, cached.report)


def _take(
    folder: RunFolder,
    config: RunConfig,
    resume: bool,
    leaving: contextlib.ExitStack,
    reporter: Reporter,
    watchdog: Watchdog,
) -> Lease:
    """Take the lease on the run folder, until `leaving` ends; what cannot be trained is refused before."""
    _check_folder(folder, config, resume)
    lease = leases.take(
        folder.path,
        claims.myself(os.environ),
        say=reporter.note,
        beat=watchdog.beat,
        patience_s=min(claims.SILENT_S, config.guards.timeout_s / 2),
    )
    leaving.enter_context(lease)
    leaving.enter_context(atomic.through(lease))
    _check_folder(folder, config, resume, leased=True)  # now that nobody else changes it
    return lease


def describe(
    config: RunConfig, world: World, serving: Serving | None = None, *, resume: bool = False
) -> dict[str, Any]:
    """What `train` would do, without doing it: steps, batches, parameters, splits, memory. Writes nothing.

    What the run would refuse is refused, except for what only reading every volume tells, such as leaks.

    Raises:
        Agreed: what is wrong with the configuration, the data, the run folder or the weights to start from.
    """
    folder = RunFolder(config.folder)
    agree(world, lambda: _check_folder(folder, config, resume) if world.is_main else None)
    data, model, optimizer = agree(world, lambda: _prepare(config, world, serving))
    agree(world, lambda: preparation.training_batches(config, data, world, 0))
    agree(world, lambda: _check_start(folder, config, data, model) if world.is_main else None)
    plan = (serving or preparation).plan(config, model, optimizer, world)
    per_epoch = preparation.steps_per_epoch(config, data)
    memory = preparation.memory_bytes(model, optimizer, plan.micro_batch)
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
        "augmentation": active(config.data.augment.model_dump(mode="json")),
        **dataclasses.asdict(plan),
        "memory_mib_per_rank": {name: round(size / 2**20, 2) for name, size in memory.items()},
    }


def _patches(config: RunConfig, data: Data) -> dict[str, Any]:
    if config.data.patch is None or data.patches is None:
        return {}
    return {
        "patch": list(data.patches.shape),
        "patches_per_epoch": len(preparation.epoch_rows(config, data)),
        "patches_placed": config.data.patch.sampling,
    }


def _check_folder(folder: RunFolder, config: RunConfig, resume: bool, *, leased: bool = False) -> None:
    """Make sure that we neither overwrite a run nor go on with another one's state.

    Args:
        folder: of the run.
        config: as given now.
        resume: whether it may be there.
        leased: whether we hold its lease already, so that nobody else does.
    """
    try:
        is_there = folder.path.exists()
        above = next(path for path in folder.path.absolute().parents if path.exists())
    except OSError as error:  # a name that is too long for the file system
        raise RunError(
            f"{error.filename}: {error.strerror}.", cure="Give other names: name=, runs="
        ) from None
    if not is_there:
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise RunError(
                f"{folder.path}: cannot be made, as {above} is no folder that you may write.",
                cure="Name another folder for the run folders: runs=...",
            )
        return
    if folder.is_new:
        return
    if not resume:
        other = None if leased else claims.holder(folder.path)
        if other is not None:
            raise leases.being_written(str(folder.path), other)
        raise RunError(
            f"{folder.path}: is there already.",
            cure="Add --resume to go on with it, or give the run another name: name=...",
        )
    record.check_resumable(record.load_config(RunFolder.open(folder.path)), config)
    resuming.check_not_lost(folder, config)


def _check_start(folder: RunFolder, config: RunConfig, data: Data, model: keras.Model) -> None:
    """Make sure that there are the data and the weights that the run would go on or start with."""
    if folder.run.is_file():
        _check_data(folder, data)
    source = config.train.transfer.start_from
    if source is None or checkpoint.find(folder.checkpoints).path is not None:
        return
    transfer.start(model, source)
    if config.data.leaks != "ignore":
        transfer.check_unseen(source, data.shards, data.split, stop=config.data.leaks == "stop")


def _prepare(
    config: RunConfig, world: World, serving: Serving | None
) -> tuple[Data, keras.Model, keras.Optimizer]:
    preparation.set_numerics(config)
    data = preparation.open_data(config)
    _patience(config, data)
    model, optimizer = preparation.build_network(config, data, world)
    (serving or preparation).plan(config, model, optimizer, world)
    ring.check(config.train.ring, world)
    return data, model, optimizer


def _check_leaks(
    folder: RunFolder, config: RunConfig, data: Data, reporter: Reporter, watchdog: Watchdog
) -> None:
    """Look for what the splits share, and for held-out subjects that the weights to start from have seen.

    Raises:
        LeakError: there is something, and `data.leaks` is 'stop'.
    """
    if config.data.leaks == "ignore" or folder.run.is_file():  # a run that is resumed was checked before
        return
    stop = config.data.leaks == "stop"

    def told(done: int, total: int) -> None:
        watchdog.beat(f"looking for leaks, volume {done} of {total}")

    found = leaks.check(data.shards, data.split, stop=stop, progress=told)
    if found:
        reporter.note(f"warning: splits share what they must not:\n{leaks.listed(found)}")
    source = config.train.transfer.start_from
    if source is not None:
        note = transfer.check_unseen(source, data.shards, data.split, stop=stop)
        if note:
            reporter.note(note)


def _patience(config: RunConfig, data: Data) -> Patience:
    metrics = columns(data.task.score, data.task.monitored)
    return Patience.from_config(
        config.train.early_stopping, metrics, has_validation=bool(data.split.validation)
    )


def _restore(
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
            _check_data(folder, data)
        checkpoint.discard_partial(folder.checkpoints)
        found = checkpoint.find(folder.checkpoints, record.owner(folder))
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


def _check_data(folder: RunFolder, data: Data) -> None:
    stored = record.read_json(folder.run)
    if stored["shards"]["content_hash"] != data.shards.content_hash:
        raise RunError(
            f"{folder.path}: was trained on other data than {data.shards.path} holds now.",
            cure="Resume with the shard set that run.json names, or give the new run another name.",
        )


def _facts(
    config: RunConfig, data: Data, model: keras.Model, world: World, gpus: list[list[str]], command: list[str]
) -> dict[str, Any]:
    """What run.json says about this run."""
    return {
        **record.environment(),
        "world_size": world.size,
        "hosts": list(world.hosts),
        "mpi": mpi_settings() if world.size > 1 else {},
        "servers": [world.links.hosts[process] for process in world.links.servers] if world.links else [],
        "gpus": gpus,
        "shards": {
            "path": str(config.data.shards),
            "content_hash": data.shards.content_hash,
            "volumes": len(data.shards),
            "label_name": data.shards.label_name,
        },
        "split": {name: list(data.rows(name)) for name in ("train", "validation", "test")},
        "task": data.task.to_json(),
        "code": own_code.recorded(config.model.name),
        "classes": list(data.task.classes),
        "covariates": data.covariates.to_json() if data.covariates else None,
        "volume": list(data.shards.shape),
        "patch": list(data.patches.shape) if data.patches else None,
        "preprocessing": dict(data.shards.preprocessing),
        "parameters": int(model.count_params()),
        "command": command,
        "cache": None,
    }


def _open_folder(
    folder: RunFolder,
    config: RunConfig,
    plan: dict[str, Any],
    cursor: Cursor,
    facts: dict[str, Any],
    start: int,
) -> str:
    """Write what is known before the first step; on resume, drop what is newer than the checkpoint.

    Returns:
        The run's identity: the one that it has, else a new one.
    """
    folder.discard_partial()
    # First: with a configuration it is a run folder, and can be resumed from here on.
    folder.write_config(config)
    before = record.read_json(folder.run) if folder.run.is_file() else {}
    again = {"step": cursor.step, "time": record.now(), "start": start}
    resumed = [*before.get("resumed_from", []), again] if before else []
    started = before.get("started", record.now())
    run_id = str(before.get("id") or _id_of_checkpoint(folder, cursor) or record.new_id())
    times = {"started": started, "finished": None, "resumed_from": resumed}
    record.write_json(folder.run, {"id": run_id, **facts, **times})
    record.write_json(folder.plan, plan)
    folder.write_rows(cursor.rows)
    records.cut(folder.path, cursor.step)
    if folder.result.exists():
        atomic.remove(folder.result)
    for made in (folder.telemetry, folder.tensorboard):
        atomic.make_folder(made)
    return run_id


def _id_of_checkpoint(folder: RunFolder, cursor: Cursor) -> str:
    """The identity that the run had when it wrote the checkpoint it goes on from, where run.json is lost."""
    path = checkpoint.path_of(folder.checkpoints, cursor.step)
    return checkpoint.run_of(path) if not folder.run.is_file() and path.is_dir() else ""
