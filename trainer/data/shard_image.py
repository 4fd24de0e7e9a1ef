"""The bytes of one shard: an HDF5 file built in memory from compressed chunks, and read back into them.

In memory, because HDF5 on a full disk fails late and leaves handles that cannot be closed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from trainer.data import codecs
from trainer.data.index import ShardRecord, Volume, VolumeMeta, canonical_json, meta_to_json


@dataclass(frozen=True)
class Content:
    """What a shard holds, in the order of its rows.

    Attributes:
        metas: what is known of each volume.
        chunks: each volume as stored.
        maps: each label map as stored; none where the set has none.
    """

    metas: list[VolumeMeta]
    chunks: list[bytes]
    maps: list[bytes]


@dataclass(frozen=True)
class ShardImage:
    """A shard's file, and where in it each chunk of volumes and of label maps begins, in bytes."""

    content: bytes
    offsets: list[int]
    map_offsets: list[int]


def build(
    content: Content,
    shape: tuple[int, int, int, int],
    dtype: np.dtype,
    codec: str,
    attributes: dict[str, Any],
) -> ShardImage:
    """The HDF5 file of a shard; the same bytes for the same arguments."""
    with h5py.File("shard", "w", driver="core", backing_store=False) as shard:
        volumes = _write_chunks(shard, "volumes", shape, dtype, codec, content.chunks)
        affines = np.asarray([meta.affine for meta in content.metas], "<f8")
        shard.create_dataset("affines", data=affines, track_times=False)
        _write_texts(shard, "labels", [meta.label or "" for meta in content.metas])
        _write_texts(shard, "subjects", [meta.subject for meta in content.metas])
        _write_texts(shard, "sessions", [meta.session or "" for meta in content.metas])
        _write_texts(shard, "meta", [canonical_json(meta_to_json(meta)) for meta in content.metas])
        _write_texts(shard, "checksums", [sha256(chunk) for chunk in content.chunks])
        maps = None
        if content.maps:
            maps = _write_chunks(shard, "maps", shape[:3], np.dtype(np.uint8), codec, content.maps)
            _write_texts(shard, "map_checksums", [sha256(chunk) for chunk in content.maps])
        shard.attrs.update(attributes)
        shard.flush()
        places = _places(volumes), [] if maps is None else _places(maps)
        return ShardImage(shard.id.get_file_image(), *places)


def read_back(path: Path, mark: str) -> Content | None:
    """What a shard holds, its bytes not yet checked; None where its mark is another.

    Raises:
        OSError, KeyError, TypeError, ValueError, RuntimeError: it is no shard of ours, or damaged.
    """
    with h5py.File(path, "r") as shard:
        if shard.attrs["mark"] != mark:
            return None
        metas = [VolumeMeta(**json.loads(text)) for text in shard["meta"].asstr()[:]]
        maps = _read_chunks(shard["maps"]) if "maps" in shard else []
        return Content(metas, _read_chunks(shard["volumes"]), maps)


def record(file: str, image: ShardImage, content: Content) -> ShardRecord:
    """What the index says of a shard."""
    of_maps: list[dict[str, Any]] = [
        {"map_offset": offset, "map_nbytes": len(chunk), "map_checksum": sha256(chunk)}
        for offset, chunk in zip(image.map_offsets, content.maps, strict=True)
    ]
    volumes = tuple(
        Volume(
            **dataclasses.asdict(meta),
            shard=file,
            row=row,
            offset=offset,
            nbytes=len(chunk),
            checksum=sha256(chunk),
            **(of_maps[row] if of_maps else {}),
        )
        for row, (meta, offset, chunk) in enumerate(
            zip(content.metas, image.offsets, content.chunks, strict=True)
        )
    )
    return ShardRecord(file, len(image.content), sha256(image.content), volumes)


def sha256(content: bytes) -> str:
    """In hex."""
    return hashlib.sha256(content).hexdigest()


def _write_chunks(
    shard: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype, codec: str, chunks: list[bytes]
) -> h5py.Dataset:
    full, one = (len(chunks), *shape), (1, *shape)
    filters = codecs.hdf5_filters(codec)
    dataset = shard.create_dataset(name, full, dtype, chunks=one, track_times=False, **filters)
    for row, chunk in enumerate(chunks):
        dataset.id.write_direct_chunk((row, *(0,) * len(shape)), chunk)
    return dataset


def _read_chunks(dataset: h5py.Dataset) -> list[bytes]:
    begin = (0,) * (dataset.ndim - 1)
    return [dataset.id.read_direct_chunk((row, *begin))[1] for row in range(dataset.shape[0])]


def _places(dataset: h5py.Dataset) -> list[int]:
    return [dataset.id.get_chunk_info(row).byte_offset for row in range(dataset.shape[0])]


def _write_texts(shard: h5py.File, name: str, texts: list[str]) -> None:
    # Fixed length: variable-length text goes to a heap, which not every HDF5 reader follows.
    encoded = [text.encode() for text in texts]
    kind = h5py.string_dtype("utf-8", max(1, *map(len, encoded)))
    shard.create_dataset(name, data=np.asarray(encoded, kind), track_times=False)
