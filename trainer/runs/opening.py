"""Opening a run folder: what is written before the first step."""

from __future__ import annotations

import secrets
from typing import Any

import keras

from trainer import atomic
from trainer.config import RunConfig
from trainer.models import own_code
from trainer.ranks.horovod_world import mpi_settings
from trainer.ranks.world import World
from trainer.run_folder import checkpoint, machine, record
from trainer.run_folder.checkpoint import Cursor
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import Resumption, RunRecord
from trainer.runs.preparation import Data
from trainer.telemetry import json_lines, prediction


def recorded(
    config: RunConfig, data: Data, model: keras.Model, world: World, gpus: list[list[str]], command: list[str]
) -> RunRecord:
    """What run.json says about this run, but for its identity and times."""
    return RunRecord.model_validate(
        {
            **machine.described(),
            "world_size": world.size,
            "hosts": list(world.hosts),
            "mpi": mpi_settings() if world.size > 1 else {},
            "gpus": gpus,
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
            "classes": list(data.task.classes),
            "covariates": data.covariates.to_json() if data.covariates else None,
            "volume": list(data.shards.shape),
            "patch": list(data.patches.shape) if data.patches else None,
            "preprocessing": dict(data.shards.preprocessing),
            "parameters": int(model.count_params()),
            "command": command,
        }
    )


def open_folder(
    folder: RunFolder, config: RunConfig, plan: dict[str, Any], cursor: Cursor, ran: RunRecord, start: int
) -> str:
    """Write what is known before the first step; on resume, drop what is newer than the checkpoint.

    Returns:
        The run's identity: the one that it has, else a new one.
    """
    folder.discard_partial()
    # First: with a configuration it is a run folder, and can be resumed from here on.
    folder.write_config(config)
    before = RunRecord.read(folder.run) if folder.run.is_file() else None
    again = Resumption(step=cursor.step, time=record.now(), start=start)
    run_id = (before and before.id) or _id_of_checkpoint(folder, cursor) or secrets.token_hex(8)
    known = {
        "id": run_id,
        "started": (before and before.started) or record.now(),
        "resumed_from": [*before.resumed_from, again] if before else [],
    }
    ran.model_copy(update=known).write(folder.run)
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
