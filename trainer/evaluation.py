"""How good a network is on a split: every volume once over all ranks, one table and one set of metrics."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from trainer.atomic import make_folder, write_text
from trainer.record import RunFolder, write_json

if TYPE_CHECKING:
    from trainer.preparation import Data
    from trainer.strategies.data import Predictions

# Resamples behind every interval.
BOOTSTRAP = 2000


def write(folder: RunFolder, split: str, found: Predictions, data: Data) -> dict[str, Any]:
    """Write evaluation/<split>.csv, a line per volume, and .json; return the metrics."""
    task = data.task
    metrics = task.metrics(found.targets, found.outputs, bootstrap=BOOTSTRAP)
    header, lines = task.table(found.rows, found.targets, found.outputs, data.shards.volumes)
    make_folder(folder.evaluation)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *lines])
    write_text(folder.evaluation / f"{split}.csv", text.getvalue())
    about = {"split": split, "task": task.name, "classes": list(task.classes)}
    write_json(folder.evaluation / f"{split}.json", {**about, **metrics})
    return metrics
