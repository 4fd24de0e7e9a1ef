"""PyTorch's DataLoader over a data set of volumes, with the number of processes that suits it best."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from trainer.bench.loader.job import LoaderJob


def best_loader(job: LoaderJob, loader_of: Callable[[int], Any]) -> Any:
    """Return the faster of two loaders: with as many processes as we have threads, and with none.

    Which of them is faster depends on what a volume costs: handing a batch from process to process is a copy.
    """
    torch.set_num_threads(job.threads)
    seconds: list[tuple[float, int, Any]] = []
    for workers in (job.threads, 0):
        loader = loader_of(workers)
        for _ in range(2):  # the first time starts the processes
            began = time.perf_counter()
            for _ in arrays(loader):
                pass
        seconds.append((time.perf_counter() - began, workers, loader))
    return min(seconds, key=lambda timed: timed[:2])[2]


def arrays(loader: Any) -> Iterator[Any]:
    """Yield its batches as float32 arrays; they cross processes in the stored type."""
    for batch in loader:
        yield batch.float().numpy()
