"""nibabel and one .nii.gz per volume, read in threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nibabel
import numpy as np

from trainer.bench.loader.checking import Source
from trainer.bench.loader.job import LoaderJob
from trainer.bench.loader.readers import thread_batches


def path_of(job: LoaderJob, row: int) -> Path:
    """Return the image of a volume."""
    return job.path("nifti") / f"{row:05d}.nii.gz"


def write(job: LoaderJob) -> None:
    """Write one image per volume; int16 with a scale stands for float16, which NIfTI does not have."""
    job.path("nifti").mkdir(exist_ok=True)
    source = Source(job)
    for row in range(job.volumes):
        image = nibabel.Nifti1Image(source.volume(row)[..., 0].astype(np.float32), np.eye(4))
        image.set_data_dtype(np.int16 if job.dtype == "float16" else np.float32)
        nibabel.save(image, path_of(job, row))


class NibabelReader:
    """Every image opened, decompressed and scaled anew."""

    def __init__(self, job: LoaderJob, kind: str) -> None:
        self._job = job

    def prepare(self) -> None:
        """Write the images."""
        write(self._job)

    def files(self) -> list[Path]:
        """Return the images."""
        return [path_of(self._job, row) for row in range(self._job.volumes)]

    def open(self) -> None:
        """Start the threads."""
        self._pool = ThreadPoolExecutor(self._job.threads)

    def epoch(self, number: int) -> Iterator[np.ndarray]:
        """Yield batches in random order."""
        return thread_batches.batches(self._job, number, self._pool, self._read)

    def _read(self, row: int) -> np.ndarray:
        image = nibabel.Nifti1Image.from_filename(path_of(self._job, row))
        return np.asarray(image.get_fdata(dtype=np.float32))
