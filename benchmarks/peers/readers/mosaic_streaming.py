"""MosaicML Streaming: its MDS shards on the local disk, its own shuffle, PyTorch's DataLoader."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainer.bench.loader.checking import Source
from trainer.bench.loader.job import LoaderJob


def _import_streaming() -> Any:
    """Import it without torchvision, which only its 2D examples need and a CPU PyTorch cannot load."""

    def stand_in(name: str, **content: Any) -> None:
        module = types.ModuleType(name)
        module.__dict__.update(
            content, __path__=[], __spec__=importlib.machinery.ModuleSpec(name, None, is_package=True)
        )
        sys.modules[name] = module

    stand_in("torchvision")
    stand_in("torchvision.datasets", VisionDataset=type("VisionDataset", (), {}))
    stand_in("torchvision.transforms")
    stand_in("torchvision.transforms.functional", to_tensor=None)
    import streaming

    return streaming


streaming = _import_streaming()
_StreamingDataset: Any = streaming.StreamingDataset

from benchmarks.peers.readers import torch_batches  # noqa: E402


class Reader:
    """Not compressed: compressed shards are written out whole when they are first read."""

    def __init__(self, job: LoaderJob, kind: str) -> None:
        self._job = job
        self._folder = job.path("mds")

    def prepare(self) -> None:
        """Write the shards."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shape = ",".join(map(str, self._job.shape))
        columns = {"volume": f"ndarray:{self._job.dtype}:{shape}"}
        source = Source(self._job)
        with streaming.MDSWriter(out=str(self._folder), columns=columns, size_limit=2**26) as writer:
            for row in range(self._job.volumes):
                writer.write({"volume": np.ascontiguousarray(source.volume(row))})

    def files(self) -> list[Path]:
        """Return the shards."""
        return sorted(self._folder.glob("*.mds"))

    def open(self) -> None:
        """Make the loader that suits it best."""
        streaming.base.util.clean_stale_shared_memory()
        self._loader = torch_batches.best_loader(self._job, self._loader_of)

    @property
    def note(self) -> str:
        """How many processes were best."""
        return f"{self._loader.num_workers} loader processes"

    def epoch(self, number: int) -> Iterator[Any]:
        """Yield batches; the data set shuffles anew each time."""
        return torch_batches.arrays(self._loader)

    def _loader_of(self, workers: int) -> Any:
        data = _Volumes(
            local=str(self._folder),
            shuffle=True,
            shuffle_seed=self._job.seed,
            batch_size=self._job.batch,
            num_canonical_nodes=1,
        )
        return streaming.StreamingDataLoader(
            data,
            batch_size=self._job.batch,
            num_workers=workers,
            persistent_workers=workers > 0,
        )


class _Volumes(_StreamingDataset):
    """Samples that are the volume alone."""

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(at)["volume"]
