"""Read `index.json`: report what is missing, damaged, of a newer format or of the wrong type.

A damaged index does not match its content hash. One that another program wrote and signed may still hold a
list where a name belongs; it is refused here, and not in the middle of a training.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.shards import codecs, regular_files
from trainer.data.shards.bricks import unpack_table
from trainer.data.shards.index import (
    FORMAT,
    FORMAT_VERSION,
    INDEX_NAME,
    OF_MAP,
    OPTIONAL,
    SINCE,
    Index,
    SetMeta,
    ShardRecord,
    Volume,
)
from trainer.data.shards.layout import StorageLayout
from trainer.data.shards.stored_types import stored_dtype
from trainer.errors import DamagedShardError, ShardError, typed

# docs/reference/shard-format.md, Limits.
MOST_BYTES = 1 << 30


def read_index(folder: Path) -> Index:
    """Read and check `index.json`, without opening the shards.

    Raises:
        ShardError: there is no index, it is not JSON, a key is missing or of the wrong type, its format is
            newer than ours, it was changed after it was written, is no regular file, or is larger than
            `MOST_BYTES`.
    """
    path = folder / INDEX_NAME
    again = f"`cingulum import SOURCE {typed(folder)} --overwrite` makes the set again from the images."

    def damaged(what: str) -> DamagedShardError:
        return DamagedShardError(f"{path}: {what}.", cure=again, path=path)

    try:
        content = regular_files.read(path, MOST_BYTES)
        if content[:1] == b"\0":  # a sparse file, which would be decoded in vain
            raise ValueError("it begins with a zero byte")
        document = json.loads(content.decode("utf-8"))
        del content
    except OSError as error:
        raise ShardError(f"{path}: cannot be read ({error.strerror}).", path=path) from None
    except (ValueError, RecursionError) as error:
        raise damaged(f"is damaged: it is not JSON ({error})") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ShardError(
            f"{path}: is not the index of a shard set.", cure=f'An index has "format": "{FORMAT}".', path=path
        )
    version = document.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ShardError(f"{path}: has an unknown format version ({version!r}).", cure=again, path=path)
    if version > FORMAT_VERSION:
        raise ShardError(
            f"{path}: has format version {version}; this cingulum reads up to {FORMAT_VERSION}.",
            cure="Upgrade cingulum, or import the images again with this one.",
            path=path,
        )
    try:
        index = _from_document(document)
        _check_kinds(index)
        has_hash = str(document["content_hash"]) == index.content_hash
    except KeyError as error:
        raise damaged(f"is damaged: the key {error} is missing") from None
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise damaged(f"is damaged: a value has the wrong type ({error})") from None
    if not has_hash:
        raise damaged("was changed after it was written (its content_hash does not match)")
    return index


def _from_document(document: Mapping[str, Any]) -> Index:
    depth, height, width, channels = (int(size) for size in document["shape"])
    if min(depth, height, width, channels) < 1:
        raise ValueError(f"shape {document['shape']}")
    if document["codec"] not in codecs.CODECS:
        raise ValueError(f"codec {document['codec']!r}")
    across, along, up = document["voxel_size"]
    version = document["format_version"]
    meta = {
        key.name: document[key.name]
        for key in dataclasses.fields(SetMeta)
        if SINCE.get(key.name, 1) <= version
    }
    for name in ("contrasts", "map_classes"):
        if name in meta:
            meta[name] = _names(name, document[name])
    contrasts, classes = meta.get("contrasts", ()), meta.get("map_classes", ())
    if contrasts and len(contrasts) != channels:
        raise ValueError(f"{len(contrasts)} contrasts of {channels} channels")
    shape = (depth, height, width, channels)
    dtype = stored_dtype(str(document["dtype"]))
    bricks = document["bricks"] if version >= SINCE["bricks"] else None
    if bricks is not None and not (isinstance(bricks, int) and 1 <= bricks < max(shape[:3])):
        raise ValueError(f"bricks {bricks!r}")
    layout = StorageLayout(shape, dtype, document["codec"], bricks)
    optional = _not_needed(version, layout, maps=bool(classes))
    volumes = [
        Volume(
            **{
                key.name: entry[key.name]
                for key in dataclasses.fields(Volume)
                if key.name in entry or key.name not in optional
            }
        )
        for entry in document["volumes"]
    ]
    if [volume.id for volume in volumes] != list(range(len(volumes))):
        raise ValueError("volumes are not numbered from 0")
    for volume in volumes:
        _check_volume(volume, layout, optional)
    shards = []
    for entry in document["shards"]:
        if Path(entry["file"]).name != entry["file"]:
            raise ValueError(f"shard outside the folder, {entry['file']!r}")
        members, volumes = volumes[: entry["volumes"]], volumes[entry["volumes"] :]
        if any(volume.shard != entry["file"] for volume in members):
            raise ValueError(f"volumes of {entry['file']} are not together")
        shards.append(ShardRecord(entry["file"], entry["nbytes"], entry["sha256"], tuple(members)))
    if volumes:
        raise ValueError(f"{len(volumes)} volumes in no shard")
    return Index(
        shape=shape,
        dtype=dtype.name,
        codec=document["codec"],
        meta=SetMeta(**(meta | {"voxel_size": (across, along, up)})),
        shards=tuple(shards),
        bricks=bricks,
        format_version=version,
    )


def _not_needed(version: int, layout: StorageLayout, *, maps: bool) -> set[str]:
    """Return keys of a volume that a set of this kind does not have."""
    needed: set[str] = set()
    if version >= 3:
        needed |= {"brick_table", "map_brick_table"} if layout.bricks else {"xxh3", "map_xxh3"}
        needed |= {"scale"} if layout.dtype == "int16" else set()
    if version >= 2:
        needed |= {"map_offset", "map_nbytes", "map_checksum"}
    return set(OPTIONAL) - needed if maps else set(OPTIONAL) - needed | set(OF_MAP)


_LARGEST_FILE = 2**62
_XXH3 = re.compile("[0-9a-f]{16}")


def _check_volume(volume: Volume, layout: StorageLayout, optional: set[str]) -> None:
    """Raise ValueError where what came with version 3 is of the wrong kind, or a chunk is larger than its
    codec can make it; `_check_kinds` sees the rest."""
    for digest in (volume.xxh3, volume.map_xxh3):
        if digest is not None and not _XXH3.fullmatch(digest):
            raise ValueError(f"xxh3 of volume {volume.id}")
    scale = volume.scale
    if "scale" not in optional and not (
        isinstance(scale, float) and math.isfinite(scale) and math.frexp(scale)[0] == 0.5
    ):
        raise ValueError(f"scale of volume {volume.id}")
    of_map = StorageLayout(layout.shape[:3], np.dtype(np.uint8), layout.codec, layout.bricks)
    tables = (
        (layout, volume.brick_table, volume.nbytes),
        (of_map, volume.map_brick_table, volume.map_nbytes),
    )
    for stored, text, nbytes in tables:
        most = codecs.most_bytes(stored.decoded_bytes // stored.chunks)
        if isinstance(nbytes, int) and nbytes > most * stored.chunks:
            raise ValueError(
                f"nbytes of volume {volume.id}: {nbytes}; at most {most * stored.chunks} are possible"
            )
        if text is not None:
            table = unpack_table(text)
            right = len(table) == layout.chunks and int(table["nbytes"].sum(dtype="u8")) == nbytes
            if not (
                right
                and table["nbytes"].all()
                and int(table["nbytes"].max()) <= most
                and int(table["offset"].max()) < _LARGEST_FILE
            ):
                raise ValueError(f"bricks of volume {volume.id}")


def _names(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{key} {value!r}")
    return tuple(value)


# Bytes of a volume, decoded; docs/reference/shard-format.md, Limits.
MOST_VOLUME_BYTES = 2**31


def _check_kinds(index: Index) -> None:
    """Raise unless every value is of its kind; `ShardSet.open` checks what lies outside a shard's file.

    Raises:
        ValueError: says which value.
    """
    kind = stored_dtype(index.dtype)
    _require(kind.kind in "iuf" or kind.name == "bfloat16", "dtype", index.dtype)
    _require(math.prod(index.shape) * kind.itemsize <= MOST_VOLUME_BYTES, "shape", index.shape)
    _check_meta(index.meta)
    for shard in index.shards:
        _require(_is_name(shard.file), "file of a shard", shard.file)
        _require(_is_count(shard.nbytes), f"nbytes of {shard.file}", shard.nbytes)
        _require(isinstance(shard.sha256, str), f"sha256 of {shard.file}", shard.sha256)
        for volume in shard.volumes:
            _check_kinds_of_volume(volume, bool(index.meta.map_classes))


def _check_meta(meta: SetMeta) -> None:
    for name in ("label_name", "source"):
        _require(isinstance(getattr(meta, name), str), name, getattr(meta, name))
    _require(all(_is_number(size) and size > 0 for size in meta.voxel_size), "voxel_size", meta.voxel_size)
    for name in ("normalisation", "preprocessing"):
        _require(isinstance(getattr(meta, name), Mapping), name, getattr(meta, name))


def _check_kinds_of_volume(volume: Volume, mapped: bool) -> None:
    def require(right: bool, name: str) -> None:
        _require(right, f"{name} of volume {volume.id}", getattr(volume, name))

    for name in ("subject", "source", "source_sha256", "checksum"):
        require(isinstance(getattr(volume, name), str), name)
    for name in ("session", "label", "sex", "site"):
        require(isinstance(getattr(volume, name), str | None), name)
    for name in ("row", "offset", "nbytes"):
        require(_is_count(getattr(volume, name)), name)
    require(volume.scale is None or _is_number(volume.scale), "scale")
    require(volume.age is None or _is_number(volume.age), "age")
    require(_is_affine(volume.affine), "affine")
    require(volume.tissue is None or _is_table(volume.tissue, _is_number), "tissue")
    further = volume.further_sources
    require(further is None or _is_table(further, lambda value: isinstance(value, str)), "further_sources")
    place = volume.registration
    require(place is None or (isinstance(place, Mapping) and _is_usable(place.get("world"))), "registration")
    if mapped:
        for name in ("map_offset", "map_nbytes"):
            require(_is_count(getattr(volume, name)), name)
        require(isinstance(volume.map_checksum, str), "map_checksum")


def _require(right: bool, name: str, value: Any) -> None:
    if not right:
        shown = repr(value)
        raise ValueError(f"{name}: {shown if len(shown) < 100 else shown[:100] + ' ...'}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300


def _is_name(value: Any) -> bool:
    """Return whether it can be the name of a file in the set's folder."""
    return isinstance(value, str) and value not in ("", ".", "..") and not set(value) & {"/", "\0"}


def _is_affine(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(isinstance(line, list) and len(line) == 4 and all(map(_is_number, line)) for line in value)
    )


def _is_usable(value: Any) -> bool:
    """Whether a value is an affine that leads back."""
    if not _is_affine(value) or value[3] != [0, 0, 0, 1]:
        return False
    return abs(float(np.linalg.det(np.array(value, np.float64)))) > 1e-6


def _is_table(value: Any, fits: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) and fits(v) for name, v in value.items())
