"""Whether a reader delivered what it should: every volume once, and the right voxels."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.bench.loader.job import MARK_VOXELS, LoaderJob


class WrongVolumes(Exception):
    """A reader delivered something else than the volumes; says what."""


def marked(volume: np.ndarray, number: int) -> np.ndarray:
    """Return the volume (D, H, W, 1) with its number written into a corner."""
    bits = (number >> np.arange(MARK_VOXELS)) & 1
    volume[0, 0, :MARK_VOXELS, 0] = bits
    return volume


class Epoch:
    """What a reader delivers in one epoch.

    Args:
        job: what it reads.
        tolerance: largest error of a voxel; not 0 where a format rounds, as int16 in NIfTI does.
        whole: compare every voxel with the volumes, not only a sample of them.
    """

    def __init__(self, job: LoaderJob, *, tolerance: float = 0.0, whole: bool = False) -> None:
        self._job, self._tolerance, self._whole = job, tolerance, whole
        self._source = Source(job)
        self.numbers: list[int] = []

    def add(self, batch: Any) -> None:
        """Look at one batch, float32 (b, D, H, W, 1), or (b, 1, D, H, W) from readers of that habit.

        Raises:
            WrongVolumes: it is of another shape or type, or its voxels are wrong.
        """
        found = np.asarray(batch)
        if found.dtype != np.float32 or found.ndim != 5 or found[0].size != self._job.voxels:
            raise WrongVolumes(f"a batch of {found.dtype} {found.shape}")
        volumes = found.reshape(len(found), *self._job.shape)
        bits = volumes[:, 0, 0, :MARK_VOXELS, 0] > 0.5
        numbers = (bits * (1 << np.arange(MARK_VOXELS))).sum(axis=1).tolist()
        for number, volume in zip(numbers, volumes, strict=True):
            if number >= self._job.volumes:
                raise WrongVolumes(f"a volume says that it is number {number} of {self._job.volumes}")
            self._compare(number, volume)
        self.numbers += numbers

    def _compare(self, number: int, volume: np.ndarray) -> None:
        if self._whole:
            error = float(np.abs(volume - self._source.volume(number)).max())
            if error > self._tolerance:
                raise WrongVolumes(f"volume {number} is wrong by {error:g}, more than {self._tolerance:g}")
            return
        # A line lies together in memory: a grid of 512 voxels, each in a cache line of its own, took a tenth
        # of the time that the fastest readers need for a volume.
        found, expected = sampled(volume), self._source.samples[number]
        # Sums of the same numbers in the same order: only what the format rounds may differ.
        if abs(found - expected) > self._tolerance * volume.shape[2]:
            raise WrongVolumes(f"volume {number} adds up to {found:g}, not {expected:g}")

    def close(self) -> None:
        """Check that every volume of this rank came once.

        Raises:
            WrongVolumes: one is missing, or came twice.
        """
        wanted = self._job.mine
        if len(self.numbers) != wanted or len(set(self.numbers)) != wanted:
            raise WrongVolumes(
                f"{len(self.numbers)} volumes came, {len(set(self.numbers))} different ones, of {wanted}"
            )

    @property
    def in_stored_order(self) -> bool:
        """Whether the volumes came as they are stored, and not in random order."""
        return self.numbers == sorted(self.numbers)


class Source:
    """The volumes as they were made; read one at a time, so that they do not count as a reader's memory.

    Attributes:
        samples: float64 (n,), `sampled` of each.
        largest: largest absolute voxel.
    """

    def __init__(self, job: LoaderJob) -> None:
        self._job = job
        summary = np.load(job.path("expected.npz"))
        self.samples, self.largest = summary["samples"], float(summary["largest"])

    def volume(self, number: int) -> np.ndarray:
        """Return one volume (D, H, W, 1), in its stored type."""
        dtype = np.dtype(self._job.dtype)
        raw = self._job.path("volumes.raw")
        count = self._job.voxels
        return np.fromfile(raw, dtype, count, offset=number * count * dtype.itemsize).reshape(self._job.shape)

    def tolerance(self, rounds: bool) -> float:
        """Return the largest error of a voxel where a format keeps the type, or rounds to 16 bits."""
        return self.largest * (2 / 65535 + 2**-11) if rounds else 0.0


def sampled(volume: np.ndarray) -> float:
    """Return the sum over the line of voxels along W through the middle of a volume (D, H, W, 1)."""
    middle = volume[volume.shape[0] // 2, volume.shape[1] // 2]
    return float(middle.sum(dtype=np.float64))
