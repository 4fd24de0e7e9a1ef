"""Place the patch of a training sample: a pure function of the run's seed, the epoch and the sample.

The content of a volume is counted in coarse cells, once, from the whole volume (or its label map); the counts
stay in memory, and after that only the patches are read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from trainer.config import PatchConfig
from trainer.data.shards.shards import Origin, ShardSet
from trainer.errors import ConfigError

__all__ = ["Patches"]

# Keeps these random numbers apart from those of other uses of the same seed.
_STREAM = 0x7061746368
# A cell's edge is an eighth of the volume's shortest, and at most this many voxels.
_LARGEST_CELL = 16


@dataclass
class Patches:
    """Patches of the volumes of a set.

    Attributes:
        shards: the set.
        config: size, and how places are drawn.
        size: (d, h, w) in voxels.
    """

    shards: ShardSet
    config: PatchConfig
    size: tuple[int, int, int]
    _counts: dict[int, np.ndarray] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def build(cls, config: PatchConfig, shards: ShardSet) -> Patches:
        """Check that the configured patches can be taken from these volumes.

        Raises:
            ConfigError: they are larger than the volumes, or `classes` is configured for a set without maps.
        """
        if any(edge > there for edge, there in zip(config.size, shards.shape, strict=False)):
            raise ConfigError(
                f"data.patch.size: patches of {_by(config.size)} voxels do not fit into volumes of "
                f"{_by(shards.shape[:3])}.",
                cure="Set data.patch.size to at most the volumes' shape.",
            )
        if config.sampling == "classes" and not shards.maps:
            raise ConfigError(
                f"data.patch.sampling: 'classes' needs label maps, but {shards.path} has none.",
                cure="Set data.patch.sampling=foreground, or import the images again with --maps.",
            )
        return cls(shards, config, config.size)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return (d, h, w, C) of a patch."""
        return (*self.size, self.shards.shape[3])

    def origin(self, seed: int, epoch: int, sample: int, row: int) -> Origin:
        """Return where a patch begins, in voxels along D, H, W; it lies wholly in the volume.

        Integers alone decide, from raw Philox words: the same on every rank, machine and version of numpy.

        Args:
            seed: of the run.
            epoch: from 0.
            sample: number of the sample in the epoch's list, another one for each patch of a volume.
            row: of the volume.

        Raises:
            ShardError: the volume must be looked through, and is damaged.
        """
        words = _words(seed, epoch, sample)
        uniform = next(words) >= round(self.config.foreground_share * 2**64)
        if self.config.sampling == "uniform" or uniform:
            return self._placed([next(words) % (n - e + 1) for n, e in self._axes()])
        counts = self._counts_of(row)
        present = np.flatnonzero(counts.sum(axis=1))
        if not present.size:  # an empty volume
            return self._placed([next(words) % (n - e + 1) for n, e in self._axes()])
        # The class evenly among those that are there, then a cell by how much of it it has.
        of_class = np.cumsum(counts[present[next(words) % len(present)]])
        cell = int(np.searchsorted(of_class, next(words) % int(of_class[-1]), side="right"))
        corner = np.unravel_index(cell, self._cells()) * np.array(self._cell())
        centre = [int(first) + next(words) % self._cell() for first in corner]
        return self._placed([place - edge // 2 for place, edge in zip(centre, self.size, strict=True)])

    def _axes(self) -> list[tuple[int, int]]:
        return list(zip(self.shards.shape[:3], self.size, strict=True))

    def _placed(self, begin: list[int]) -> Origin:
        d, h, w = (min(max(first, 0), n - e) for first, (n, e) in zip(begin, self._axes(), strict=True))
        return d, h, w

    def _cell(self) -> int:
        return max(1, min(_LARGEST_CELL, min(self.shards.shape[:3]) // 8))

    def _cells(self) -> tuple[int, int, int]:
        d, h, w = (-(-n // self._cell()) for n in self.shards.shape[:3])
        return d, h, w

    def _counts_of(self, row: int) -> np.ndarray:
        """Return the voxels of each class (or of the foreground) in each cell, uint16 (kinds, cells)."""
        with self._lock:
            counts = self._counts.get(row)
        if counts is None:
            # Two threads may look through the same volume at once: both come to the same.
            counts = self._counted(row)
            with self._lock:
                self._counts[row] = counts
        return counts

    def _counted(self, row: int) -> np.ndarray:
        if self.shards.maps:
            labels = np.empty(self.shards.shape[:3], np.uint8)
            self.shards.read_map_into(row, labels)
            if self.config.sampling == "classes":
                return np.stack([self._by_cell(labels == kind) for kind in range(len(self.shards.maps))])
            return self._by_cell(labels > 0)[None]
        volume = np.empty(self.shards.shape, np.float32)
        self.shards.read_into(row, volume)
        bright: np.ndarray = np.any(volume > self.config.threshold, axis=-1)
        return self._by_cell(bright)[None]

    def _by_cell(self, inside: np.ndarray) -> np.ndarray:
        for axis in range(3):
            inside = np.add.reduceat(inside, range(0, inside.shape[axis], self._cell()), axis, np.uint16)
        return inside.ravel()


def _words(seed: int, epoch: int, sample: int) -> Iterator[int]:
    generator = np.random.Philox(np.random.SeedSequence([_STREAM, seed, epoch, sample]))
    while True:
        yield int(generator.random_raw())


def _by(edges: tuple[int, ...]) -> str:
    return "x".join(map(str, edges))
