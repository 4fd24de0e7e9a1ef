"""Outputs of a split with the weights as they are now: collected over all ranks, and written with metrics."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from trainer.atomic import make_folder, write_text
from trainer.config import RunConfig
from trainer.ranks.watchdog import Beat, no_beat
from trainer.run_folder.record import RunFolder, write_json
from trainer.runs import preparation
from trainer.runs.preparation import Data
from trainer.strategies.base import Share
from trainer.strategies.learner import Learner, PredictedRows


def collect(
    config: RunConfig,
    data: Data,
    learner: Learner,
    share: Share,
    split: str,
    *,
    final: bool = True,
    beat: Beat = no_beat,
) -> PredictedRows:
    """Return outputs for a split with the current weights, the same on every rank; a collective.

    Args:
        config: of the run.
        data: its volumes.
        learner: the network on all ranks.
        share: what this rank reads of the split.
        split: 'train', 'validation' or 'test'.
        final: False to leave out figures that take long.
        beat: called before each of this rank's batches, and before the ranks put theirs together.
    """

    def beating() -> Iterator[Any]:
        for batch in preparation.evaluation_batches(config, data, share, split):
            beat(f"evaluating the {split} split")
            yield batch
        beat(f"collecting the {split} predictions", collective=True)

    predicted = learner.evaluate(
        beating(),
        lambda y, out: data.task.collected(y, out, final=final),
        preparation.of_whole_volumes(config, data, learner.predict),
    )
    if tuple(predicted.rows.tolist()) != tuple(sorted(data.rows(split))):
        raise RuntimeError(f"not every volume of the {split} split was evaluated exactly once")
    return predicted


def write(folder: RunFolder, split: str, predicted: PredictedRows, data: Data) -> dict[str, Any]:
    """Write evaluation/<split>.csv, then .json; return the metrics."""
    write_table(folder, split, predicted, data)
    return write_metrics(folder, split, predicted, data)


def write_table(folder: RunFolder, split: str, predicted: PredictedRows, data: Data) -> None:
    """Write evaluation/<split>.csv, a line per volume."""
    header, lines = data.task.table(predicted.rows, predicted.targets, predicted.outputs, data.shards.volumes)
    make_folder(folder.evaluation)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *lines])
    write_text(folder.evaluation / f"{split}.csv", text.getvalue())


def write_metrics(folder: RunFolder, split: str, predicted: PredictedRows, data: Data) -> dict[str, Any]:
    """Write evaluation/<split>.json; return the metrics."""
    task = data.task
    subjects = [data.shards.volumes[row].subject for row in predicted.rows]
    metrics = task.metrics(predicted.targets, predicted.outputs, subjects)
    about = {"split": split, "task": task.name, "classes": list(task.classes)}
    write_json(folder.evaluation / f"{split}.json", {**about, **metrics})
    return metrics
