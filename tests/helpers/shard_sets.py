"""Small shard sets for tests: every volume different, every subject known."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from trainer.data.shards.index import SetMeta, VolumeMeta
from trainer.data.shards.shard_writer import ShardWriter
from trainer.data.shards.shards import ShardSet

SHAPE = (6, 5, 4, 1)
META = SetMeta(
    label_name="diagnosis",
    source="made for a test",
    voxel_size=(2.0, 2.0, 2.5),
    normalisation={"method": "zscore", "clip": 5.0},
    preprocessing={"size": 6},
)


def volume_of(row: int, shape: tuple[int, ...] = SHAPE, dtype: str = "float16") -> np.ndarray:
    """The volume that every set made here has at this row: small whole numbers, compressible."""
    count = int(np.prod(shape))
    return ((np.arange(count) // 7 + 3 * row) % 50).reshape(shape).astype(dtype)


def meta_of(row: int, label: str | None = None) -> VolumeMeta:
    """Subject `sub-NN` of label AD or NC in turn."""
    return VolumeMeta(
        subject=f"sub-{row:02d}",
        source=f"sub-{row:02d}/anat/T1w.nii.gz",
        source_sha256=f"{row:064x}",
        affine=np.diag([2, 2, 2.5, 1]).tolist(),
        label=label or ("AD", "NC")[row % 2],
        age=60.0 + row,
        sex="FM"[row % 2],
        tissue={"grey": 600.0 - row},
    )


def rows_of(first: int, count: int, shape: tuple[int, ...] = SHAPE, dtype: str = "float16") -> list:
    """What `ShardWriter.write_shard` takes, for rows `first` onward."""
    return [(volume_of(row, shape, dtype), meta_of(row)) for row in range(first, first + count)]


def make_shard_set(
    path: Path,
    volumes: int = 10,
    *,
    per_shard: int = 4,
    shape: tuple[int, int, int, int] = SHAPE,
    dtype: str = "float16",
    codec: str = "blosc-lz4",
    bricks: int | None = None,
) -> ShardSet:
    """Write and open a set of `volumes` volumes."""
    writer = ShardWriter(path, shape, dtype, codec, bricks, meta=META)
    given = "float32" if dtype in ("bfloat16", "int16") else dtype
    writer.finish(
        [
            writer.write_shard(number, rows_of(first, min(per_shard, volumes - first), shape, given))
            for number, first in enumerate(range(0, volumes, per_shard))
        ]
    )
    return ShardSet.open(path)


def flip_byte(path: Path, offset: int) -> None:
    """Damage one byte of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)


CLASSES = ("background", "grey", "white")


def map_of(row: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """The label map that `make_mapped_set` gives this row."""
    return ((np.arange(int(np.prod(shape[:3]))) // 5 + row) % 3).reshape(shape[:3]).astype(np.uint8)


def make_mapped_set(
    path: Path, volumes: int = 5, *, codec: str = "blosc-lz4", bricks: int | None = None
) -> ShardSet:
    """Like `make_shard_set`, with two contrasts and a label map for every volume; three rows per shard."""
    shape = (*SHAPE[:3], 2)
    meta = dataclasses.replace(META, contrasts=("T1w", "T2w"), map_classes=CLASSES)
    writer = ShardWriter(path, shape, "float16", codec, bricks, meta=meta)
    records = []
    for number, first in enumerate(range(0, volumes, 3)):
        count = min(3, volumes - first)
        maps = [map_of(row) for row in range(first, first + count)]
        records.append(writer.write_shard(number, rows_of(first, count, shape), maps=maps))
    writer.finish(records)
    return ShardSet.open(path)
