"""The readers that are compared: one file each, all with the same three functions.

A module has a class (`ReaderKind.reader`) of (job, kind) with

- `prepare()`: write the files it reads, once, from the volumes;
- `files()`: these files;
- `open()`: whatever happens once before the first epoch;
- `epoch(number)`: an iterable of batches, float32 (b, D, H, W, 1), every volume once, in random order.

What compares with readers of other packages adds them to `KINDS` (benchmarks/beside_peers.py). A module that
runs in a Python of its own must do without TensorFlow, and without anything of `trainer` but
`trainer.bench.loader`.
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
class ReaderKind:
    """One row of the comparison.

    Attributes:
        title: for people.
        module: of the reader, by its full name.
        kind: which of a module's readers.
        python: path of the Python that it needs; None: ours.
        install: what installs that, for messages.
        stored: how 16-bit volumes are stored.
        memory: whether an epoch comes from memory, where the whole set is kept.
        past_cache: whether it reads past the page cache; then it is measured for a cold one only.
        rounds: whether 16-bit volumes are rounded on their way into the format.
        written_by: the readers that must have written their files before; the shard set is always there.
        reader: class of the module.
    """

    title: str
    module: str
    kind: str = ""
    python: str | None = None
    install: str = ""
    stored: str = "float16"
    memory: bool = False
    past_cache: bool = False
    rounds: bool = False
    written_by: tuple[str, ...] = ()
    reader: str = "Reader"

    @property
    def is_peer(self) -> bool:
        """Whether it is neither ours nor the limit."""
        return self.module not in (f"{__name__}.ours", f"{__name__}.limit")


OURS, OURS_PAST, OURS_MEMORY, LIMIT = "ours", "ours_past_cache", "ours_memory", "limit"
# What the limit is made of.
PARTS = ("read", "decode", "cast")
INT16 = "int16 with a scale (NIfTI has no float16)"

KINDS: dict[str, ReaderKind] = {
    OURS: ReaderKind("Cingulum", f"{__name__}.ours", reader="BatchReader"),
    OURS_PAST: ReaderKind(
        "Cingulum, past the page cache",
        f"{__name__}.ours",
        "past_cache",
        past_cache=True,
        reader="BatchReader",
    ),
    OURS_MEMORY: ReaderKind(
        "Cingulum, cache: memory", f"{__name__}.ours", "memory", memory=True, reader="BatchReader"
    ),
    LIMIT: ReaderKind("limit: the slowest of read, decode, cast", f"{__name__}.limit", reader="LimitReader"),
    "h5py": ReaderKind("h5py, one read per volume", f"{__name__}.h5py_naive", reader="NaiveReader"),
    "nibabel": ReaderKind(
        "nibabel, .nii.gz",
        f"{__name__}.nibabel_gz",
        stored=INT16,
        rounds=True,
        written_by=("nibabel",),
        reader="NibabelReader",
    ),
}


def make(kind: ReaderKind, job: LoaderJob) -> Reader:
    """Return a reader; imports what it needs."""
    made: Reader = getattr(importlib.import_module(kind.module), kind.reader)(job, kind.kind)
    return made
