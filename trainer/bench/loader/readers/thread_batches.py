"""Batches filled by threads, some of them ahead: what readers without a loader of their own get from us."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from trainer.bench.loader.job import LoaderJob

AHEAD = 2


def batches(
    job: LoaderJob, number: int, pool: ThreadPoolExecutor, read: Callable[[int], np.ndarray]
) -> Iterator[np.ndarray]:
    """Yield the volumes of an epoch in random order, float32 (b, D, H, W, 1); `read(row)` returns one."""
    order = np.random.default_rng([job.seed, number]).permutation(job.volumes)
    groups = deque(order[first : first + job.batch] for first in range(0, job.volumes, job.batch))
    begun: deque[tuple[np.ndarray, list[Future[None]]]] = deque()

    def fill(batch: np.ndarray, place: int, row: int) -> None:
        batch[place] = read(row).reshape(job.shape)

    while groups or begun:
        while groups and len(begun) <= AHEAD:
            rows = groups.popleft()
            batch = np.empty((len(rows), *job.shape), np.float32)
            begun.append((batch, [pool.submit(fill, batch, k, int(row)) for k, row in enumerate(rows)]))
        batch, volumes = begun.popleft()
        for volume in volumes:
            volume.result()
        yield batch
