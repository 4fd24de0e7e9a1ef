"""Writing a shard set: each shard whole or not at all, the index last.

A shard is built in memory and then written to a temporary name, synced and renamed, so that a stop at any
moment leaves only whole shards. Its bytes depend on nothing but its content: no times, no memory left over.
"""

from __future__ import annotations

import dataclasses
import errno
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer import atomic
from trainer.data import codecs, shard_image
from trainer.data.index import (
    FORMAT,
    INDEX_NAME,
    Index,
    SetMeta,
    ShardRecord,
    VolumeMeta,
    canonical_json,
)
from trainer.data.shard_image import Content, ShardImage
from trainer.errors import CingulumError, ShardError

# Blosc holds at most 2 GiB in one buffer, HDF5 4 GiB in one chunk.
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
        dtype: stored type; kept little-endian.
        codec: 'blosc-lz4' (fast), 'gzip' (read by every HDF5 build without a plugin) or 'none'.
        meta: what holds for every volume.

    Raises:
        ShardError: the codec is unknown, a volume is too large for one chunk, or the folder cannot be made.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int, int, int, int],
        dtype: np.dtype | str,
        codec: str = "blosc-lz4",
        *,
        meta: SetMeta,
    ) -> None:
        self.path = Path(path)
        self.shape = shape
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.codec = codec
        self.meta = meta
        if codec not in codecs.CODECS:
            raise ShardError(f"unknown codec {codec!r}.", cure=f"Choose one of: {', '.join(codecs.CODECS)}.")
        if int(np.prod(shape)) * self.dtype.itemsize > LARGEST_VOLUME:
            raise ShardError(
                f"a volume of {' x '.join(map(str, shape))} {self.dtype.name} is larger than 2 GiB.",
                cure="Choose a smaller size, or --dtype float16.",
            )
        if len(meta.map_classes) > MOST_CLASSES:
            raise ShardError(
                f"label maps of {len(meta.map_classes)} classes; a voxel holds one of {MOST_CLASSES}.",
                cure="Give fewer classes; labels that share a name become one.",
            )
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
            rows: at least one (array of exactly the set's shape and dtype, what is known about it).
            mark: any text that says what the shard was made from; `whole_shard` compares it.
            maps: the label map of each row, (D, H, W) uint8, of the classes in `meta.map_classes`; None where
                the set has none.

        Raises:
            CingulumError: the disk is full.
            ShardError: the file cannot be written for another reason.
            ValueError: no rows, an array of another shape or dtype, or a map of another class, or none.
        """
        file = f"shard-{number:05d}.h5"
        chunks, metas = [], []
        for array, meta in rows:
            if array.shape != self.shape or array.dtype != self.dtype:
                raise ValueError(f"{meta.source}: {array.shape} {array.dtype}, not {self.shape} {self.dtype}")
            chunks.append(codecs.encode(self.codec, np.ascontiguousarray(array, self.dtype)))
            metas.append(_plain(meta))
        if not chunks:
            raise ValueError(f"{file} would hold no volume")
        content = Content(metas, chunks, self._encoded_maps(maps, metas))
        image = self._image(content, mark)
        # An index that is there describes the shard that is about to go.
        (self.path / INDEX_NAME).unlink(missing_ok=True)
        write_atomically(self.path / file, image.content)
        return shard_image.record(file, image, content)

    def _encoded_maps(self, maps: Sequence[np.ndarray] | None, metas: list[VolumeMeta]) -> list[bytes]:
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
        return [codecs.encode(self.codec, np.ascontiguousarray(label_map)) for label_map in given]

    def whole_shard(self, number: int, mark: str = "") -> ShardRecord | None:
        """The record of a shard written before from the same inputs, or None when it must be written.

        None means: not there, damaged, of other inputs (`mark`), or of another shape, dtype, codec or meta.
        HDF5 reads it, which some damage can crash or hold up: where a hash of the file is known, as an import
        knows it, compare that first.
        """
        path = self.path / f"shard-{number:05d}.h5"
        try:
            content = shard_image.read_back(path, self._mark(mark))
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
        index = Index(self.shape, self.dtype.name, self.codec, _plain_set(self.meta), tuple(shards))
        kept = {record.file for record in records}
        for leftover in [*self.path.glob("shard-*.h5"), *self.path.glob(".*.partial")]:
            if leftover.name not in kept:
                leftover.unlink()
        write_atomically(self.path / INDEX_NAME, index.to_json().encode())
        return index

    def _mark(self, mark: str) -> str:
        meta = _plain_set(self.meta).to_json()
        version = self.meta.format_version
        return shard_image.sha256(
            canonical_json([version, self.shape, self.dtype.str, self.codec, meta, mark]).encode()
        )

    def _image(self, content: Content, mark: str) -> ShardImage:
        return shard_image.build(
            content, self.shape, self.dtype, self.codec, self._attributes(self._mark(mark))
        )

    def _attributes(self, mark: str) -> dict[str, Any]:
        meta = _plain_set(self.meta)
        since_2 = {"contrasts": meta.contrasts, "map_classes": meta.map_classes}
        return {
            "format": FORMAT,
            "format_version": meta.format_version,
            "codec": self.codec,
            "label_name": meta.label_name,
            "voxel_size": np.asarray(meta.voxel_size, "<f8"),
            "normalisation": canonical_json(meta.normalisation),
            "preprocessing": canonical_json(meta.preprocessing),
            "mark": mark,
            **{name: canonical_json(names) for name, names in since_2.items() if names},
        }


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that its name shows the old content or the whole new one, also after a power cut.

    Raises:
        CingulumError: the disk is full.
        ShardError: the file cannot be written for another reason.
    """
    try:
        atomic.write_bytes(path, content)
    except OSError as error:
        raise unwritten(path, error, f" {len(content) / 2**20:.2g} MiB more are needed here.") from None


def unwritten(path: Path, error: OSError, needed: str = "") -> CingulumError:
    """The error to raise for a file or folder of a set that cannot be written.

    A full disk is no fault of what we were given: no InputError.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CingulumError(
            f"{path}: the disk is full.{needed}",
            cure="Free some space and run the same command again: it goes on where it stopped.",
        )
    return ShardError(
        f"{path}: cannot be written ({error.strerror}).", cure="Name a folder that you may write to."
    )


def _plain(meta: VolumeMeta) -> VolumeMeta:
    """The same, as it reads back from JSON: lists and Python floats, never numpy's."""
    affine = np.asarray(meta.affine, np.float64)
    if affine.shape != (4, 4):
        raise ValueError(f"{meta.source}: the affine is {affine.shape}, not (4, 4)")
    return dataclasses.replace(
        meta,
        affine=affine.tolist(),
        age=None if meta.age is None else float(meta.age),
        # In the order in which the shard's JSON gives them back, or a resumed index would have another.
        tissue=None if meta.tissue is None else {n: float(ml) for n, ml in sorted(meta.tissue.items())},
        further_sources=dict(sorted(meta.further_sources.items())) if meta.further_sources else None,
    )


def _plain_set(meta: SetMeta) -> SetMeta:
    across, along, up = (float(size) for size in meta.voxel_size)
    return dataclasses.replace(
        meta,
        voxel_size=(across, along, up),
        normalisation=json.loads(canonical_json(meta.normalisation)),
        preprocessing=json.loads(canonical_json(meta.preprocessing)),
        contrasts=tuple(meta.contrasts),
        map_classes=tuple(meta.map_classes),
    )
