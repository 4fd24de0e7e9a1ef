"""h5py as most scripts use it: one read of the data set per volume, on the same shards as ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401  registers the filters
import numpy as np

from trainer.bench.loader.job import LoaderJob


class NaiveReader:
    """No threads: HDF5 lets only one in at a time."""

    def __init__(self, job: LoaderJob, kind: str) -> None:
        self._job = job

    def prepare(self) -> None:
        """Do nothing: the shard set is made with the volumes."""

    def files(self) -> list[Path]:
        """Return the shards."""
        return sorted(self._job.path("shards").glob("shard-*.h5"))

    def open(self) -> None:
        """Open every shard, and list the volumes."""
        index = json.loads(self._job.path("shards/index.json").read_text())
        names = [shard["file"] for shard in index["shards"]]
        sets = {name: h5py.File(self._job.path("shards") / name)["volumes"] for name in names}
        self._places = [(data, row) for data in sets.values() for row in range(len(data))]

    def epoch(self, number: int) -> Iterator[np.ndarray]:
        """Yield batches in random order."""
        job = self._job
        order = np.random.default_rng([job.seed, number]).permutation(job.volumes)
        for first in range(0, job.volumes, job.batch):
            rows = order[first : first + job.batch]
            batch = np.empty((len(rows), *job.shape), np.float32)
            for place, row in enumerate(rows):
                data, within = self._places[row]
                batch[place] = data[within]
            yield batch
