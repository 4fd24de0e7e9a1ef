"""What a shard set says about itself: `index.json`, its volumes and its shards.

docs/reference/shard-format.md describes the file for readers in other languages.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.codecs import CODECS
from trainer.errors import ShardError

FORMAT = "cingulum-shards"
FORMAT_VERSION = 1
INDEX_NAME = "index.json"

Affine = Sequence[Sequence[float]]


@dataclass(frozen=True)
class VolumeMeta:
    """What the importer knows about one volume, besides its voxels.

    Attributes:
        subject: who was scanned; the unit of a split.
        session: which visit, when there are several.
        label: the class to learn, or None when unknown.
        age: in years.
        sex: as the source states it.
        site: scanner or hospital.
        source: the image's path relative to the source folder.
        source_sha256: of the image file, in hex.
        affine: 4 x 4, from voxel indices of the stored volume to millimetres (RAS+).
        tissue: tissue volumes in mL (`grey`, `white`, `csf`), where known.
    """

    subject: str
    source: str
    source_sha256: str
    affine: Affine
    session: str | None = None
    label: str | None = None
    age: float | None = None
    sex: str | None = None
    site: str | None = None
    tissue: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Volume(VolumeMeta):
    """One volume of a shard set.

    Attributes:
        id: its row number in the set, from 0.
        shard: file name of its shard.
        row: its row in the shard's datasets.
        offset: where its chunk begins in the shard, in bytes.
        nbytes: size of its chunk, in bytes.
        checksum: sha256 of its chunk as stored, in hex.
    """

    id: int = -1
    shard: str = ""
    row: int = -1
    offset: int = -1
    nbytes: int = -1
    checksum: str = ""


@dataclass(frozen=True)
class SetMeta:
    """What holds for every volume of a set.

    Attributes:
        label_name: what the labels are, such as `diagnosis`.
        source: where the images came from, for people.
        voxel_size: (3,) in mm, along the stored D, H, W axes.
        normalisation: method and parameters of the intensity normalisation; JSON values only.
        preprocessing: the whole recipe that leads from an image to a stored volume; JSON values only.
    """

    label_name: str
    source: str
    voxel_size: tuple[float, float, float]
    normalisation: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardRecord:
    """One whole shard: its file and the volumes in it.

    Attributes:
        file: name of the shard's file.
        nbytes: size of the file, in bytes.
        sha256: of the whole file, in hex.
        volumes: in the order of the shard's rows; their `id` is -1 until the index is written.
    """

    file: str
    nbytes: int
    sha256: str
    volumes: tuple[Volume, ...]


@dataclass(frozen=True)
class Index:
    """The content of `index.json`.

    Attributes:
        shape: (D, H, W, C) of every volume.
        dtype: name of the stored type, such as `float16`.
        codec: how chunks are compressed; one of `codecs.CODECS`.
        meta: what holds for every volume.
        shards: every shard, in the order of the volumes.
    """

    shape: tuple[int, int, int, int]
    dtype: str
    codec: str
    meta: SetMeta
    shards: tuple[ShardRecord, ...]

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """All volumes; a volume's `id` is its place here."""
        return tuple(volume for shard in self.shards for volume in shard.volumes)

    @property
    def content_hash(self) -> str:
        """Sha256 of everything else in the index, in hex: names the data set in run.json."""
        return hashlib.sha256(canonical_json(self._content()).encode()).hexdigest()

    def to_json(self) -> str:
        """The text of `index.json`, the same for the same content."""
        content = self._content() | {"content_hash": self.content_hash}
        entries = ",\n".join(f"{json.dumps(key)}: {_by_line(value)}" for key, value in content.items())
        return f"{{\n{entries}\n}}\n"

    def _content(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "codec": self.codec,
            **dataclasses.asdict(self.meta),
            "shards": [
                {"file": s.file, "nbytes": s.nbytes, "sha256": s.sha256, "volumes": len(s.volumes)}
                for s in self.shards
            ],
            "volumes": [dataclasses.asdict(volume) for volume in self.volumes],
        }


def _by_line(value: Any) -> str:
    """JSON with a line for each element of a list of objects, so that grep finds a subject."""
    if isinstance(value, list) and isinstance(value[0], dict):
        return "[\n" + ",\n".join(json.dumps(element, allow_nan=False) for element in value) + "\n]"
    return json.dumps(value, allow_nan=False)


def canonical_json(value: Any) -> str:
    """JSON with one spelling per value, for hashing."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


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
    meta = {key.name: document[key.name] for key in dataclasses.fields(SetMeta)}
    volumes = [
        Volume(**{key.name: entry[key.name] for key in dataclasses.fields(Volume)})
        for entry in document["volumes"]
    ]
    if [volume.id for volume in volumes] != list(range(len(volumes))):
        raise ValueError("volumes are not numbered from 0")
    for volume in volumes:
        if not all(isinstance(number, int) for number in (volume.row, volume.offset, volume.nbytes)):
            raise ValueError(f"place of volume {volume.id}")
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
