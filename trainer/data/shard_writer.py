"""Writing a shard set: each shard whole or not at all, the index last.

A shard is built in memory and then written to a temporary name, synced and renamed, so that a stop at any
moment leaves only whole shards. Its bytes depend on nothing but its content: no times, no memory left over.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from trainer import atomic
from trainer.data import codecs
from trainer.data.index import (
    FORMAT,
    FORMAT_VERSION,
    INDEX_NAME,
    Index,
    SetMeta,
    ShardRecord,
    Volume,
    VolumeMeta,
    canonical_json,
)
from trainer.errors import ShardError

# Blosc holds at most 2 GiB in one buffer, HDF5 4 GiB in one chunk.
LARGEST_VOLUME = 2**31 - 1024


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
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            cure = "Name a folder that you may write to, on a disk that is not full."
            raise ShardError(f"{self.path}: cannot be written ({error.strerror}).", cure=cure) from None

    def write_shard(
        self, number: int, rows: Iterable[tuple[np.ndarray, VolumeMeta]], mark: str = ""
    ) -> ShardRecord:
        """Write one shard under its final name, replacing one that is there; return its record.

        Args:
            number: of the shard; gaps are allowed.
            rows: at least one (array of exactly the set's shape and dtype, what is known about it).
            mark: any text that says what the shard was made from; `whole_shard` compares it.

        Raises:
            ShardError: the disk is full or the file cannot be written.
            ValueError: no rows, or an array of another shape or dtype.
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
        image, offsets = self._hdf5_image(chunks, metas, self._mark(mark))
        # An index that is there describes the shard that is about to go.
        (self.path / INDEX_NAME).unlink(missing_ok=True)
        write_atomically(self.path / file, image)
        return _record(file, image, metas, offsets, chunks)

    def whole_shard(self, number: int, mark: str = "") -> ShardRecord | None:
        """The record of a shard written before from the same inputs, or None when it must be written.

        None means: not there, damaged, of other inputs (`mark`), or of another shape, dtype, codec or meta.
        """
        path = self.path / f"shard-{number:05d}.h5"
        try:
            with h5py.File(path, "r") as shard:
                if shard.attrs["mark"] != self._mark(mark):
                    return None
                volumes = shard["volumes"].id
                chunks = [volumes.read_direct_chunk((row, 0, 0, 0, 0))[1] for row in range(volumes.shape[0])]
                metas = [VolumeMeta(**json.loads(text)) for text in shard["meta"].asstr()[:]]
            # What it holds must give the very same file: that finds damage anywhere in it.
            image, offsets = self._hdf5_image(chunks, metas, self._mark(mark))
            if path.read_bytes() != image:
                return None
        except (OSError, KeyError, TypeError, ValueError, RuntimeError):
            return None  # Not a shard of ours, whatever it is: the caller writes it again.
        return _record(path.name, image, metas, offsets, chunks)

    def finish(self, records: Sequence[ShardRecord]) -> Index:
        """Write the index over these shards, in this order, and make the set whole.

        Shards of an earlier import that are not among `records`, and temporary files, are removed.

        Raises:
            ShardError: the disk is full or the index cannot be written.
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
        meta = dataclasses.asdict(_plain_set(self.meta))
        return _sha256(
            canonical_json([FORMAT_VERSION, self.shape, self.dtype.str, self.codec, meta, mark]).encode()
        )

    def _hdf5_image(self, chunks: list[bytes], metas: list[VolumeMeta], mark: str) -> tuple[bytes, list[int]]:
        """The bytes of a shard's HDF5 file, and where each chunk lies in it."""
        # In memory, because HDF5 on a full disk fails late and leaves handles that cannot be closed.
        with h5py.File("shard", "w", driver="core", backing_store=False) as shard:
            volumes = shard.create_dataset(
                "volumes",
                (len(chunks), *self.shape),
                self.dtype,
                chunks=(1, *self.shape),
                track_times=False,
                **codecs.hdf5_filters(self.codec),
            )
            for row, chunk in enumerate(chunks):
                volumes.id.write_direct_chunk((row, 0, 0, 0, 0), chunk)
            affines = np.asarray([meta.affine for meta in metas], "<f8")
            shard.create_dataset("affines", data=affines, track_times=False)
            _write_texts(shard, "labels", [meta.label or "" for meta in metas])
            _write_texts(shard, "subjects", [meta.subject for meta in metas])
            _write_texts(shard, "sessions", [meta.session or "" for meta in metas])
            _write_texts(shard, "meta", [canonical_json(dataclasses.asdict(meta)) for meta in metas])
            _write_texts(shard, "checksums", [_sha256(chunk) for chunk in chunks])
            shard.attrs.update(self._attributes(mark))
            shard.flush()
            offsets = [volumes.id.get_chunk_info(row).byte_offset for row in range(len(chunks))]
            return shard.id.get_file_image(), offsets

    def _attributes(self, mark: str) -> dict[str, Any]:
        meta = _plain_set(self.meta)
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "codec": self.codec,
            "label_name": meta.label_name,
            "voxel_size": np.asarray(meta.voxel_size, "<f8"),
            "normalisation": canonical_json(meta.normalisation),
            "preprocessing": canonical_json(meta.preprocessing),
            "mark": mark,
        }


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that its name shows the old content or the whole new one, also after a power cut.

    Raises:
        ShardError: the disk is full or the file cannot be written.
    """
    try:
        atomic.write_bytes(path, content)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ShardError(
                f"{path}: the disk is full; {len(content) / 2**20:.0f} MiB more are needed here.",
                cure="Free some space and run the same command again: it goes on where it stopped.",
            ) from None
        raise ShardError(f"{path}: cannot be written ({error.strerror}).") from None


def _write_texts(shard: h5py.File, name: str, texts: list[str]) -> None:
    # Fixed length: variable-length text goes to a heap, which not every HDF5 reader follows.
    encoded = [text.encode() for text in texts]
    kind = h5py.string_dtype("utf-8", max(1, *map(len, encoded)))
    shard.create_dataset(name, data=np.asarray(encoded, kind), track_times=False)


def _record(
    file: str, image: bytes, metas: list[VolumeMeta], offsets: list[int], chunks: list[bytes]
) -> ShardRecord:
    volumes = tuple(
        Volume(
            **dataclasses.asdict(meta),
            shard=file,
            row=row,
            offset=offset,
            nbytes=len(chunk),
            checksum=_sha256(chunk),
        )
        for row, (meta, offset, chunk) in enumerate(zip(metas, offsets, chunks, strict=True))
    )
    return ShardRecord(file, len(image), _sha256(image), volumes)


def _plain(meta: VolumeMeta) -> VolumeMeta:
    """The same, as it reads back from JSON: lists and Python floats, never numpy's."""
    affine = np.asarray(meta.affine, np.float64)
    if affine.shape != (4, 4):
        raise ValueError(f"{meta.source}: the affine is {affine.shape}, not (4, 4)")
    return dataclasses.replace(
        meta,
        affine=affine.tolist(),
        age=None if meta.age is None else float(meta.age),
        tissue=None if meta.tissue is None else {name: float(amount) for name, amount in meta.tissue.items()},
    )


def _plain_set(meta: SetMeta) -> SetMeta:
    across, along, up = (float(size) for size in meta.voxel_size)
    return dataclasses.replace(
        meta,
        voxel_size=(across, along, up),
        normalisation=json.loads(canonical_json(meta.normalisation)),
        preprocessing=json.loads(canonical_json(meta.preprocessing)),
    )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
