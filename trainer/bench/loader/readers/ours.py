"""Cingulum's own loader, exactly as training uses it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainer.bench.loader.job import LoaderJob
from trainer.quiet import import_tensorflow

import_tensorflow()

from trainer.config import RunConfig  # noqa: E402
from trainer.data.loading import pipeline  # noqa: E402
from trainer.data.shards.shards import ShardSet  # noqa: E402

AHEAD = 2


class BatchReader:
    """`training_batches` from the first step of an epoch to its last.

    `kind` memory keeps the volumes; past_cache reads as `data.page_cache` reads a set larger than the memory.
    """

    def __init__(self, job: LoaderJob, kind: str) -> None:
        self._job, self._kind = job, kind
        self._folder = job.path("shards")

    def prepare(self) -> None:
        """Do nothing: the shard set is made with the volumes."""

    def files(self) -> list[Path]:
        """Return the shards; the index is read once, and so is everything that is kept."""
        return [] if self._kind == "memory" else sorted(self._folder.glob("shard-*.h5"))

    def open(self) -> None:
        """Open the set and make the batches' reader, once per run."""
        self._shards = ShardSet.open(self._folder)
        if self._kind == "past_cache":
            self._shards.go_past_cache()
        if self._kind == "memory":
            from trainer.data.loading.cache import KeptVolumes

            self._shards = KeptVolumes(self._shards, budget=sys.maxsize)
        job = self._job
        config = RunConfig.model_validate(
            {
                "name": "bench-loader",
                "data": {
                    "shards": self._folder,
                    "augment": {},
                    "prefetch": AHEAD,
                    "reader_threads": job.threads,
                },
                "train": {"seed": job.seed, "global_batch": job.batch * job.world_size},
            }
        )
        self._batches = pipeline.training_batches(
            pipeline.Samples(self._shards, range(job.volumes), np.zeros(job.volumes, np.int32)),
            config,
            range(job.mine // job.batch),
            rank=job.rank,
            world_size=job.world_size,
        )

    @property
    def bytes_read(self) -> int:
        """Stored bytes read so far."""
        return self._shards.bytes_read

    def epoch(self, number: int) -> Iterable[Any]:
        """Yield the batches of one rank, in the order of a run's first epoch each time.

        A run makes one reader for all its epochs, so that its memory is used again from one to the next,
        and making it belongs to none. Nothing is read before the first batch is asked for.
        """
        return _volumes(iter(self._batches))


def _volumes(batches: Any) -> Iterator[Any]:
    for x, _, _ in batches:
        # As a training step sees it; `x.numpy()` would copy what TensorFlow took over without a copy.
        yield np.asarray(memoryview(x))
