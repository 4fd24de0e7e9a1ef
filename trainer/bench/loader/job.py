"""What a reader reads: values that go from the benchmark to its processes as JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path

# A line of voxels at a corner says which volume it is, one bit per voxel: (0, 0, 0:MARK_VOXELS, 0).
MARK_VOXELS = 16


@dataclasses.dataclass(frozen=True)
class LoaderJob:
    """The volumes, and how they are read.

    Attributes:
        folder: of the volumes of this size, in every format.
        size: edge of a volume, in voxels.
        volumes: how many of them are read in an epoch.
        batch: volumes per batch and rank.
        threads: that read and decode; processes, where a reader knows nothing else.
        dtype: stored type.
        codec: of the shard set.
        seed: of the order.
        rank: which part of the volumes this process reads.
        world_size: into how many parts they are divided.
    """

    folder: str
    size: int = 96
    volumes: int = 256
    batch: int = 4
    threads: int = 2
    dtype: str = "float16"
    codec: str = "blosc-lz4"
    seed: int = 1
    rank: int = 0
    world_size: int = 1

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(D, H, W, C) of a volume."""
        return (self.size, self.size, self.size, 1)

    @property
    def voxels(self) -> int:
        """Of a volume."""
        return self.size**3

    @property
    def mine(self) -> int:
        """Volumes that this rank reads in an epoch."""
        return self.volumes // self.world_size

    def path(self, name: str) -> Path:
        """Return a file or folder beside the volumes."""
        return Path(self.folder) / name
