"""What a shard set says about itself: `index.json`, its volumes and its shards.

docs/reference/shard-format.md describes the file for readers in other languages.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FORMAT = "cingulum-shards"
# A set is written in the oldest version that can say what it holds, so that the bytes of sets without label
# maps and further contrasts are those of version 1, and older readers go on reading them.
PLAIN_VERSION = 1
FORMAT_VERSION = 2
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
        further_sources: path and SHA-256 of every further file that the volume or its label map was made
            from: other contrasts, maps. None where there are none.
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
    further_sources: Mapping[str, str] | None = None


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
        map_offset: where the chunk of its label map begins in the shard, in bytes; None without maps.
        map_nbytes: size of that chunk, in bytes.
        map_checksum: sha256 of that chunk as stored, in hex.
        xxh3: XXH3 of 64 bits of its chunk as stored, in hex; None in versions 1 and 2.
        map_xxh3: the same of the chunk of its label map.
    """

    id: int = -1
    shard: str = ""
    row: int = -1
    offset: int = -1
    nbytes: int = -1
    checksum: str = ""
    map_offset: int | None = None
    map_nbytes: int | None = None
    map_checksum: str | None = None
    xxh3: str | None = None
    map_xxh3: str | None = None


@dataclass(frozen=True)
class SetMeta:
    """What holds for every volume of a set.

    Attributes:
        label_name: what the labels are, such as `diagnosis`.
        source: where the images came from, for people.
        voxel_size: (3,) in mm, along the stored D, H, W axes.
        normalisation: method and parameters of the intensity normalisation; JSON values only.
        preprocessing: the whole recipe that leads from an image to a stored volume; JSON values only.
        contrasts: what the channels are, such as ("T1w", "T2w"); empty for a single one.
        map_classes: names of the classes in the label maps, background first; empty without maps.
    """

    label_name: str
    source: str
    voxel_size: tuple[float, float, float]
    normalisation: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    contrasts: tuple[str, ...] = ()
    map_classes: tuple[str, ...] = ()

    @property
    def format_version(self) -> int:
        """The format version that a set needs which says this."""
        return FORMAT_VERSION if self.contrasts or self.map_classes else PLAIN_VERSION

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; what version 1 does not know is only there where something says it."""
        tree = dataclasses.asdict(self)
        if self.format_version == PLAIN_VERSION:
            for name in SINCE_2:
                del tree[name]
        return tree


# Keys that came with version 2: of the set, of a volume, and of a volume's label map.
SINCE_2 = ("contrasts", "map_classes")
OF_MAP = ("map_offset", "map_nbytes", "map_checksum")
# Keys of a volume that are not there where they would be None.
OPTIONAL = ("further_sources", "xxh3", "map_xxh3")


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
    def format_version(self) -> int:
        """The format version that the set is written in."""
        return self.meta.format_version

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
            "format_version": self.format_version,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "codec": self.codec,
            **self.meta.to_json(),
            "shards": [
                {"file": s.file, "nbytes": s.nbytes, "sha256": s.sha256, "volumes": len(s.volumes)}
                for s in self.shards
            ],
            "volumes": [self._entry(volume) for volume in self.volumes],
        }

    def _entry(self, volume: Volume) -> dict[str, Any]:
        entry = meta_to_json(volume)
        return entry if self.meta.map_classes else {k: v for k, v in entry.items() if k not in OF_MAP}


def meta_to_json(meta: VolumeMeta) -> dict[str, Any]:
    """A volume's entry as a JSON object; optional keys only where there is something to say."""
    tree = dataclasses.asdict(meta)
    return {key: value for key, value in tree.items() if value is not None or key not in OPTIONAL}


def _by_line(value: Any) -> str:
    """JSON with a line for each element of a list of objects, so that grep finds a subject."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(json.dumps(element, allow_nan=False) for element in value) + "\n]"
    return json.dumps(value, allow_nan=False)


def canonical_json(value: Any) -> str:
    """JSON with one spelling per value, for hashing."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
