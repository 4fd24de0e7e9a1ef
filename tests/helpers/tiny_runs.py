"""Small shard sets and configurations for the tests of a run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from trainer.data.images.preprocess import Recipe
from trainer.data.shards.index import SetMeta, VolumeMeta
from trainer.data.shards.shard_writer import ShardWriter
from trainer.data.shards.shards import ShardSet

PROGRAM = "faulty_train.py"


def make_shards(
    folder: Path,
    *,
    subjects: int = 32,
    size: int = 16,
    labels: tuple[str, ...] = ("AD", "NC"),
    maps: bool = False,
    tissue: bool = False,
    twins: bool = False,
) -> Path:
    """Random volumes; the first class is darker. Four volumes a shard.

    With `maps` each has a bright box, named in its label map, and a subject's age is how bright it is.
    With `twins` all of a class are of the same image: a leak, whatever the split.
    With `tissue` they have tissue volumes, of which a run makes its linear baseline: a second for each run.
    """
    random = np.random.default_rng(0)
    recipe = Recipe(size=size, spacing=12.0)
    writer = ShardWriter(
        folder,
        (size, size, size, 1),
        "float16",
        meta=SetMeta(
            "diagnosis",
            "tests",
            (12.0, 12.0, 12.0),
            {"method": "none"},
            recipe.to_json(),
            map_classes=("background", "box") if maps else (),
        ),
    )
    rows = []
    boxes = []
    for number in range(subjects):
        label = number % len(labels)
        array = random.normal(0.4 * label, 1, (size, size, size, 1)).astype("float16")
        if twins and number >= len(labels):
            array = rows[label][0]
        volumes = {"grey": 500.0 + 40 * label + random.normal(0, 30), "white": 450.0 + random.normal(0, 30)}
        meta = VolumeMeta(
            subject=f"sub-{number:03d}",
            source=f"sub-{number:03d}.nii",
            source_sha256=f"{number:064x}",
            affine=np.diag([12.0, 12.0, 12.0, 1.0]).tolist(),
            label=labels[label],
            tissue=volumes if tissue else None,
        )
        if maps:
            box = np.zeros((size, size, size), np.uint8)
            first = random.integers(2, size - 8, size=3)
            box[tuple(slice(corner, corner + 6) for corner in first)] = 1
            meta = dataclasses.replace(meta, age=60.0 + number, sex="FM"[random.integers(2)])
            array = (array + box[..., None] * (2 + number / 10)).astype("float16")
            boxes.append(box)
        rows.append((array, meta))
    writer.finish(
        [
            writer.write_shard(k // 4, rows[k : k + 4], maps=boxes[k : k + 4] if maps else None)
            for k in range(0, subjects, 4)
        ]
    )
    return folder


def write_config(path: Path, shards: Path, name: str, **changes: Any) -> Path:
    """A run of 4 epochs of 6 steps in which everything that has state takes part: averages, dropout, Adam."""
    tree: dict[str, Any] = {
        "name": name,
        "runs": str(path),
        "data": {"shards": str(shards), "prefetch": 1, "augment": {"flip": True, "noise": 0.1}},
        "model": {"name": "tiny", "width": 2, "options": {"dropout": 0.2}},
        "train": {
            "epochs": 4,
            "global_batch": 4,
            "deterministic": True,
            "optimizer": {"name": "adamw", "learning_rate": 0.01, "ema": 0.9},
        },
        "checkpoint": {"every_steps": 2, "keep": 3},
        "guards": {"timeout_s": 60},
    }
    for dotted, value in changes.items():
        node = tree
        *parents, last = dotted.split("__")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    file = path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def steps(folder: Path) -> list[int]:
    return sorted(int(p.name[5:]) for p in (folder / "checkpoints").glob("step-*") if p.name[5:].isdigit())


def flip_a_byte(shards: Path, *, row: int) -> None:
    """Damage the stored chunk of one volume."""
    volume = ShardSet.open(shards).volumes[row]
    with (shards / volume.shard).open("r+b") as file:
        file.seek(volume.offset + volume.nbytes // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
