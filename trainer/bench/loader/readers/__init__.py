"""The readers that are compared: one file each, all with the same three functions.

A module has a class `Reader(job, kind)` with

- `prepare()`: write the files it reads, once, from the volumes;
- `files()`: these files;
- `open()`: whatever happens once before the first epoch;
- `epoch(number)`: an iterable of batches, float32 (b, D, H, W, 1), every volume once, in random order.

A module of a peer must run without TensorFlow and without anything of `trainer` but `trainer.bench.loader`.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from trainer.bench.loader.job import LoaderJob


class Reader(Protocol):
    """See this package's description."""

    def prepare(self) -> None:
        """Write the files it reads."""

    def files(self) -> list[Path]:
        """Return the files it reads."""

    def open(self) -> None:
        """Do what happens once before the first epoch."""

    def epoch(self, number: int) -> Iterable[Any]:
        """Yield every volume once, in batches."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """One row of the comparison.

    Attributes:
        title: for people.
        module: of this package.
        kind: which of a module's readers.
        peers: whether it needs the peers' environment.
        stored: how 16-bit volumes are stored.
        memory: whether an epoch comes from memory, where the whole set is kept.
        past_cache: whether it reads past the page cache; then it is measured for a cold one only.
        rounds: whether 16-bit volumes are rounded on their way into the format.
        written_by: the readers that must have written their files before; the shard set is always there.
    """

    title: str
    module: str
    kind: str = ""
    peers: bool = False
    stored: str = "float16"
    memory: bool = False
    past_cache: bool = False
    rounds: bool = False
    written_by: tuple[str, ...] = ()

    @property
    def is_peer(self) -> bool:
        """Whether it is a reader of another package."""
        return self.module not in ("ours", "limit")


OURS, OURS_PAST, OURS_MEMORY, LIMIT = "ours", "ours_past_cache", "ours_memory", "limit"
# What the limit is made of.
PARTS = ("read", "decode", "cast")
_INT16 = "int16 with a scale (NIfTI has no float16)"

KINDS: dict[str, Kind] = {
    OURS: Kind("Cingulum", "ours"),
    OURS_PAST: Kind("Cingulum, past the page cache", "ours", "past_cache", past_cache=True),
    OURS_MEMORY: Kind("Cingulum, cache: memory", "ours", "memory", memory=True),
    LIMIT: Kind("limit: the slowest of read, decode, cast", "limit"),
    "h5py": Kind("h5py, one read per volume", "h5py_naive"),
    "nibabel": Kind("nibabel, .nii.gz", "nibabel_gz", stored=_INT16, rounds=True, written_by=("nibabel",)),
    "tfrecord_gzip": Kind("TFRecord (gzip) + tf.data", "tfrecord", "GZIP", written_by=("tfrecord_gzip",)),
    "tfrecord": Kind("TFRecord (not compressed) + tf.data", "tfrecord", written_by=("tfrecord",)),
    "monai_persistent": Kind(
        "MONAI PersistentDataset",
        "monai_sets",
        "persistent",
        peers=True,
        rounds=True,
        written_by=("nibabel", "monai_persistent"),
    ),
    "monai_cache": Kind(
        "MONAI CacheDataset",
        "monai_sets",
        "cache",
        peers=True,
        memory=True,
        rounds=True,
        written_by=("nibabel",),
    ),
    "mosaic": Kind("MosaicML Streaming", "mosaic_streaming", peers=True, written_by=("mosaic",)),
    "zarr": Kind("Zarr (Blosc lz4)", "zarr_array", peers=True, written_by=("zarr",)),
}


def make(name: str, job: LoaderJob) -> Reader:
    """Return the reader of this name; imports what it needs."""
    kind = KINDS[name]
    module = importlib.import_module(f"{__name__}.{kind.module}")
    made: Reader = module.Reader(job, kind.kind)
    return made
