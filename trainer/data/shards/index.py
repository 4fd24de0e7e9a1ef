"""The index of a shard set, `index.json`: its volumes and its shards.

docs/reference/shard-format.md describes the file for readers in other languages.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FORMAT = "cingulum-shards"
# What is written; older versions are read.
FORMAT_VERSION = 3
INDEX_NAME = "index.json"

Affine = Sequence[Sequence[float]]


@dataclass(frozen=True)
class VolumeMeta:
    """Metadata of one volume.

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
        registration: of a scan that was registered to the average brain: `world`, (4, 4) from mm of the scan
            to mm of the average brain, to whose space `affine` then leads; and how well it fits. None of
            others.
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
    registration: Mapping[str, Any] | None = None

    @property
    def scan_affine(self) -> np.ndarray:
        """Return (4, 4) from voxel indices of the stored volume to millimetres of the scan's own space."""
        affine = np.asarray(self.affine, np.float64)
        if self.registration is None:
            return affine
        return np.asarray(np.linalg.inv(np.asarray(self.registration["world"], np.float64)) @ affine)

    def as_read(self) -> VolumeMeta:
        """Return the same as it reads back from JSON, with lists and Python floats instead of NumPy's."""
        affine = np.asarray(self.affine, np.float64)
        if affine.shape != (4, 4):
            raise ValueError(f"{self.source}: the affine is {affine.shape}, not (4, 4)")
        tissue, further = self.tissue, self.further_sources
        return dataclasses.replace(
            self,
            affine=affine.tolist(),
            age=None if self.age is None else float(self.age),
            # In the order in which the shard's JSON gives them back, or a resumed index would have another.
            tissue=None if tissue is None else {name: float(ml) for name, ml in sorted(tissue.items())},
            further_sources=dict(sorted(further.items())) if further else None,
            registration=json.loads(canonical_json(self.registration)) if self.registration else None,
        )


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
        xxh3: XXH3 of 64 bits of its chunk as stored, in hex; None in bricks and in versions 1 and 2.
        map_xxh3: the same of the chunk of its label map.
        scale: what stored int16 values are multiplied by; None where there is nothing to multiply.
        brick_table: of a volume stored in bricks, see `bricks.unpack_table`. `offset` is that of its first
            brick, `nbytes` the size of all, `checksum` the sha256 of all in their order.
        map_brick_table: the same of its label map.
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
    scale: float | None = None
    brick_table: str | None = None
    map_brick_table: str | None = None


@dataclass(frozen=True)
class SetMeta:
    """Metadata of every volume of a set.

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

    def as_read(self) -> SetMeta:
        """Return the same as it reads back from JSON."""
        across, along, up = (float(size) for size in self.voxel_size)
        return dataclasses.replace(
            self,
            voxel_size=(across, along, up),
            normalisation=json.loads(canonical_json(self.normalisation)),
            preprocessing=json.loads(canonical_json(self.preprocessing)),
            contrasts=tuple(self.contrasts),
            map_classes=tuple(self.map_classes),
        )


# Keys of the set that came after version 1, and with which.
SINCE = {"contrasts": 2, "map_classes": 2, "bricks": 3}
# Keys of a volume that are not there where they would be None.
OF_MAP = ("map_offset", "map_nbytes", "map_checksum", "map_xxh3", "map_brick_table")
OPTIONAL = ("further_sources", "registration", "xxh3", "scale", "brick_table", *OF_MAP)


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
        bricks: edge of a brick in voxels; None where each volume is one chunk.
        format_version: the version that the set is written in.
    """

    shape: tuple[int, int, int, int]
    dtype: str
    codec: str
    meta: SetMeta
    shards: tuple[ShardRecord, ...]
    bricks: int | None = None
    format_version: int = FORMAT_VERSION

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """Return all volumes; a volume's `id` is its place here."""
        return tuple(volume for shard in self.shards for volume in shard.volumes)

    @property
    def content_hash(self) -> str:
        """Return the SHA-256 of everything else in the index, in hex: it names the data set in run.json."""
        return hashlib.sha256(canonical_json(self._content()).encode()).hexdigest()

    def to_json(self) -> str:
        """Return the text of `index.json`, the same for the same content."""
        content = self._content() | {"content_hash": self.content_hash}
        entries = ",\n".join(f"{json.dumps(key)}: {_by_line(value)}" for key, value in content.items())
        return f"{{\n{entries}\n}}\n"

    def _content(self) -> dict[str, Any]:
        content = {
            "format": FORMAT,
            "format_version": self.format_version,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "codec": self.codec,
            "bricks": self.bricks,
            **dataclasses.asdict(self.meta),
            "shards": [
                {"file": s.file, "nbytes": s.nbytes, "sha256": s.sha256, "volumes": len(s.volumes)}
                for s in self.shards
            ],
            "volumes": [meta_to_json(volume) for volume in self.volumes],
        }
        return {key: value for key, value in content.items() if SINCE.get(key, 1) <= self.format_version}


def meta_to_json(meta: VolumeMeta) -> dict[str, Any]:
    """Return a volume's entry as a JSON object; optional keys only where set."""
    tree = dataclasses.asdict(meta)
    return {key: value for key, value in tree.items() if value is not None or key not in OPTIONAL}


def _by_line(value: Any) -> str:
    """Format JSON with a line for each element of a list of objects, so that grep finds a subject."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(json.dumps(element, allow_nan=False) for element in value) + "\n]"
    return json.dumps(value, allow_nan=False)


def canonical_json(value: Any) -> str:
    """Format JSON with one spelling per value, for hashing."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
