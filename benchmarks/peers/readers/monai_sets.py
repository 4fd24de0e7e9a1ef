"""MONAI: PersistentDataset (tensors in files) and CacheDataset (tensors in memory), from .nii.gz images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from monai.data import CacheDataset, DataLoader, PersistentDataset
from monai.transforms import Compose, EnsureType, LoadImage

from benchmarks.peers.readers import torch_batches
from trainer.bench.loader.job import LoaderJob
from trainer.bench.loader.readers import nibabel_gz


class Reader:
    """`kind` is persistent or cache. What is kept has the stored type, and becomes float32 in the batch."""

    def __init__(self, job: LoaderJob, kind: str) -> None:
        self._job, self._kind = job, kind
        self._folder = job.path("monai")
        self._images = [str(nibabel_gz.path_of(job, row)) for row in range(job.volumes)]
        kept = EnsureType(dtype=getattr(torch, job.dtype), track_meta=False)
        self._transform = Compose([LoadImage(image_only=True, ensure_channel_first=True), kept])

    def prepare(self) -> None:
        """Read every volume once: PersistentDataset writes its file then."""
        data = self._persistent()
        for row in range(len(data)):
            data[row]

    def files(self) -> list[Path]:
        """Return the tensors; CacheDataset reads nothing in an epoch."""
        return sorted(self._folder.glob("*.pt")) if self._kind == "persistent" else []

    def open(self) -> None:
        """Make the data set, and the loader that suits it best."""
        if self._kind == "persistent":
            data: Any = self._persistent()
        else:
            data = CacheDataset(self._images, self._transform, num_workers=self._job.threads, progress=False)
        self._loader = torch_batches.best_loader(self._job, lambda workers: self._loader_of(data, workers))

    @property
    def note(self) -> str:
        """How many processes were best."""
        return f"{self._loader.num_workers} loader processes"

    def epoch(self, number: int) -> Iterator[Any]:
        """Yield batches in the loader's own random order."""
        return torch_batches.arrays(self._loader)

    def _persistent(self) -> Any:
        return PersistentDataset(self._images, self._transform, cache_dir=self._folder)

    def _loader_of(self, data: Any, workers: int) -> Any:
        return DataLoader(
            data,
            batch_size=self._job.batch,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
