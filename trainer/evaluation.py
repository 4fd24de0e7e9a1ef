"""How good a network is on a split: every volume once over all ranks, one table and one set of metrics."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.atomic import write_text
from trainer.metrics.classification import classification_metrics
from trainer.record import RunFolder, write_json

if TYPE_CHECKING:
    from trainer.data.shards import ShardSet
    from trainer.strategies.data import Predictions


def metrics_of(
    logits: np.ndarray, targets: np.ndarray, classes: Sequence[str], *, bootstrap: int = 0
) -> dict[str, Any]:
    """Mean cross entropy (each volume weighs the same, no label smoothing) and `classification_metrics`.

    Args:
        logits: float (N, classes).
        targets: int (N,), class numbers.
        classes: names.
        bootstrap: resamples for the interval of the AUC; 0 for none.
    """
    logarithms = log_softmax(np.asarray(logits, np.float64))
    return {
        "loss": float(-logarithms[np.arange(len(targets)), targets].mean()),
        **classification_metrics(targets, np.exp(logarithms), classes, bootstrap=bootstrap),
    }


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithm of the softmax over the last axis, without overflow."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def write(
    folder: RunFolder, split: str, found: Predictions, shards: ShardSet, classes: Sequence[str]
) -> dict[str, Any]:
    """Write evaluation/<split>.csv and .json; return the metrics."""
    metrics = metrics_of(found.logits, found.targets, classes, bootstrap=2000)
    probabilities = np.exp(log_softmax(np.asarray(found.logits, np.float64)))
    folder.evaluation.mkdir(exist_ok=True)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["row", "subject", "label", "predicted", *(f"p_{name}" for name in classes)])
    for row, target, shares in zip(found.rows, found.targets, probabilities, strict=True):
        predicted = classes[int(shares.argmax())]
        table.writerow(
            [int(row), shards.volumes[row].subject, classes[target], predicted, *(f"{p:.6f}" for p in shares)]
        )
    write_text(folder.evaluation / f"{split}.csv", text.getvalue())
    write_json(folder.evaluation / f"{split}.json", {"split": split, "classes": list(classes), **metrics})
    return metrics
