"""Build the bytes of one shard: an HDF5 file built in memory from compressed chunks, and read back into them.

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
import xxhash

from trainer.data.shards import codecs
from trainer.data.shards.bricks import pack_table
from trainer.data.shards.index import ShardRecord, Volume, VolumeMeta, canonical_json, meta_to_json
from trainer.data.shards.layout import StorageLayout
from trainer.data.shards.stored_types import hdf5_dtype


@dataclass(frozen=True)
class ShardContent:
    """Content of a shard, in the order of its rows.

    Attributes:
        metas: what is known of each volume.
        chunks: each volume as stored: its one chunk, or its bricks in the order of `StorageLayout.origins`.
        maps: each label map as stored; none where the set has none.
        scales: of each volume of int16; none where the set is of another type.
    """

    metas: list[VolumeMeta]
    chunks: list[tuple[bytes, ...]]
    maps: list[tuple[bytes, ...]]
    scales: list[float]


@dataclass(frozen=True)
class ShardImage:
    """A shard's file, and where in it the chunks of each volume and label map begin, in bytes."""

    content: bytes
    offsets: list[list[int]]
    map_offsets: list[list[int]]


def build(
    content: ShardContent, layout: StorageLayout, map_layout: StorageLayout, attributes: dict[str, Any]
) -> ShardImage:
    """Return the HDF5 file of a shard; the same bytes for the same arguments."""
    with h5py.File("shard", "w", driver="core", backing_store=False) as shard:
        volumes = _write_chunks(shard, "volumes", layout, content.chunks)
        affines = np.asarray([meta.affine for meta in content.metas], "<f8")
        shard.create_dataset("affines", data=affines, track_times=False)
        _write_texts(shard, "labels", [meta.label or "" for meta in content.metas])
        _write_texts(shard, "subjects", [meta.subject for meta in content.metas])
        _write_texts(shard, "sessions", [meta.session or "" for meta in content.metas])
        _write_texts(shard, "meta", [canonical_json(meta_to_json(meta)) for meta in content.metas])
        _write_texts(shard, "checksums", [sha256(*chunks) for chunks in content.chunks])
        if content.scales:
            shard.create_dataset("scales", data=np.asarray(content.scales, "<f8"), track_times=False)
        maps = None
        if content.maps:
            maps = _write_chunks(shard, "maps", map_layout, content.maps)
            _write_texts(shard, "map_checksums", [sha256(*chunks) for chunks in content.maps])
        shard.attrs.update(attributes)
        shard.flush()
        places = _places(volumes, layout), [] if maps is None else _places(maps, map_layout)
        return ShardImage(shard.id.get_file_image(), *places)


def read_back(path: Path, layout: StorageLayout, map_layout: StorageLayout, mark: str) -> ShardContent | None:
    """Return the content of a shard, its bytes not yet checked; None where its mark is another.

    Raises:
        OSError, KeyError, TypeError, ValueError, RuntimeError: it is no shard of ours, or damaged.
    """
    with h5py.File(path, "r") as shard:
        if shard.attrs["mark"] != mark:
            return None
        metas = [VolumeMeta(**json.loads(text)) for text in shard["meta"].asstr()[:]]
        maps = _read_chunks(shard["maps"], map_layout) if "maps" in shard else []
        scales = [float(scale) for scale in shard["scales"][:]] if "scales" in shard else []
        return ShardContent(metas, _read_chunks(shard["volumes"], layout), maps, scales)


def record(file: str, image: ShardImage, content: ShardContent) -> ShardRecord:
    """Return the index record of a shard."""
    of_maps = [
        {f"map_{key}": value for key, value in _stored(offsets, chunks).items()}
        for offsets, chunks in zip(image.map_offsets, content.maps, strict=True)
    ]
    volumes = []
    for row, meta in enumerate(content.metas):
        volumes.append(
            Volume(
                **dataclasses.asdict(meta),
                shard=file,
                row=row,
                scale=content.scales[row] if content.scales else None,
                **_stored(image.offsets[row], content.chunks[row]),
                **(of_maps[row] if of_maps else {}),
            )
        )
    return ShardRecord(file, len(image.content), sha256(image.content), tuple(volumes))


def _stored(offsets: list[int], chunks: tuple[bytes, ...]) -> dict[str, Any]:
    """Return the index entry of the chunks of one volume or label map."""
    entry: dict[str, Any] = {
        "offset": offsets[0],
        "nbytes": sum(map(len, chunks)),
        "checksum": sha256(*chunks),
    }
    if len(chunks) == 1:
        return entry | {"xxh3": xxhash.xxh3_64_hexdigest(chunks[0])}
    return entry | {"brick_table": pack_table(offsets, chunks)}


def sha256(*contents: bytes) -> str:
    """Return the SHA-256 of all one after another, in hex."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def _write_chunks(
    shard: h5py.File, name: str, layout: StorageLayout, volumes: list[tuple[bytes, ...]]
) -> h5py.Dataset:
    dataset = shard.create_dataset(
        name,
        (len(volumes), *layout.shape),
        hdf5_dtype(layout.dtype),
        chunks=(1, *layout.chunk_shape),
        track_times=False,
        **codecs.hdf5_filters(layout.codec),
    )
    for row, chunks in enumerate(volumes):
        for origin, chunk in zip(layout.origins(), chunks, strict=True):
            dataset.id.write_direct_chunk((row, *origin), chunk)
    return dataset


def _read_chunks(dataset: h5py.Dataset, layout: StorageLayout) -> list[tuple[bytes, ...]]:
    return [
        tuple(dataset.id.read_direct_chunk((row, *origin))[1] for origin in layout.origins())
        for row in range(dataset.shape[0])
    ]


def _places(dataset: h5py.Dataset, layout: StorageLayout) -> list[list[int]]:
    return [
        [dataset.id.get_chunk_info_by_coord((row, *origin)).byte_offset for origin in layout.origins()]
        for row in range(dataset.shape[0])
    ]


def _write_texts(shard: h5py.File, name: str, texts: list[str]) -> None:
    # Fixed length: variable-length text goes to a heap, which not every HDF5 reader follows.
    encoded = [text.encode() for text in texts]
    kind = h5py.string_dtype("utf-8", max(1, *map(len, encoded)))
    shard.create_dataset(name, data=np.asarray(encoded, kind), track_times=False)
