"""A finished run: its data and network opened as they were, and evaluated on a split."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from trainer import tasks
from trainer.config import RunConfig
from trainer.data.shards.shards import ShardSet
from trainer.data.splits.splits import Split
from trainer.errors import RunError
from trainer.inference.saved_model import load_model
from trainer.ranks.agreement import agree
from trainer.ranks.world import World
from trainer.run_folder import record, resuming
from trainer.run_folder.record import RunFolder
from trainer.run_folder.run_record import RunRecord
from trainer.runs import caching, preparation, split_predictions
from trainer.runs.preparation import Data
from trainer.strategies.base import Share
from trainer.strategies.data import DistributedModel
from trainer.strategies.learner import Setup


def evaluate_run(path: Path, split: str, world: World, code: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the metrics of a finished run on one split, on every rank; writes evaluation/<split>.csv and
    .json.

    `code`: as for `load_model`.

    Raises:
        Agreed: the run is not finished, its data are missing or have changed, or the split is empty.
    """
    folder, config, data, model = agree(world, lambda: open_run(path, split, code))
    setup = Setup(model, keras.optimizers.SGD(), world, data.task.loss())  # it is never trained
    learner = DistributedModel(setup)
    with caching.found(config, data, world) as near:
        found = split_predictions.collect(config, near, learner, Share(world.rank, world.size), split)
    write = functools.partial(split_predictions.write, folder, split, found, data)
    written = agree(world, lambda: write() if world.is_main else None)
    return dict(world.broadcast_object(written))


def open_run(
    path: Path, split: str, code: Sequence[Path] = ()
) -> tuple[RunFolder, RunConfig, Data, keras.Model]:
    """Open a finished run: its folder, its data as they were divided then, and its network.

    `code`: as for `load_model`.

    Raises:
        RunError: the run is not finished, its data have changed, or the split is empty.
    """
    folder = resuming.open_finished(path)
    config = record.load_config(folder)
    ran = RunRecord.read(folder.run)
    shards = ShardSet.open(config.data.shards)
    if shards.content_hash != ran.shards.content_hash:
        raise RunError(
            f"{config.data.shards}: does not hold the data that {path} was trained on.",
            cure="Restore that shard set; its content hash is in run.json.",
            path=config.data.shards,
        )
    # The subjects as they were divided then, whatever today's rule would say.
    division = Split(**{name: tuple(rows) for name, rows in ran.split.items()})
    data = preparation.with_split(config, shards, tasks.build(config, shards), division)
    if not data.rows(split):
        raise RunError(
            f"{path}: has no {split} split.", cure=f"It was trained with data.split.{split}=0.", path=path
        )
    return folder, config, data, load_model(folder, code)
