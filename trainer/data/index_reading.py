"""Reading `index.json`: what is missing, damaged or of a newer format is named."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.codecs import CODECS
from trainer.data.index import (
    FORMAT,
    FORMAT_VERSION,
    INDEX_NAME,
    OF_MAP,
    OPTIONAL,
    PLAIN_VERSION,
    SINCE_2,
    Index,
    SetMeta,
    ShardRecord,
    Volume,
)
from trainer.errors import ShardError


def read_index(folder: Path) -> Index:
    """Read and check `index.json`; the shards themselves are not looked at.

    Raises:
        ShardError: there is no index, it is not JSON, a key is missing or of the wrong type, its format is
            newer than ours, or it was changed after it was written.
    """
    path = folder / INDEX_NAME
    again = f"`cingulum import SOURCE {folder} --overwrite` makes the set anew from the images."
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ShardError(f"{path}: cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise ShardError(f"{path}: is damaged, it is not JSON ({error}).", cure=again) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ShardError(
            f"{path}: is not the index of a shard set.", cure=f'It would say "format": "{FORMAT}".'
        )
    version = document.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise ShardError(f"{path}: has no format version we know ({version!r}).", cure=again)
    if version > FORMAT_VERSION:
        raise ShardError(
            f"{path}: has format version {version}; this cingulum reads up to {FORMAT_VERSION}.",
            cure="Upgrade cingulum, or import the images again with this one.",
        )
    try:
        index = _from_document(document)
        content_hash = str(document["content_hash"])
    except KeyError as error:
        raise ShardError(f"{path}: is damaged, the key {error} is missing.", cure=again) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise ShardError(f"{path}: is damaged, a value is of the wrong kind ({error}).", cure=again) from None
    if content_hash != index.content_hash:
        raise ShardError(
            f"{path}: was changed after it was written (its content_hash does not match).", cure=again
        )
    return index


def _from_document(document: Mapping[str, Any]) -> Index:
    depth, height, width, channels = (int(size) for size in document["shape"])
    if min(depth, height, width, channels) < 1:
        raise ValueError(f"shape {document['shape']}")
    if document["codec"] not in CODECS:
        raise ValueError(f"codec {document['codec']!r}")
    across, along, up = document["voxel_size"]
    plain = document["format_version"] == PLAIN_VERSION
    meta = {
        key.name: document[key.name]
        for key in dataclasses.fields(SetMeta)
        if not (plain and key.name in SINCE_2)
    }
    for name in set(meta) & set(SINCE_2):
        meta[name] = _names(name, document[name])
    contrasts, classes = meta.get("contrasts", ()), meta.get("map_classes", ())
    if contrasts and len(contrasts) != channels:
        raise ValueError(f"{len(contrasts)} contrasts of {channels} channels")
    optional = set(OPTIONAL) | (set() if classes else set(OF_MAP))
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
        if not all(isinstance(number, int) for number in (volume.row, volume.offset, volume.nbytes)):
            raise ValueError(f"place of volume {volume.id}")
        if classes and not all(isinstance(n, int) for n in (volume.map_offset, volume.map_nbytes)):
            raise ValueError(f"place of the label map of volume {volume.id}")
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
        shape=(depth, height, width, channels),
        dtype=np.dtype(document["dtype"]).name,
        codec=document["codec"],
        meta=SetMeta(**(meta | {"voxel_size": (across, along, up)})),
        shards=tuple(shards),
    )


def _names(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{key} {value!r}")
    return tuple(value)
