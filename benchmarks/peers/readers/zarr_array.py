"""Zarr: one array, one chunk per volume, Blosc lz4 with byte shuffle as in our shards, read in threads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import zarr
from zarr.codecs import BloscCodec

from trainer.bench.loader.checking import Source
from trainer.bench.loader.job import LoaderJob
from trainer.bench.loader.readers import thread_batches


class Reader:
    """`array[row]` per volume."""

    def __init__(self, job: LoaderJob, kind: str) -> None:
        self._job = job
        self._folder = job.path("volumes.zarr")

    def prepare(self) -> None:
        """Write the array."""
        shutil.rmtree(self._folder, ignore_errors=True)
        array = zarr.create_array(
            self._folder,
            shape=(self._job.volumes, *self._job.shape),
            chunks=(1, *self._job.shape),
            dtype=self._job.dtype,
            compressors=BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
        )
        source = Source(self._job)
        for row in range(self._job.volumes):
            array[row] = source.volume(row)

    def files(self) -> list[Path]:
        """Return the chunks."""
        return sorted(path for path in (self._folder / "c").rglob("*") if path.is_file())

    def open(self) -> None:
        """Open the array and start the threads."""
        self._array = zarr.open_array(self._folder, mode="r")
        self._pool = ThreadPoolExecutor(self._job.threads)

    def epoch(self, number: int) -> Iterator[np.ndarray]:
        """Yield batches in random order."""
        return thread_batches.batches(self._job, number, self._pool, lambda row: np.asarray(self._array[row]))
