"""Write a shard set: each shard whole or not at all, the index last.

A shard is built in memory and then written to a temporary name, synced and renamed, so that a stop at any
moment leaves only whole shards. Its bytes depend on nothing but its content: no times, no memory left over.
"""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer import atomic, byte_sizes
from trainer.data.shards import codecs, shard_image, stored_types
from trainer.data.shards.index import (
    FORMAT,
    FORMAT_VERSION,
    INDEX_NAME,
    Index,
    SetMeta,
    ShardRecord,
    VolumeMeta,
    canonical_json,
)
from trainer.data.shards.layout import StorageLayout
from trainer.data.shards.shard_image import ShardContent, ShardImage
from trainer.errors import CingulumError, DiskFull, ShardError, free_bytes

# Blosc holds at most 2 GiB in one buffer, HDF5 4 GiB in one chunk, and one call reads at most 2 GiB.
LARGEST_VOLUME = 2**31 - 1024
# A voxel of a label map is one byte.
MOST_CLASSES = 256


class ShardWriter:
    """Writes a shard set into a folder.

    `write_shard` may be called in any order and from several processes (the writer is a plain value that can
    be sent to them), `finish` once, at the end, from one. Until `finish` the folder has no index, so nothing
    takes it for a whole set. After a stop, `whole_shard` tells which shards need not be written again::

        writer = ShardWriter(path, (96, 96, 96, 1), "float16", meta=SetMeta(...))
        records = []
        for number, images in enumerate(groups):
            mark = sha256_of(paths and hashes of the images)
            record = writer.whole_shard(number, mark)
            if record is None:
                record = writer.write_shard(number, [(array, VolumeMeta(...)), ...], mark)
            records.append(record)
        index = writer.finish(records)

    Args:
        path: folder of the set; made if missing.
        shape: (D, H, W, C) of every volume.
        dtype: stored type, such as one of `stored_types.STORED_TYPES`; kept little-endian.
        codec: one of `codecs.CODECS`.
        bricks: edge of a brick in voxels, for sets that are read in parts; None: each volume is one chunk.
        meta: what holds for every volume.

    Raises:
        ShardError: the codec is unknown, a brick is no smaller than a volume, a volume is too large for one
            chunk, or the folder cannot be made.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int, int, int, int],
        dtype: np.dtype | str,
        codec: str = codecs.DEFAULT,
        bricks: int | None = None,
        *,
        meta: SetMeta,
    ) -> None:
        self.path = Path(path)
        self.shape = shape
        self.dtype = stored_types.stored_dtype(dtype)
        self.codec = codec
        self.bricks = bricks
        self.meta = meta
        self.layout = checked_layout(shape, dtype, codec, bricks, meta.map_classes)
        self.map_layout = StorageLayout(shape[:3], np.dtype(np.uint8), codec, bricks)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritten(self.path, error) from None

    def write_shard(
        self,
        number: int,
        rows: Iterable[tuple[np.ndarray, VolumeMeta]],
        mark: str = "",
        maps: Sequence[np.ndarray] | None = None,
    ) -> ShardRecord:
        """Write one shard under its final name, replacing one that is there; return its record.

        Args:
            number: of the shard; gaps are allowed.
            rows: at least one (array of exactly the set's shape and dtype, what is known about it). For
                bfloat16 and int16 the array may be float32; for int16 it is scaled then.
            mark: any text that says what the shard was made from; `whole_shard` compares it.
            maps: the label map of each row, (D, H, W) uint8, of the classes in `meta.map_classes`; None where
                the set has none.

        Raises:
            CingulumError: the disk is full.
            ShardError: the file cannot be written for another reason.
            ValueError: no rows, an array of another shape or dtype, or a map of another class, or none.
        """
        file = f"shard-{number:05d}.h5"
        chunks, metas, scales = [], [], []
        for array, meta in rows:
            if array.shape != self.shape:
                raise ValueError(f"{meta.source}: a volume of {array.shape}, not {self.shape}")
            try:
                stored, scale = stored_types.pack(array, self.dtype)
            except ValueError as error:
                raise ValueError(f"{meta.source}: {error}") from None
            chunks.append(self.layout.encode(stored))
            metas.append(meta.as_read())
            scales += [] if scale is None else [scale]
        if not chunks:
            raise ValueError(f"{file}: there are no volumes")
        content = ShardContent(metas, chunks, self._encoded_maps(maps, metas), scales)
        image = self._image(content, mark)
        # An index that is there describes the shard that is about to go.
        (self.path / INDEX_NAME).unlink(missing_ok=True)
        write_atomically(self.path / file, image.content)
        return shard_image.record(file, image, content)

    def _encoded_maps(
        self, maps: Sequence[np.ndarray] | None, metas: list[VolumeMeta]
    ) -> list[tuple[bytes, ...]]:
        classes = len(self.meta.map_classes)
        given = () if maps is None else maps
        if len(given) != (len(metas) if classes else 0):
            raise ValueError(f"{len(given)} label maps of {classes} classes for {len(metas)} volumes")
        for label_map, meta in zip(given, metas, strict=False):
            if label_map.shape != self.shape[:3] or label_map.dtype != np.uint8:
                raise ValueError(
                    f"{meta.source}: its label map is {label_map.shape} {label_map.dtype}, "
                    f"not {self.shape[:3]} uint8"
                )
            if label_map.max() >= classes:
                raise ValueError(f"{meta.source}: its label map has class {label_map.max()} of {classes}")
        return [self.map_layout.encode(label_map) for label_map in given]

    def whole_shard(self, number: int, mark: str = "") -> ShardRecord | None:
        """Return the record of a shard written before from the same inputs, or None when it must be written.

        None means: not there, damaged, of other inputs (`mark`), or of another shape, dtype, codec, size of
        bricks or meta. HDF5 reads it, which some damage can crash or hold up: where a hash of the file is
        known, as an import knows it, compare that first.
        """
        path = self.path / f"shard-{number:05d}.h5"
        if not path.is_file():  # nor a named pipe, which would hold us up
            return None
        try:
            content = shard_image.read_back(path, self.layout, self.map_layout, self._mark(mark))
            if content is None:
                return None
            # What it holds must give the very same file: that finds damage anywhere in it.
            image = self._image(content, mark)
            if path.read_bytes() != image.content:
                return None
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, AttributeError):
            return None  # Not a shard of ours, whatever it is: the caller writes it again.
        return shard_image.record(path.name, image, content)

    def finish(self, records: Sequence[ShardRecord]) -> Index:
        """Write the index over these shards, in this order, and make the set whole.

        Shards of an earlier import that are not among `records`, and temporary files, are removed.

        Raises:
            CingulumError: the disk is full.
            ShardError: the index cannot be written for another reason.
            ValueError: no records.
        """
        if not records:
            raise ValueError("a shard set needs at least one shard")
        first = 0
        shards = []
        for record in records:
            volumes = tuple(dataclasses.replace(v, id=first + i) for i, v in enumerate(record.volumes))
            shards.append(dataclasses.replace(record, volumes=volumes))
            first += len(volumes)
        meta = self.meta.as_read()
        index = Index(self.shape, self.dtype.name, self.codec, meta, tuple(shards), self.bricks)
        kept = {record.file for record in records}
        for leftover in [*self.path.glob("shard-*.h5"), *self.path.glob(".*.partial")]:
            if leftover.name not in kept:
                leftover.unlink()
        write_atomically(self.path / INDEX_NAME, index.to_json().encode())
        return index

    def _mark(self, mark: str) -> str:
        meta = dataclasses.asdict(self.meta.as_read())
        how = [FORMAT_VERSION, self.shape, self.dtype.name, self.codec, self.bricks, meta, mark]
        return shard_image.sha256(canonical_json(how).encode())

    def _image(self, content: ShardContent, mark: str) -> ShardImage:
        attributes = self._attributes(self._mark(mark))
        return shard_image.build(content, self.layout, self.map_layout, attributes)

    def _attributes(self, mark: str) -> dict[str, Any]:
        meta = self.meta.as_read()
        optional = {"contrasts": meta.contrasts, "map_classes": meta.map_classes, "bricks": self.bricks}
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "value_type": self.dtype.name,
            "codec": self.codec,
            "label_name": meta.label_name,
            "voxel_size": np.asarray(meta.voxel_size, "<f8"),
            "normalisation": canonical_json(meta.normalisation),
            "preprocessing": canonical_json(meta.preprocessing),
            "mark": mark,
            **{name: canonical_json(value) for name, value in optional.items() if value},
        }


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that its name has the old content or the whole new one, also after a power cut.

    Raises:
        CingulumError: the disk is full.
        ShardError: the file cannot be written for another reason.
    """
    try:
        atomic.write_bytes(path, content)
    except OSError as error:
        raise unwritten(path, error, f" {len(content) / 2**20:.2g} MiB more are needed here.") from None


def checked_layout(
    shape: tuple[int, int, int, int],
    dtype: np.dtype | str,
    codec: str,
    bricks: int | None,
    map_classes: Sequence[str],
) -> StorageLayout:
    """Return the layout of the volumes of a set; arguments as for `ShardWriter`.

    Raises:
        ShardError: the codec is unknown, a brick is no smaller than a volume, a volume is too large for one
            chunk, or label maps have too many classes.
    """
    if codec not in codecs.CODECS:
        raise ShardError(f"unknown codec {codec!r}.", cure=f"Choose one of: {', '.join(codecs.CODECS)}.")
    if bricks is not None and not 1 <= bricks < max(shape[:3]):
        raise ShardError(
            f"bricks of {bricks} voxels are impossible in volumes of {' x '.join(map(str, shape[:3]))}.",
            cure=f"Choose an edge under {max(shape[:3])}, or leave bricks out.",
        )
    layout = StorageLayout(shape, stored_types.stored_dtype(dtype), codec, bricks)
    if layout.decoded_bytes > LARGEST_VOLUME:
        raise ShardError(
            f"a volume of {' x '.join(map(str, shape))} {layout.dtype.name} is larger than 2 GiB.",
            cure="Choose a smaller size, or --dtype float16.",
        )
    if len(map_classes) > MOST_CLASSES:
        raise ShardError(
            f"label maps have {len(map_classes)} classes; at most {MOST_CLASSES} are possible.",
            cure="Give fewer classes; labels with the same name become one class.",
        )
    return layout


def unwritten(path: Path, error: OSError, needed: str = "") -> CingulumError:
    """Return the error to raise for a file or folder of a set that cannot be written.

    A full disk is no fault of what we were given: no InputError.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = free_bytes(DiskFull(error, path))
        left = "" if free is None else f" {byte_sizes.as_text(free)} are free."
        return CingulumError(
            f"{path}: the disk is full.{needed}{left}",
            cure="Free some space and run the same command again: it goes on where it stopped.",
        )
    return ShardError(
        f"{path}: cannot be written ({error.strerror}).", cure="Name a folder that you may write to."
    )
